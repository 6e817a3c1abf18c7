//! The experiments, one file each, and how they are found by name.

mod cifar10;
mod fit;
mod inverse;
mod moons;
mod parametric;
mod rosenbrock;
mod rosenbrock20;
mod solver;
mod step;

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::run::{Experiment, ExperimentResult, Job, JobResult};

/// What the head of a Gaussian process sees of rows.
type Hidden = Box<dyn Fn(&[f64]) -> Vec<f64>>;

/// The shipped configuration, of those that train.
pub(crate) fn shipped(name: &str) -> Option<&'static str> {
    Some(match name {
        "step" => include_str!("../../configs/step.toml"),
        "rosenbrock" => include_str!("../../configs/rosenbrock.toml"),
        "rosenbrock-sine" => include_str!("../../configs/rosenbrock-sine.toml"),
        "parametric" => include_str!("../../configs/parametric.toml"),
        "rosenbrock20" => include_str!("../../configs/rosenbrock20.toml"),
        "moons" => include_str!("../../configs/moons.toml"),
        "cifar10" => include_str!("../../configs/cifar10.toml"),
        _ => return None,
    })
}

pub(crate) fn title(name: &str) -> &'static str {
    match name {
        "step" => "A step function under bounds (0.1, 10): how tight are they?",
        "rosenbrock" => "The Rosenbrock function: a surrogate with one minimum",
        "rosenbrock-sine" => "Rosenbrock plus sine: one global among many local minima",
        "parametric" => "A minimum that moves with a parameter",
        "rosenbrock20" => "Twenty dimensions: the distortion as a regulariser",
        "moons" => "Two moons: knowing what is not known",
        "cifar10" => "CIFAR-10, clean and corrupted",
        "solver" => "Computing the minimum: gap against steps",
        _ => "Inverting a layer: error against steps",
    }
}

/// The name of a metric in the summary. Those of the only certified model of `step` stand alone.
pub(crate) fn metric_name(experiment: &str, model: &str, metric: &str) -> String {
    if experiment == "step" && model == "bilipnet" {
        metric.to_string()
    } else {
        format!("{model}.{metric}")
    }
}

pub(crate) fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    match experiment.name {
        "step" => step::run(experiment, job),
        "rosenbrock" | "rosenbrock-sine" => rosenbrock::run(experiment, job),
        "parametric" => parametric::run(experiment, job),
        "rosenbrock20" => rosenbrock20::run(experiment, job),
        "moons" => moons::run(experiment, job),
        "cifar10" => cifar10::run(experiment, job),
        other => Err(Error::config(other, "has no jobs")),
    }
}

/// Pictures and what else is computed from all runs.
pub(crate) fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    match experiment.name {
        "step" => step::finish(experiment, result),
        "rosenbrock" | "rosenbrock-sine" => rosenbrock::finish(experiment, result),
        "parametric" => parametric::finish(experiment, result),
        "rosenbrock20" => rosenbrock20::finish(experiment, result),
        "moons" => moons::finish(experiment, result),
        "cifar10" => cifar10::finish(experiment, result),
        "solver" => solver::finish(experiment, result),
        _ => inverse::finish(experiment, result),
    }
}

/// A result that is still without its time.
fn job_result(
    job: &Job,
    parameters: usize,
    metrics: &[(impl AsRef<str>, f64)],
    series: BTreeMap<String, Vec<f64>>,
) -> JobResult {
    JobResult {
        model: job.model.name.clone(),
        seed: job.seed,
        metrics: metrics
            .iter()
            .filter(|(_, v)| v.is_finite())
            .map(|(k, v)| (k.as_ref().to_string(), *v))
            .collect(),
        series,
        parameters,
        seconds: 0.0,
        machine: String::new(),
    }
}

/// `½·mean squared error`.
fn half_mse(found: &[f64], wanted: &[f64]) -> f64 {
    let sum: f64 = found.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
    0.5 * sum / wanted.len().max(1) as f64
}
