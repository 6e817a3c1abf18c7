//! From a table and the options to rows in standardised variables and the settings of networks.

use anyhow::{Context, Result, ensure};
use bilip::{Bounds, Rng};
use bilip_burn::{BiLipNetConfig, BoundsMode, MonLipConfig, OrthogonalKind, data};

use crate::args::{self, ModelKind};
use crate::standardize::Standard;
use crate::table::Table;

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

/// The least width of a classifier that nothing is said of.
const LEAST_WIDTH: usize = 8;

/// What the table gives, in standardised variables.
pub(super) struct Prepared {
    pub inputs: Vec<String>,
    pub parameters: Vec<String>,
    pub targets: Vec<String>,
    pub x: Standard,
    pub p: Standard,
    pub y: Standard,
    pub bounds: BoundsMode,
    pub ranges: Vec<(f64, f64)>,
    pub training: data::Table,
    pub validation: Option<data::Table>,
    /// The names of the classes, for a classifier.
    pub classes: Vec<String>,
    /// Rows of training and validation in the user's units: x, p, y.
    pub raw: [[Vec<f64>; 3]; 2],
}

pub(super) fn check_sizes(args: &args::Fit) -> Result<()> {
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

pub(super) fn check_parameters(args: &args::Fit, n: usize) -> Result<()> {
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

pub(super) fn prepare(args: &args::Fit, table: &Table) -> Result<Prepared> {
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
pub(super) fn width(args: &args::Fit, inputs: usize) -> usize {
    match args.model {
        ModelKind::Classifier => args.width.unwrap_or(inputs.max(LEAST_WIDTH)),
        _ => inputs,
    }
}

/// Rows with zeros after them.
pub(super) fn padded(x: &[f64], columns: usize, width: usize) -> Vec<f64> {
    x.chunks_exact(columns)
        .flat_map(|row| {
            row.iter()
                .copied()
                .chain(std::iter::repeat_n(0.0, width - columns))
        })
        .collect()
}

pub(super) fn layer_config(args: &args::Fit, prepared: &Prepared) -> MonLipConfig {
    MonLipConfig {
        activation: args.activation,
        general: args.general,
        seed: args.seed,
        ..MonLipConfig::new(width(args, prepared.inputs.len()), &args.hidden, prepared.bounds)
    }
}

pub(super) fn net_config(args: &args::Fit, prepared: &Prepared) -> BiLipNetConfig {
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
