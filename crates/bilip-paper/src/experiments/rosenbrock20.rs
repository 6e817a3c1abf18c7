//! Twenty dimensions, ten thousand points: train and test error against the distortion.

use std::collections::BTreeMap;

use bilip::{InverseOptions, Model, Network, Rng};
use bilip_burn::Dataset;

use super::{fit, half_mse, job_result};
use crate::config::{ModelFamily, Reference};
use crate::data;
use crate::error::Result;
use crate::files;
use crate::results::{ExperimentResult, JobResult, Summary};
use crate::run::{Definition, Experiment, Job};
use bilip_plot::{Figure, Mark, Panel};

pub(super) struct Rosenbrock20;

impl Definition for Rosenbrock20 {
    fn name(&self) -> &'static str {
        "rosenbrock20"
    }

    fn title(&self) -> &'static str {
        "Twenty dimensions: the distortion as a regularizer"
    }

    fn config(&self) -> Option<&'static str> {
        Some(include_str!("../../configs/rosenbrock20.toml"))
    }

    fn run(&self, experiment: &Experiment, job: &Job) -> Result<JobResult> {
        run(experiment, job)
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

const N: usize = 20;

fn training(experiment: &Experiment, seed: u64) -> Result<Dataset> {
    data::rosenbrock_n(N, experiment.config.rows, &mut Rng::new(4_000 + seed))
}

fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let table = training(experiment, job.seed)?;
    let fitted = fit::model(experiment, job, &table)?;
    let train_loss = half_mse(&(fitted.predict)(table.inputs())?, table.targets());
    // In blocks: the test set is large.
    let mut rng = Rng::new(4_999);
    let (mut left, mut sum) = (experiment.config.test, 0.0);
    while left > 0 {
        let rows = left.min(20_000);
        let block = data::rosenbrock_n(N, rows, &mut rng)?;
        sum += half_mse(&(fitted.predict)(block.inputs())?, block.targets()) * rows as f64;
        left -= rows;
    }
    let test_loss = sum / experiment.config.test as f64;
    let (low, high) = fitted.measured_slopes(&[-2.0; N], &[2.0; N], 20_000, 7)?;
    let (mu, nu) = fitted.certified_pair();
    let claimed = fitted.claimed.map_or((f64::NAN, f64::NAN), |b| (b.mu(), b.nu()));
    let mut value_at_minimum = f64::NAN;
    let mut distance = f64::NAN;
    if let Some(Network::PlNet(net)) = &fitted.network {
        let minimum = net.minimize(&InverseOptions::default())?;
        value_at_minimum = data::rosenbrock_mean(&minimum.x);
        distance = minimum.distance_bound;
        if job.seed == 0 {
            let file = experiment.model_file(job);
            if let Some(folder) = file.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            Model::from(Network::PlNet(net.clone())).save(&file)?;
        }
    }
    let metrics = [
        ("train_loss", train_loss),
        ("test_loss", test_loss),
        ("value_at_minimum", value_at_minimum),
        ("proved_distance", distance),
        ("mu", claimed.0),
        ("nu", claimed.1),
        ("certified_mu", mu),
        ("certified_nu", nu),
        ("slope_min", low),
        ("slope_max", high),
        ("tightness_nu", high / nu),
        ("tightness_mu", mu / low),
    ];
    Ok(job_result(job, fitted.parameters, &metrics, BTreeMap::new()))
}

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let mut panels = Vec::new();
    for (metric, title) in [("train_loss", "training loss"), ("test_loss", "test loss")] {
        let mut panel = Panel::new(title, "distortion τ", "½·MSE").x_log().y_log();
        for (k, (kind, other_rate, label)) in [
            (ModelFamily::Plnet, false, "PLNet"),
            (ModelFamily::IResnet, false, "i-ResNet"),
            (ModelFamily::IDensenet, false, "i-DenseNet"),
            (ModelFamily::Plnet, true, "PLNet, larger rate"),
        ]
        .into_iter()
        .enumerate()
        {
            let mut points: Vec<(f64, f64)> = experiment
                .config
                .models
                .iter()
                .filter(|m| m.kind == kind && m.peak.is_some() == other_rate)
                .filter_map(|m| {
                    let value = result.summary.get(&format!("{}.{metric}", m.name))?.mean;
                    Some((m.tau?, value))
                })
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if points.len() > 1 {
                panel.push(Mark::line(points.clone(), k));
            }
            if !points.is_empty() {
                panel.push(Mark::points(points, k).labeled(label));
            }
        }
        panels.push(panel);
    }
    files::write_figure(&experiment.settings.out, "distortion", &Figure::new(panels))?;
    result.figures.push((
        "distortion".into(),
        "Training and test loss against the distortion.".into(),
    ));
    let best: Vec<f64> = (0..experiment.settings.seeds as u64)
        .map(|seed| {
            let table = training(experiment, seed)?;
            Ok(table.targets().iter().copied().fold(f64::INFINITY, f64::min))
        })
        .collect::<Result<_>>()?;
    result.summary.insert(
        "random_search.value".into(),
        Summary::of(&best, Reference::default()),
    );
    result.notes.push(format!(
        "{} epochs; the distance of the computed minimum to the surrogate's true one is proved in every run.",
        experiment.config.epochs
    ));
    Ok(())
}
