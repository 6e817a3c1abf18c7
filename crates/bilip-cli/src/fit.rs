//! `fit`: from a table to a certified model.

mod folder;
mod freeze;
mod prepare;
mod report;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use bilip::{Model, Network};
use bilip_burn::{
    Adam, GpConfig, GpNet, Loss, OnDevice, OptimizerKind, PartialConfig, PartialPlNet, PlNet, Predict,
    Schedule, TrainConfig, Trained, train,
};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;

use crate::Outcome;
use crate::args::{self, Digits, ModelKind, OptimizerName};
use crate::model::Loaded;
use crate::table::{Table, check_file};
use folder::Folder;
use freeze::{freeze_classifier, freeze_monlip, freeze_partial_plnet, freeze_plnet, partial, scaled};
use prepare::{Prepared, check_parameters, check_sizes, layer_config, net_config, prepare, width};
use report::report;

/// Random features of a classifier's process when nothing is said of them.
const DEFAULT_FEATURES: usize = 1_024;

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

fn store<M>(
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
        parameters: trained.parameters,
        epochs: trained.history.len(),
        stopped_early: trained.stopped_early,
        train_loss: last.map_or(f64::NAN, |e| e.train_loss),
        validation_loss: last.and_then(|e| e.validation_loss),
    })
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
