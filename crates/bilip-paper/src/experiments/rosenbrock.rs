//! Surrogates of the Rosenbrock function in the plane, with and without a sine on top.

use std::collections::BTreeMap;

use bilip::{InverseOptions, Model, Network, Rng};

use super::{fit, half_mse, job_result};
use crate::config::Reference;
use crate::data;
use crate::error::Result;
use crate::files;
use crate::results::{ExperimentResult, JobResult, Summary};
use crate::run::{Definition, Experiment, Job};
use bilip_plot::{Figure, Mark, Panel, levels};

/// Points along the side of the pictures.
const SIDE: usize = 101;

/// A surface with one minimum, or with many.
pub(super) struct Rosenbrock {
    name: &'static str,
    title: &'static str,
    config: &'static str,
    function: fn(f64, f64) -> f64,
}

pub(super) static PLAIN: Rosenbrock = Rosenbrock {
    name: "rosenbrock",
    title: "The Rosenbrock function: a surrogate with one minimum",
    config: include_str!("../../configs/rosenbrock.toml"),
    function: data::rosenbrock,
};

pub(super) static SINE: Rosenbrock = Rosenbrock {
    name: "rosenbrock-sine",
    title: "Rosenbrock plus sine: one global among many local minima",
    config: include_str!("../../configs/rosenbrock-sine.toml"),
    function: data::rosenbrock_sine,
};

impl Definition for Rosenbrock {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn config(&self) -> Option<&'static str> {
        Some(self.config)
    }

    fn run(&self, experiment: &Experiment, job: &Job) -> Result<JobResult> {
        run(self.function, experiment, job)
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(self.function, experiment, result)
    }
}

fn run(f: fn(f64, f64) -> f64, experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let config = &experiment.config;
    let table = data::on_rectangle(f, config.rows, &mut Rng::new(2_000 + job.seed))?;
    let fitted = fit::model(experiment, job, &table)?;
    let train_loss = half_mse(&(fitted.predict)(table.inputs())?, table.targets());
    let grid = data::grid(f, config.test)?;
    let values = (fitted.predict)(grid.inputs())?;
    let worst = values
        .iter()
        .zip(grid.targets())
        .fold(0.0f64, |a, (v, w)| a.max((v - w).abs()));
    // The surrogate's minimum: computed where that can be, else the best point of the grid.
    let minimum = match &fitted.network {
        Some(Network::PlNet(net)) => {
            let file = experiment.model_file(job);
            if job.seed == 0 {
                if let Some(folder) = file.parent() {
                    let _ = std::fs::create_dir_all(folder);
                }
                Model::from(Network::PlNet(net.clone())).save(&file)?;
            }
            net.minimize(&InverseOptions::default())?.x
        }
        _ => {
            let best = (0..values.len()).fold(0, |b, k| if values[k] < values[b] { k } else { b });
            grid.inputs()[2 * best..2 * best + 2].to_vec()
        }
    };
    let (low, high) = fitted.measured_slopes(&[-2.0, -1.0], &[2.0, 3.0], 20_000, 7)?;
    let (mu, nu) = fitted.certified_pair();
    let metrics = [
        ("train_loss", train_loss),
        ("grid_loss", half_mse(&values, grid.targets())),
        ("max_error", worst),
        ("value_at_minimum", f(minimum[0], minimum[1])),
        ("slope_min", low),
        ("slope_max", high),
        ("certified_mu", mu),
        ("certified_nu", nu),
        ("tightness_nu", high / nu),
        ("tightness_mu", mu / low),
    ];
    let mut series = BTreeMap::new();
    if job.seed == 0 {
        let small = data::grid(f, SIDE)?;
        series.insert("surface".to_string(), (fitted.predict)(small.inputs())?);
        series.insert("minimum".to_string(), minimum);
    }
    Ok(job_result(job, fitted.parameters, &metrics, series))
}

fn finish(f: fn(f64, f64) -> f64, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let truth = data::grid(f, SIDE)?;
    let all = levels(truth.targets(), 14);
    let panel = |title: &str| Panel::new(title, "x", "y").x_range(-2.0, 2.0).y_range(-1.0, 3.0);
    let mut first = panel("true function");
    first.push(Mark::contours(truth.targets().to_vec(), SIDE, all.clone()));
    first.push(Mark::cross(1.0, 1.0, 1));
    let mut surfaces = vec![first];
    let mut errors = Vec::new();
    let shown: Vec<&JobResult> = result
        .runs
        .iter()
        .filter(|r| r.seed == 0 && r.series.contains_key("surface"))
        .collect();
    let error_levels: Vec<f64> = (0..12)
        .map(|k| 10f64.powf(-4.0 + 4.5 * k as f64 / 11.0))
        .collect();
    for run in &shown {
        let surface = &run.series["surface"];
        let mut fit = panel(&run.model);
        fit.push(Mark::contours(surface.clone(), SIDE, all.clone()));
        if let Some(x) = run.series.get("minimum") {
            fit.push(Mark::cross(x[0], x[1], 1));
        }
        surfaces.push(fit);
        let gap: Vec<f64> = surface
            .iter()
            .zip(truth.targets())
            .map(|(a, b)| (a - b).abs())
            .collect();
        let mut error = panel(&format!("{}: |error|", run.model));
        error.push(Mark::contours(gap, SIDE, error_levels.clone()));
        errors.push(error);
    }
    let out = &experiment.settings.out;
    files::write_figure(
        out,
        "surfaces",
        &Figure::new(surfaces).columns(4).panel_size(300.0, 270.0),
    )?;
    files::write_figure(
        out,
        "errors",
        &Figure::new(errors).columns(4).panel_size(300.0, 270.0),
    )?;
    result.figures.push((
        "surfaces".into(),
        "Contours of the function and of its surrogates, seed 0, all at the same levels; the cross is the minimum (of the certified models computed, of the others the best point of the grid).".into(),
    ));
    result.figures.push((
        "errors".into(),
        "Absolute errors of the surrogates, at levels from 1e-4 to 3 that are equally spaced in logarithm."
            .into(),
    ));
    random_search(experiment, result, f)?;
    result.notes.push(
        "The minimum of mlp, icnn and the residual networks is the best point of the test grid; that of the PL networks is computed, with its distance proved.".into(),
    );
    Ok(())
}

/// What the best of the training points would have given: the same budget of evaluations, without a
/// surrogate.
fn random_search(
    experiment: &Experiment,
    result: &mut ExperimentResult,
    f: fn(f64, f64) -> f64,
) -> Result<()> {
    let best: Vec<f64> = (0..experiment.settings.seeds as u64)
        .map(|seed| {
            let table = data::on_rectangle(f, experiment.config.rows, &mut Rng::new(2_000 + seed))?;
            Ok(table.targets().iter().copied().fold(f64::INFINITY, f64::min))
        })
        .collect::<Result<_>>()?;
    result.summary.insert(
        "random_search.value".into(),
        Summary::of(&best, Reference::default()),
    );
    Ok(())
}
