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
    let settings = settings(args);
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

/// What must be the same for a run to go on; where it writes its figures need not be.
fn print(args: &args::Fit) -> String {
    let settings = format!("{args:?}").replace(&format!("resume: {}", args.resume), "");
    let settings = settings.replace(&format!("metrics: {:?}", args.metrics), "");
    // Whether the model has an offset network is for the run to say.
    let settings = settings.replace(&format!("constant_offset: {}, ", args.constant_offset), "");
    // Without bounds, a run of version 0.1.0 had the settings of one of today.
    let given = args.mu.is_some() || args.nu.is_some() || args.tau.is_some();
    match given {
        true => settings,
        false => settings.replace(", in_units: false", ""),
    }
}
