//! `fit`: from a table to a certified model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bilip::Precision;
use bilip_fit::{Error, FitSettings, ModelKind, Optimizer};

use crate::args::{self, Digits, OptimizerName};
use crate::fit_report::report;
use crate::table::{self, check_file};
use crate::{Outcome, args::ModelName};

pub fn run(args: &args::Fit) -> Result<Outcome> {
    let settings = args.table.apply(settings(args))?;
    settings.device.check()?;
    settings.check().map_err(as_option)?;
    let inputs: Vec<&Path> = vec![&args.data];
    check_file(&args.output, &inputs)?;
    if let Some(metrics) = &args.metrics {
        check_file(metrics, &[&args.data, &args.output])?;
    }
    let table = table::read(&args.data)?;
    // A second handler cannot be set; the first says the same.
    let _ = ctrlc::set_handler(|| {
        eprintln!("\ninterrupted; the same command with --resume goes on from the last checkpoint");
        std::process::exit(130);
    });
    let clock = Instant::now();
    let mut fit = bilip_fit::fit(&table, &settings).map_err(as_option)?;
    let seconds = clock.elapsed().as_secs_f64();
    for warning in &fit.warnings {
        eprintln!("warning: {warning}");
    }
    if let Some(epoch) = fit.resumed_from {
        eprintln!("resumed after epoch {epoch}");
    }
    fit.save(&args.output)
        .with_context(|| args.output.display().to_string())?;
    report(args, &fit, seconds)
}

/// An error of a setting as one of the option that gives it.
fn as_option(error: Error) -> anyhow::Error {
    match error {
        Error::Setting { name, value, reason } => {
            let option = name.replace('_', "-").replace(", ", ", --");
            let value = value.map(|v| format!(" {v}")).unwrap_or_default();
            anyhow!("--{option}{value}: {reason}")
        }
        other => other.into(),
    }
}

fn settings(args: &args::Fit) -> FitSettings {
    let mut folder = args.output.as_os_str().to_owned();
    folder.push(".checkpoints");
    FitSettings {
        target: args.target.clone(),
        inputs: args.inputs.clone(),
        params: args.params.clone(),
        mu: args.mu,
        nu: args.nu,
        tau: args.tau,
        hidden: args.hidden.clone(),
        blocks: args.blocks,
        activation: args.activation,
        householder: args.householder,
        general: args.general,
        minimum: args.minimum.clone(),
        constant_offset: args.constant_offset,
        width: args.width,
        features: args.features,
        length_scale: args.length_scale,
        in_units: args.in_units,
        no_standardize: args.no_standardize,
        quick: args.quick,
        budget: args.budget,
        epochs: args.epochs,
        batch: args.batch,
        lr: args.lr,
        optimizer: match args.optimizer {
            OptimizerName::Adam => Optimizer::Adam,
            OptimizerName::Sgd => Optimizer::Sgd,
        },
        decay: args.decay,
        clip: args.clip,
        validation: args.validation,
        patience: args.patience,
        seed: args.seed,
        precision: match args.precision {
            Digits::F32 => Precision::F32,
            Digits::F64 => Precision::F64,
        },
        device: args.device,
        checkpoints: Some((PathBuf::from(folder), print(args))),
        resume: args.resume,
        metrics: args.metrics.clone(),
        progress: true,
        ..FitSettings::new(
            match args.model {
                ModelName::Plnet => ModelKind::PlNet,
                ModelName::Bilipnet => ModelKind::BiLipNet,
                ModelName::Monlip => ModelKind::MonLip,
                ModelName::Classifier => ModelKind::Classifier,
            },
            &[],
        )
    }
}

/// The settings of a plain fit in the words of version 0.1.0, whose interrupted runs remember them
/// so: its options, with their defaults.
mod remembered {
    use std::path::PathBuf;

    use bilip::Activation;
    use bilip_burn::Device;

    use crate::args::{self, Digits, ModelName, OptimizerName};

    #[derive(Debug)]
    #[expect(dead_code, reason = "read by Debug alone")]
    pub struct Fit<'a> {
        data: &'a PathBuf,
        target: &'a Vec<String>,
        inputs: &'a Option<Vec<String>>,
        params: &'a Vec<String>,
        model: ModelName,
        mu: Option<f64>,
        nu: Option<f64>,
        tau: Option<f64>,
        hidden: Vec<usize>,
        blocks: Option<usize>,
        activation: Activation,
        householder: Option<usize>,
        general: bool,
        minimum: &'a Option<Vec<f64>>,
        width: Option<usize>,
        features: Option<usize>,
        length_scale: Option<f64>,
        per_column: bool,
        in_units: bool,
        no_standardize: bool,
        epochs: usize,
        batch: usize,
        lr: f64,
        optimizer: OptimizerName,
        decay: f64,
        clip: Option<f64>,
        validation: f64,
        patience: Option<usize>,
        seed: u64,
        precision: Digits,
        device: Device,
        json: bool,
        output: &'a PathBuf,
    }

    impl<'a> From<&'a args::Fit> for Fit<'a> {
        fn from(args: &'a args::Fit) -> Self {
            Fit {
                data: &args.data,
                target: &args.target,
                inputs: &args.inputs,
                params: &args.params,
                model: args.model,
                mu: args.mu,
                nu: args.nu,
                tau: args.tau,
                hidden: args.hidden.clone().unwrap_or(vec![64, 64]),
                blocks: args.blocks,
                activation: args.activation.unwrap_or(Activation::Relu),
                householder: args.householder,
                general: args.general,
                minimum: &args.minimum,
                width: args.width,
                features: args.features,
                length_scale: args.length_scale,
                per_column: args.per_column,
                in_units: args.in_units,
                no_standardize: args.no_standardize,
                epochs: args.epochs.unwrap_or(300),
                batch: args.batch.unwrap_or(100),
                lr: args.lr.unwrap_or(5e-3),
                optimizer: args.optimizer,
                decay: args.decay,
                clip: args.clip,
                validation: args.validation,
                patience: args.patience,
                seed: args.seed,
                precision: args.precision,
                device: args.device,
                json: args.json,
                output: &args.output,
            }
        }
    }
}

/// What must be the same for a run to go on; where it writes its figures need not be.
fn print(args: &args::Fit) -> String {
    let settings = format!("{:?}", remembered::Fit::from(args));
    // Two options that do not matter left their commas.
    let settings = settings.replace(", json: ", ", , , json: ");
    // Options that are newer, where they are used.
    let settings = settings + &args.table.given();
    // Without bounds, a run of version 0.1.0 had the settings of one of today.
    let given = args.mu.is_some() || args.nu.is_some() || args.tau.is_some();
    match given {
        true => settings,
        false => settings.replace(", in_units: false", ""),
    }
}
