//! The experiments, one file or folder each.

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
use crate::results::JobResult;
use crate::run::{Definition, Experiment, Job, Settings};

/// All of them, in the order in which they build on each other.
static ALL: [&dyn Definition; 9] = [
    &step::Step,
    &rosenbrock::PLAIN,
    &rosenbrock::SINE,
    &parametric::Parametric,
    &rosenbrock20::Rosenbrock20,
    &solver::Solver,
    &inverse::Inverse,
    &moons::Moons,
    &cifar10::Cifar10,
];

/// Names of all experiments, in the order in which they build on each other.
pub const EXPERIMENTS: [&str; 9] = [
    "step",
    "rosenbrock",
    "rosenbrock-sine",
    "parametric",
    "rosenbrock20",
    "solver",
    "inverse",
    "moons",
    "cifar10",
];

/// An experiment by name.
///
/// # Errors
/// When there is none of that name, or its configuration cannot be used.
pub fn experiment(name: &str, settings: Settings) -> Result<Experiment> {
    let definition = (ALL.into_iter().find(|d| d.name() == name))
        .ok_or_else(|| Error::config(name, format!("choose one of {}", EXPERIMENTS.join(", "))))?;
    Experiment::new(definition, settings)
}

/// What the head of a Gaussian process sees of rows.
type Hidden = Box<dyn Fn(&[f64]) -> Vec<f64>>;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_found_by_its_name() {
        assert_eq!(ALL.map(|d| d.name()), EXPERIMENTS);
    }
}
