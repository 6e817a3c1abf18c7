//! `fit`: from a table to a certified model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bilip::faer::Mat;
use bilip::{
    BiLipNet, BiLipschitz, Bounds, Certificate, InverseOptions, Mlp, Model, Network, Real, Rng, metrics,
    write_file,
};
use bilip_burn::{
    Accumulation, Adam, BiLipNetConfig, BoundsMode, GpConfig, GpNet, Loss, MonLip, MonLipConfig, OnDevice,
    OptimizerKind, OrthogonalKind, PartialConfig, PartialPlNet, PlNet, Predict, Schedule, TrainConfig,
    Trained, data, train,
};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use serde_json::json;

use crate::Outcome;
use crate::apply;
use crate::args::{self, Digits, ModelKind, OptimizerName};
use crate::model::Loaded;
use crate::standardize::Standard;
use crate::table::{Table, check_file, print};

/// Fewer rows than this are no data to fit.
const FEWEST_ROWS: usize = 10;

/// Networks larger than this would not fit into memory while they are trained.
const MOST_PARAMETERS: f64 = 2e8;

/// The number of monotone layers when nothing is said of it.
const DEFAULT_BLOCKS: usize = 2;

/// The distortion when nothing is said of the bounds.
const DEFAULT_DISTORTION: f64 = 100.0;

/// How much a classifier's features may shrink and stretch distances when nothing is said of it.
const CLASSIFIER_BOUNDS: (f64, f64) = (0.5, 2.0);

/// Settings of a classifier's process when nothing is said of them.
const DEFAULT_FEATURES: usize = 1_024;
const LEAST_WIDTH: usize = 8;

/// The ridge of the Laplace approximation.
const RIDGE: f64 = 1.0;

/// Bins of the calibration error.
const BINS: usize = 15;

/// What the table gives, in standardised variables.
struct Prepared {
    inputs: Vec<String>,
    parameters: Vec<String>,
    targets: Vec<String>,
    x: Standard,
    p: Standard,
    y: Standard,
    bounds: BoundsMode,
    ranges: Vec<(f64, f64)>,
    training: data::Table,
    validation: Option<data::Table>,
    /// The names of the classes, for a classifier.
    classes: Vec<String>,
    /// Rows of training and validation in the user's units: x, p, y.
    raw: [[Vec<f64>; 3]; 2],
}

pub fn run(args: &args::Fit) -> Result<Outcome> {
    args.device.check()?;
    check_sizes(args)?;
    let inputs: Vec<&Path> = vec![&args.data];
    check_file(&args.output, &inputs)?;
    if let Some(metrics) = &args.metrics {
        check_file(metrics, &[&args.data, &args.output])?;
    }
    let table = Table::read(&args.data)?;
    let prepared = prepare(args, &table)?;
    check_parameters(args, width(args, prepared.inputs.len()))?;
    let folder = &Folder::new(args, &table);
    let clock = Instant::now();
    let mut fitted = args.device.run(Work {
        args,
        prepared: &prepared,
        folder,
    })??;
    let seconds = clock.elapsed().as_secs_f64();
    remember(&mut fitted, args, &prepared)?;
    let Fitted {
        model, parameters, ..
    } = fitted;
    model
        .save(&args.output)
        .with_context(|| args.output.display().to_string())?;
    // Nothing is lost with the checkpoints any more.
    folder.remove();
    let loaded = Loaded {
        shown: args.output.display().to_string(),
        model,
    };
    report(args, &loaded, &prepared, parameters, seconds)
}

/// A trained model, frozen.
struct Fitted {
    model: Model,
    /// Number of trained parameters.
    parameters: usize,
    epochs: usize,
    stopped_early: bool,
    train_loss: f64,
    validation_loss: Option<f64>,
}

fn check_sizes(args: &args::Fit) -> Result<()> {
    ensure!(
        (0.0..=0.9).contains(&args.validation),
        "--validation {}: the share of held-out rows must lie between 0 and 0.9",
        args.validation
    );
    ensure!(
        args.patience.is_none() || args.validation > 0.0,
        "--patience needs held-out rows; give --validation"
    );
    ensure!(
        args.lr > 0.0 && args.lr.is_finite(),
        "--lr {}: the learning rate must be positive",
        args.lr
    );
    ensure!(
        args.decay >= 0.0 && args.decay.is_finite(),
        "--decay {}: must not be negative",
        args.decay
    );
    for (name, value) in [
        ("--epochs", args.epochs),
        ("--batch", args.batch),
        ("--blocks", args.blocks.unwrap_or(1)),
        ("--householder", args.householder.unwrap_or(1)),
    ] {
        ensure!(value > 0, "{name} 0: must be at least 1");
    }
    ensure!(
        !args.hidden.is_empty() && args.hidden.iter().all(|w| *w > 0),
        "--hidden: every width must be at least 1"
    );
    if args.model == ModelKind::Monlip {
        ensure!(
            args.params.is_empty(),
            "--params: a monotone layer has none; use --model bilipnet"
        );
        ensure!(
            args.blocks.is_none_or(|b| b == 1),
            "--blocks: a monotone layer is one block; use --model bilipnet"
        );
        ensure!(
            args.householder.is_none(),
            "--householder: a monotone layer has no orthogonal ones; use --model bilipnet"
        );
    }
    ensure!(
        !args.per_column || args.model != ModelKind::Monlip,
        "--per-column: a monotone layer needs one factor for all columns"
    );
    let classifier = args.model == ModelKind::Classifier;
    ensure!(
        !classifier || args.params.is_empty(),
        "--params: a classifier has none"
    );
    for (name, given) in [
        ("--width", args.width.is_some()),
        ("--features", args.features.is_some()),
        ("--length-scale", args.length_scale.is_some()),
    ] {
        ensure!(classifier || !given, "{name}: only for --model classifier");
    }
    if let Some(length) = args.length_scale {
        ensure!(
            length > 0.0 && length.is_finite(),
            "--length-scale {length}: must be positive"
        );
    }
    if let Some(features) = args.features {
        ensure!(
            (1..=8_192).contains(&features),
            "--features {features}: must lie between 1 and 8192"
        );
    }
    if args.minimum.is_some() {
        ensure!(
            args.model == ModelKind::Plnet && args.params.is_empty(),
            "--minimum: only a plnet without parameters has a minimum to be known"
        );
    }
    Ok(())
}

fn check_parameters(args: &args::Fit, n: usize) -> Result<()> {
    let width = |k: usize| args.hidden[k] as f64;
    let block: f64 = (0..args.hidden.len())
        .map(|k| width(k) * (n as f64 + width(k) + if k == 0 { 0.0 } else { width(k - 1) }))
        .sum();
    let blocks = args.blocks.unwrap_or(DEFAULT_BLOCKS) as f64;
    let orthogonal = (blocks + 1.0) * n as f64 * args.householder.map_or(n as f64, |count| count as f64);
    // The bias networks of partial models end in all hidden units.
    let hidden: f64 = args.hidden.iter().map(|w| *w as f64).sum();
    let biases = match args.params.is_empty() {
        true => 0.0,
        false => blocks * 128.0 * hidden,
    };
    let total = blocks * block + orthogonal + biases;
    ensure!(
        total <= MOST_PARAMETERS,
        "--hidden, --blocks, --householder: a network of {total:.1e} parameters; the limit is {MOST_PARAMETERS:e}"
    );
    Ok(())
}

fn prepare(args: &args::Fit, table: &Table) -> Result<Prepared> {
    let find = |names: &[String]| names.iter().map(|n| table.find(n)).collect::<Result<Vec<_>>>();
    let targets = find(&args.target).context("--target")?;
    let parameters = find(&args.params).context("--params")?;
    let inputs = match &args.inputs {
        Some(names) => find(names).context("--inputs")?,
        None => (0..table.columns())
            .filter(|k| !targets.contains(k) && !parameters.contains(k))
            .collect(),
    };
    let mut seen = Vec::new();
    for k in inputs.iter().chain(&parameters).chain(&targets) {
        ensure!(
            !seen.contains(k),
            "column {:?} is named twice among inputs, parameters and targets",
            table.name(*k)
        );
        seen.push(*k);
    }
    ensure!(
        !inputs.is_empty(),
        "no columns are left for the inputs; the table has {}",
        table.columns()
    );
    let classifier = args.model == ModelKind::Classifier;
    match args.model {
        ModelKind::Plnet | ModelKind::Classifier => ensure!(
            targets.len() == 1,
            "--target: a {} has one target, not {}",
            if classifier { "classifier" } else { "plnet" },
            targets.len()
        ),
        _ => ensure!(
            targets.len() == inputs.len(),
            "--target: {} targets for {} inputs; this model needs as many of the one as of the other",
            targets.len(),
            inputs.len()
        ),
    }
    if let Some(x) = &args.minimum {
        ensure!(
            x.len() == inputs.len() && x.iter().all(|v| v.is_finite()),
            "--minimum: {} numbers are needed, one for each input",
            inputs.len()
        );
    }
    ensure!(
        table.rows() >= FEWEST_ROWS,
        "{} rows are too few to fit anything; at least {FEWEST_ROWS} are needed",
        table.rows()
    );
    let names = |columns: &[usize]| columns.iter().map(|k| table.name(*k)).collect::<Vec<_>>();
    let (input_names, parameter_names, target_names) = (names(&inputs), names(&parameters), names(&targets));
    let (y, classes) = match classifier {
        true => table.classes(targets[0])?,
        false => {
            let y = table.select(&targets);
            (
                y.context("--target (for classes, --model classifier)")?,
                Vec::new(),
            )
        }
    };
    if classifier {
        check_classes(args, &target_names[0], &classes, table.rows(), inputs.len())?;
    }
    let (x, p) = (table.select(&inputs)?, table.select(&parameters)?);

    // Scales and bounds.
    let given = args.mu.is_some() || args.nu.is_some();
    let in_user_units = (given || args.tau.is_some()) && !args.per_column && !classifier;
    let potential = args.model == ModelKind::Plnet;
    let (mut standard_x, mut standard_y) = if args.no_standardize {
        (
            Standard::identity(inputs.len()),
            Standard::identity(targets.len()),
        )
    } else {
        (
            Standard::of(&x, &input_names, "input")?,
            match classifier {
                true => Standard::identity(1),
                false => Standard::of(&y, &target_names, "target")?,
            },
        )
    };
    // Bounds in the user's units and monotone layers need one factor for all columns.
    if in_user_units || args.model == ModelKind::Monlip {
        standard_x = standard_x.uniform();
        standard_y = standard_y.uniform();
    }
    if potential {
        standard_y = standard_y.powers_of_four();
    }
    let standard_p = if args.no_standardize || parameters.is_empty() {
        Standard::identity(parameters.len())
    } else {
        Standard::of(&p, &parameter_names, "parameter")?
    };
    let bounds = match (given, args.tau) {
        (false, None) if classifier => {
            BoundsMode::Fixed(Bounds::new(CLASSIFIER_BOUNDS.0, CLASSIFIER_BOUNDS.1)?)
        }
        (false, tau) => BoundsMode::Distortion(tau.unwrap_or(DEFAULT_DISTORTION)),
        (true, tau) => {
            let asked = Bounds::from_parts(args.mu, args.nu, tau).context("--mu, --nu, --tau")?;
            ensure!(
                asked.gap() > 0.0,
                "--nu {}: must be larger than --mu {}",
                asked.nu(),
                asked.mu()
            );
            let out = if potential {
                standard_y.scale[0].sqrt()
            } else {
                standard_y.scale[0]
            };
            let factor = match in_user_units {
                true => standard_x.scale[0] / out,
                // The bounds asked for are those of the standardised variables.
                false => 1.0,
            };
            BoundsMode::Fixed(Bounds::new(asked.mu() * factor, asked.nu() * factor)?)
        }
    };

    // Rows held out.
    let order = data::shuffled(table.rows(), &mut Rng::new(args.seed ^ 0x5eed));
    let held_out = (args.validation * table.rows() as f64).round() as usize;
    let (held_out, kept) = order.split_at(held_out.min(table.rows() - 1));
    let rows_of = |values: &[f64], columns: usize, rows: &[usize]| -> Vec<f64> {
        rows.iter()
            .flat_map(|r| &values[r * columns..(r + 1) * columns])
            .copied()
            .collect()
    };
    let part = |rows: &[usize]| {
        [
            rows_of(&x, inputs.len(), rows),
            rows_of(&p, parameters.len(), rows),
            rows_of(&y, targets.len(), rows),
        ]
    };
    let width = width(args, inputs.len());
    let standardized = |[x, p, y]: &[Vec<f64>; 3]| {
        data::Table::with_parameters(
            padded(&standard_x.apply(x), inputs.len(), width),
            width,
            standard_p.apply(p),
            parameters.len(),
            standard_y.apply(y),
            targets.len(),
        )
    };
    let raw = [part(kept), part(held_out)];
    let ranges = (0..inputs.len())
        .map(|k| {
            x.iter()
                .skip(k)
                .step_by(inputs.len())
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
                    (a.min(*v), b.max(*v))
                })
        })
        .collect();
    Ok(Prepared {
        training: standardized(&raw[0])?,
        validation: match held_out.is_empty() {
            true => None,
            false => Some(standardized(&raw[1])?),
        },
        inputs: input_names,
        parameters: parameter_names,
        targets: target_names,
        x: standard_x,
        p: standard_p,
        y: standard_y,
        bounds,
        ranges,
        classes,
        raw,
    })
}

/// Refuses a column that is not one of classes, before any work is done.
fn check_classes(args: &args::Fit, name: &str, classes: &[String], rows: usize, inputs: usize) -> Result<()> {
    ensure!(
        classes.len() >= 2,
        "--target: all rows of {name} are of one class ({}); there is nothing to tell apart",
        classes[0]
    );
    // More rows of each class than one on average, or it is a column of measurements.
    ensure!(
        classes.len() <= 1_000 && 2 * classes.len() <= rows,
        "--target: {name} has {} different values in {rows} rows, too many for classes",
        classes.len()
    );
    if let Some(width) = args.width {
        ensure!(
            width >= inputs,
            "--width {width}: the feature map cannot be narrower than the {inputs} inputs"
        );
    }
    Ok(())
}

/// Dimension of the network: that of the inputs, except for classifiers, whose feature map may have room to unfold.
fn width(args: &args::Fit, inputs: usize) -> usize {
    match args.model {
        ModelKind::Classifier => args.width.unwrap_or(inputs.max(LEAST_WIDTH)),
        _ => inputs,
    }
}

/// Rows with zeros after them.
fn padded(x: &[f64], columns: usize, width: usize) -> Vec<f64> {
    x.chunks_exact(columns)
        .flat_map(|row| {
            row.iter()
                .copied()
                .chain(std::iter::repeat_n(0.0, width - columns))
        })
        .collect()
}

fn layer_config(args: &args::Fit, prepared: &Prepared) -> MonLipConfig {
    MonLipConfig {
        activation: args.activation,
        general: args.general,
        seed: args.seed,
        ..MonLipConfig::new(width(args, prepared.inputs.len()), &args.hidden, prepared.bounds)
    }
}

fn net_config(args: &args::Fit, prepared: &Prepared) -> BiLipNetConfig {
    BiLipNetConfig {
        orthogonal: match args.householder {
            None => OrthogonalKind::Cayley,
            Some(count) => OrthogonalKind::Householder(count),
        },
        ..BiLipNetConfig::new(
            args.blocks.unwrap_or(DEFAULT_BLOCKS),
            layer_config(args, prepared),
        )
    }
}

/// The folder of checkpoints.
struct Folder {
    path: PathBuf,
    /// What a run must share with the one that it continues.
    print: String,
}

impl Folder {
    fn new(args: &args::Fit, table: &Table) -> Self {
        let mut name = args.output.as_os_str().to_owned();
        name.push(".checkpoints");
        Folder {
            path: PathBuf::from(name),
            print: fingerprint(args, table),
        }
    }

    /// Makes the folder, or finds that of the same run interrupted.
    fn open(&self, resume: bool) -> Result<()> {
        let shown = self.path.display();
        let file = self.path.join("run");
        if self.path.exists() {
            ensure!(
                resume,
                "{shown}: an interrupted run; go on with --resume, or remove the folder to start anew"
            );
            let known = std::fs::read_to_string(&file).unwrap_or_default();
            ensure!(
                known.trim() == self.print,
                "{shown}: the interrupted run had other data or settings; repeat them, or remove the folder to start anew"
            );
        } else {
            if resume {
                eprintln!("nothing to resume: {shown} is not there; starting anew");
            }
            std::fs::create_dir_all(&self.path).with_context(|| shown.to_string())?;
            write_file(&file, self.print.as_bytes())?;
        }
        Ok(())
    }

    fn remove(&self) {
        // What cannot be removed is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A checksum of the data and of all settings that matter to a run.
fn fingerprint(args: &args::Fit, table: &Table) -> String {
    // What must be the same for a run to go on; where it writes its figures need not be.
    let mut settings = format!("{args:?}").replace(&format!("resume: {}", args.resume), "");
    settings = settings.replace(&format!("metrics: {:?}", args.metrics), "");
    let mut hash = crc32fast::Hasher::new();
    hash.update(settings.as_bytes());
    hash.update(&table.fingerprint());
    format!("{:08x}", hash.finalize())
}
/// Training and freezing, on whichever device.
struct Work<'a> {
    args: &'a args::Fit,
    prepared: &'a Prepared,
    folder: &'a Folder,
}

impl OnDevice for Work<'_> {
    type Output = Result<Fitted>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Fitted> {
        train_model::<B>(self.args, self.prepared, self.folder, device)
    }
}

fn train_model<B: AutodiffBackend>(
    args: &args::Fit,
    prepared: &Prepared,
    folder: &Folder,
    device: &B::Device,
) -> Result<Fitted> {
    Ok(match (args.model, prepared.parameters.is_empty()) {
        (ModelKind::Monlip, _) => {
            let model = layer_config(args, prepared).init::<B>(device)?;
            let trained = fit(model, args, prepared, folder)?;
            store(
                args.precision,
                &trained,
                |m| freeze_monlip::<_, f32>(m, prepared),
                |m| freeze_monlip::<_, f64>(m, prepared),
            )?
        }
        (ModelKind::Bilipnet, true) => {
            let model = net_config(args, prepared).init::<B>(device)?;
            let trained = fit(model, args, prepared, folder)?;
            store(
                args.precision,
                &trained,
                |m| Ok(Network::BiLipNet(scaled::<f32>(m.freeze()?, prepared, false)?)),
                |m| Ok(Network::BiLipNet(scaled::<f64>(m.freeze()?, prepared, false)?)),
            )?
        }
        (ModelKind::Plnet, true) => {
            let net = net_config(args, prepared).init::<B>(device)?;
            let model = match &args.minimum {
                None => PlNet::new(net),
                Some(x) => PlNet::with_minimizer(net, prepared.x.apply(x))?,
            };
            let trained = fit(model, args, prepared, folder)?;
            let minimum = args.minimum.as_deref();
            store(
                args.precision,
                &trained,
                |m| freeze_plnet::<_, f32>(m, prepared, minimum),
                |m| freeze_plnet::<_, f64>(m, prepared, minimum),
            )?
        }
        (ModelKind::Classifier, _) => {
            let inputs = prepared.inputs.len();
            let config = GpConfig {
                features: args.features.unwrap_or(DEFAULT_FEATURES),
                length_scale: args.length_scale.unwrap_or((inputs as f64 / 2.0).sqrt()),
                orthogonal: true,
                seed: args.seed,
                ..GpConfig::new(width(args, inputs), prepared.classes.len())
            };
            let net = net_config(args, prepared).init::<B>(device)?;
            let model = GpNet::new(net, config.init::<B>(device)?);
            let trained = fit(model, args, prepared, folder)?;
            store(
                args.precision,
                &trained,
                |m| freeze_classifier::<_, f32>(m, prepared),
                |m| freeze_classifier::<_, f64>(m, prepared),
            )?
        }
        (kind, false) => {
            let config = PartialConfig {
                net: net_config(args, prepared),
                parameters: prepared.parameters.len(),
                orthogonal_bias: vec![64, 128],
                hidden_bias: vec![64, 128],
            };
            let net = config.init::<B>(device)?;
            if kind == ModelKind::Plnet {
                let trained = fit(PartialPlNet::new(net), args, prepared, folder)?;
                store(
                    args.precision,
                    &trained,
                    |m| freeze_partial_plnet::<_, f32>(m, prepared),
                    |m| freeze_partial_plnet::<_, f64>(m, prepared),
                )?
            } else {
                let trained = fit(net, args, prepared, folder)?;
                store(
                    args.precision,
                    &trained,
                    |m| {
                        let net = partial::<f32>(&m.freeze()?, prepared, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                    |m| {
                        let net = partial::<f64>(&m.freeze()?, prepared, false)?;
                        Ok(Network::PartialBiLipNet(net))
                    },
                )?
            }
        }
    })
}

fn fit<B, M>(model: M, args: &args::Fit, prepared: &Prepared, folder: &Folder) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    let settings = TrainConfig {
        epochs: args.epochs,
        batch: args.batch,
        schedule: Schedule::one_cycle(args.lr, (0.25, 0.7, 10.0, 100.0)),
        optimizer: match args.optimizer {
            OptimizerName::Adam => OptimizerKind::Adam(Adam {
                decay: args.decay,
                ..Adam::default()
            }),
            OptimizerName::Sgd => OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
        },
        seed: args.seed,
        patience: args.patience,
        clip: args.clip,
        checkpoints: Some(folder.path.clone()),
        checkpoint_every: (args.epochs / 50).clamp(1, 20),
        metrics: args.metrics.clone(),
        progress: true,
        loss: match args.model {
            ModelKind::Classifier => Loss::CrossEntropy,
            _ => Loss::HalfMse,
        },
        ..Default::default()
    };
    folder.open(args.resume)?;
    // A second handler cannot be set; the first says the same.
    let _ = ctrlc::set_handler(|| {
        eprintln!("\ninterrupted; the same command with --resume goes on from the last checkpoint");
        std::process::exit(130);
    });
    let trained = train::<B, M>(model, &prepared.training, prepared.validation.as_ref(), &settings);
    let trained = match trained {
        Ok(trained) => trained,
        Err(error) => {
            // A run that diverged would do so again; one that the machine stopped can go on.
            if !matches!(
                error,
                bilip_burn::Error::Io { .. } | bilip_burn::Error::Checkpoint { .. }
            ) {
                folder.remove();
            }
            return Err(error.into());
        }
    };
    for warning in &trained.warnings {
        eprintln!("warning: {warning}");
    }
    if let Some(epoch) = trained.resumed_from {
        eprintln!("resumed after epoch {epoch}");
    }
    Ok(trained)
}

fn store<B: AutodiffBackend, M: burn::module::Module<B>>(
    digits: Digits,
    trained: &Trained<M>,
    single: impl Fn(&M) -> Result<Network<f32>>,
    double: impl Fn(&M) -> Result<Network<f64>>,
) -> Result<Fitted> {
    let model = match digits {
        Digits::F32 => Model::from(single(&trained.model)?),
        Digits::F64 => Model::from(double(&trained.model)?),
    };
    let last = trained.history.last();
    Ok(Fitted {
        model,
        parameters: trained.model.num_params(),
        epochs: trained.history.len(),
        stopped_early: trained.stopped_early,
        train_loss: last.map_or(f64::NAN, |e| e.train_loss),
        validation_loss: last.and_then(|e| e.validation_loss),
    })
}

/// A network in the user's units: `√s·G` under a potential of scale s, `s·G + m` otherwise.
fn scaled<T: Real>(net: BiLipNet<T>, prepared: &Prepared, potential: bool) -> Result<BiLipNet<T>> {
    let output = if potential {
        let n = prepared.inputs.len();
        let root = Standard {
            center: vec![0.0; n],
            scale: vec![prepared.y.scale[0].sqrt(); n],
        };
        root.backward()?
    } else {
        prepared.y.backward()?
    };
    Ok(net.with_scalings(prepared.x.forward()?, output)?)
}

fn freeze_monlip<B: AutodiffBackend, T: Real>(model: &MonLip<B>, prepared: &Prepared) -> Result<Network<T>> {
    let (x, y) = (&prepared.x, &prepared.y);
    let free = model.free()?;
    let at = |center: &[f64]| free.in_variables((center, x.scale[0]), (&y.center, y.scale[0]));
    let layer = bilip::MonLip::<T>::from_free(&at(&x.center)?)?;
    // The centre meets the weights as they are stored: with those before rounding, a large one would not cancel.
    let centered = at(&vec![0.0; x.center.len()])?;
    let gain = (2.0 * layer.design().gap()).sqrt();
    let s = layer.s();
    let bias = (0..s.nrows())
        .map(|i| {
            let moved: f64 = (0..s.ncols()).map(|j| s[(i, j)].as_f64() * x.center[j]).sum();
            T::round_from(centered.hidden_bias[i] - gain * moved)
        })
        .collect();
    Ok(Network::MonLip(layer.with_hidden_bias(bias)?))
}

/// A classifier in the user's units, its posterior that of the numbers as they are stored.
fn freeze_classifier<B: AutodiffBackend, T: Real>(
    model: &GpNet<B, bilip_burn::BiLipNet<B>>,
    prepared: &Prepared,
) -> Result<Network<T>> {
    let net = model.net().freeze::<T>()?;
    let (inputs, width) = (prepared.inputs.len(), net.dim());
    // What pads the inputs is zero before and after, and takes a factor that is there already.
    let mut padded_x = prepared.x.clone();
    padded_x.center.resize(width, 0.0);
    padded_x.scale.resize(width, prepared.x.scale[0]);
    let net = net.with_scalings(padded_x.forward()?, None)?;
    let rows: Vec<T> = padded(&prepared.raw[0][0], inputs, width)
        .iter()
        .map(|v| T::round_from(*v))
        .collect();
    let h: Vec<f64> = net.forward(&rows)?.iter().map(|v| v.as_f64()).collect();
    let head = model
        .head()
        .posterior(&h, Loss::CrossEntropy, RIDGE, Accumulation::Exact)?;
    let factor = bilip::Classifier::<T>::FACTOR;
    Ok(Network::Classifier(bilip::Classifier::new(
        net, inputs, head, factor,
    )?))
}

/// The offset of a potential in the user's units.
fn offset(standardized: f64, prepared: &Prepared) -> f64 {
    prepared.y.scale[0] * standardized + prepared.y.center[0]
}

fn freeze_plnet<B: AutodiffBackend, T: Real>(
    model: &PlNet<B>,
    prepared: &Prepared,
    minimum: Option<&[f64]>,
) -> Result<Network<T>> {
    let frozen = model.freeze::<T>()?;
    let net = scaled(frozen.net().clone(), prepared, true)?;
    let offset = offset(frozen.offset(), prepared);
    Ok(Network::PlNet(match minimum {
        None => bilip::PlNet::new(net, offset)?,
        Some(x) => bilip::PlNet::with_minimizer(net, offset, x.iter().map(|v| T::round_from(*v)).collect())?,
    }))
}

/// A partial network in the user's units; the scale of p goes into the first layers of the bias networks.
fn partial<T: Real>(
    frozen: &bilip::PartialBiLipNet<T>,
    prepared: &Prepared,
    potential: bool,
) -> Result<bilip::PartialBiLipNet<T>> {
    let fold = |mlps: &[Mlp<T>]| {
        mlps.iter()
            .map(|mlp| {
                let mut layers = mlp.convert::<f64>().layers().to_vec();
                if let Some((weight, bias)) = layers.first_mut() {
                    let (center, scale) = (&prepared.p.center, &prepared.p.scale);
                    let folded =
                        Mat::from_fn(weight.nrows(), weight.ncols(), |i, j| weight[(i, j)] / scale[j]);
                    for (i, b) in bias.iter_mut().enumerate() {
                        *b -= (0..center.len()).map(|j| folded[(i, j)] * center[j]).sum::<f64>();
                    }
                    *weight = folded;
                }
                Ok(Mlp::new(layers)?.convert())
            })
            .collect::<Result<Vec<_>>>()
    };
    let net = scaled(frozen.net().clone(), prepared, potential)?;
    Ok(bilip::PartialBiLipNet::new(
        net,
        fold(frozen.orthogonal_bias())?,
        fold(frozen.hidden_bias())?,
    )?)
}

fn freeze_partial_plnet<B: AutodiffBackend, T: Real>(
    model: &PartialPlNet<B>,
    prepared: &Prepared,
) -> Result<Network<T>> {
    let frozen = model.freeze::<T>()?;
    let net = partial(frozen.net(), prepared, true)?;
    Ok(Network::PartialPlNet(bilip::PartialPlNet::new(
        net,
        offset(frozen.offset(), prepared),
    )?))
}

/// Writes into the model where it came from.
fn remember(fitted: &mut Fitted, args: &args::Fit, prepared: &Prepared) -> Result<()> {
    let data = args.data.file_name().unwrap_or(args.data.as_os_str());
    let mut note = |key: &str, value: String| fitted.model.provenance.insert(key.to_string(), value);
    note("inputs", serde_json::to_string(&prepared.inputs)?);
    note("targets", serde_json::to_string(&prepared.targets)?);
    if !prepared.parameters.is_empty() {
        note("parameters", serde_json::to_string(&prepared.parameters)?);
    }
    if !prepared.classes.is_empty() {
        note("classes", serde_json::to_string(&prepared.classes)?);
    }
    note("input_ranges", serde_json::to_string(&prepared.ranges)?);
    note("data", data.to_string_lossy().into_owned());
    note(
        "program",
        concat!("bilip ", env!("CARGO_PKG_VERSION")).to_string(),
    );
    note("seed", args.seed.to_string());
    note("epochs", fitted.epochs.to_string());
    note("train_loss_standardized", format!("{:e}", fitted.train_loss));
    if let Some(loss) = fitted.validation_loss {
        note("validation_loss_standardized", format!("{loss:e}"));
    }
    if fitted.stopped_early {
        note("stopped_early", "true".into());
    }
    Ok(())
}

/// Root mean square of the error and share of the variance explained of every target, in the user's units.
fn quality(model: &Loaded, [x, p, y]: &[Vec<f64>; 3]) -> Result<Vec<(f64, f64)>> {
    if y.is_empty() {
        return Ok(Vec::new());
    }
    let columns = model.targets().len();
    let predicted = model.evaluate(x, p)?;
    let rows = y.len() as f64 / columns as f64;
    Ok((0..columns)
        .map(|k| {
            let column = || y.iter().skip(k).step_by(columns);
            let mean = column().sum::<f64>() / rows;
            let spread: f64 = column().map(|v| (v - mean).powi(2)).sum();
            let square: f64 = column()
                .zip(predicted.iter().skip(k).step_by(columns))
                .map(|(a, b)| (a - b).powi(2))
                .sum();
            (
                (square / rows).sqrt(),
                1.0 - square / spread.max(f64::MIN_POSITIVE),
            )
        })
        .collect())
}

fn report(
    args: &args::Fit,
    model: &Loaded,
    prepared: &Prepared,
    parameters: usize,
    seconds: f64,
) -> Result<Outcome> {
    if !prepared.classes.is_empty() {
        return report_classes(args, model, prepared, parameters, seconds);
    }
    let training = quality(model, &prepared.raw[0])?;
    let validation = quality(model, &prepared.raw[1])?;
    let certificate = model.model.certificate();
    let minimum = if model.is_potential() && model.parameters() == 0 {
        // A tolerance that the size of the inputs makes sensible.
        let size = prepared.x.scale.iter().copied().fold(0.0, f64::max);
        let options = InverseOptions {
            tolerance: 1e-8 * size.max(1.0),
            ..Default::default()
        };
        model.minimize(&[], &options)?.pop()
    } else {
        None
    };
    if args.json {
        let summary = json!({
            "kind": model.kind(),
            "output": args.output,
            "rows": prepared.training.rows(),
            "held_out_rows": prepared.validation.as_ref().map_or(0, |t| t.rows()),
            "parameters": parameters,
            "seconds": seconds,
            "targets": model.targets(),
            "train_rmse": training.iter().map(|q| q.0).collect::<Vec<_>>(),
            "validation_rmse": validation.iter().map(|q| q.0).collect::<Vec<_>>(),
            "validation_r2": validation.iter().map(|q| q.1).collect::<Vec<_>>(),
            "certificate": certificate,
            "minimum": minimum,
        });
        print(&(serde_json::to_string_pretty(&summary)? + "\n"))?;
    } else {
        let mut text = format!(
            "{} of {} inputs, {parameters} parameters, fitted to {} rows in {seconds:.1} s\n",
            model.kind(),
            model.n(),
            prepared.training.rows()
        );
        for (k, (name, (rmse, _))) in model.targets().iter().zip(&training).enumerate() {
            text += &format!("error      {name}: {} rms on these rows", short(*rmse));
            if let Some((rmse, r2)) = validation.get(k) {
                text += &format!(", {} on those held out (R2 {r2:.5})", short(*rmse));
            }
            text += "\n";
        }
        text += &bounds_line(&certificate);
        if let Some(pl) = certificate.pl_constant() {
            text += &format!("           Polyak-Lojasiewicz constant {}\n", apply::down(pl, 4));
        }
        if let Some(minimum) = &minimum {
            text += &apply::describe(model, minimum);
        }
        text += &format!("written to {}\n", args.output.display());
        print(&text)?;
    }
    Ok(match certificate.holds() {
        true => Outcome::Done,
        false => Outcome::NotMet,
    })
}

fn bounds_line(certificate: &Certificate) -> String {
    format!(
        "bounds     mu = {}, nu = {} in your units (distortion {}): {}\n",
        apply::down(certificate.mu(), 4),
        apply::up(certificate.nu(), 4),
        short(certificate.nu() / certificate.mu()),
        if certificate.holds() {
            "proved"
        } else {
            "NOT PROVED"
        }
    )
}

/// How good a classifier is on rows, by name; empty without rows.
fn class_quality(
    model: &Loaded,
    [x, _, y]: &[Vec<f64>; 3],
    classes: usize,
) -> Result<Vec<(&'static str, f64)>> {
    if y.is_empty() {
        return Ok(Vec::new());
    }
    let labels: Vec<usize> = y.iter().map(|v| *v as usize).collect();
    let columns = classes + 1;
    let values = model.evaluate(x, &[])?;
    let p: Vec<f64> = values
        .chunks_exact(columns)
        .flat_map(|row| &row[..classes])
        .copied()
        .collect();
    let uncertainty = values.iter().skip(classes).step_by(columns).sum::<f64>() / y.len() as f64;
    Ok(vec![
        ("accuracy", metrics::accuracy(&p, &labels)?),
        ("nll", metrics::negative_log_likelihood(&p, &labels)?),
        ("ece", metrics::calibration_error(&p, &labels, BINS)?),
        ("uncertainty", uncertainty),
    ])
}

fn report_classes(
    args: &args::Fit,
    model: &Loaded,
    prepared: &Prepared,
    parameters: usize,
    seconds: f64,
) -> Result<Outcome> {
    let count = prepared.classes.len();
    let training = class_quality(model, &prepared.raw[0], count)?;
    let validation = class_quality(model, &prepared.raw[1], count)?;
    let certificate = model.model.certificate();
    if args.json {
        let named = |q: &[(&str, f64)]| -> serde_json::Map<String, serde_json::Value> {
            q.iter().map(|(k, v)| (k.to_string(), json!(v))).collect()
        };
        let summary = json!({
            "kind": model.kind(),
            "output": args.output,
            "rows": prepared.training.rows(),
            "held_out_rows": prepared.validation.as_ref().map_or(0, |t| t.rows()),
            "parameters": parameters,
            "seconds": seconds,
            "classes": prepared.classes,
            "train": named(&training),
            "validation": named(&validation),
            "certificate": certificate,
        });
        print(&(serde_json::to_string_pretty(&summary)? + "\n"))?;
    } else {
        let mut text = format!(
            "classifier of {} inputs, {count} classes, {parameters} parameters, fitted to {} rows in {seconds:.1} s\n",
            model.n(),
            prepared.training.rows()
        );
        for (which, quality) in [("these rows", &training), ("held out", &validation)] {
            if let [(_, accuracy), (_, nll), (_, ece), (_, uncertainty)] = quality[..] {
                text += &format!(
                    "{which:10} accuracy {accuracy:.4}, negative log likelihood {nll:.4}, calibration error {ece:.4}, mean uncertainty {uncertainty:.3}\n"
                );
            }
        }
        text += &bounds_line(&certificate);
        text += &format!("written to {}\n", args.output.display());
        print(&text)?;
    }
    Ok(match certificate.holds() {
        true => Outcome::Done,
        false => Outcome::NotMet,
    })
}

/// A number with five significant digits.
fn short(value: f64) -> String {
    let text = format!("{value:.4e}");
    text.parse::<f64>().map_or(text, |v| v.to_string())
}
