//! A partial PL network: for every parameter one minimum, and where it is.

use std::collections::BTreeMap;

use bilip::{BiLipschitz, InverseOptions, Rng};
use bilip_burn::Dataset;

use super::{fit, half_mse, job_result};
use crate::data;
use crate::error::Result;
use crate::files;
use crate::results::{ExperimentResult, JobResult};
use crate::run::{Definition, Experiment, Job};
use bilip_plot::{Figure, Mark, Panel, levels};

pub(super) struct Parametric;

impl Definition for Parametric {
    fn name(&self) -> &'static str {
        "parametric"
    }

    fn title(&self) -> &'static str {
        "A minimum that moves with a parameter"
    }

    fn config(&self) -> Option<&'static str> {
        Some(include_str!("../../configs/parametric.toml"))
    }

    fn run(&self, experiment: &Experiment, job: &Job) -> Result<JobResult> {
        run(experiment, job)
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

/// Parameters (a, b) of the pictures.
const SHOWN: [[f64; 2]; 6] = [
    [-0.8, 0.8],
    [0.0, 0.8],
    [0.8, 0.8],
    [-0.8, -0.4],
    [0.0, 0.0],
    [0.8, -0.4],
];
const SIDE: usize = 81;

fn grid() -> Vec<f64> {
    (0..SIDE * SIDE)
        .flat_map(|k| {
            let at = |i: usize, low: f64| low + 4.0 * i as f64 / (SIDE - 1) as f64;
            [at(k % SIDE, -2.0), at(k / SIDE, -1.0)]
        })
        .collect()
}

fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let config = &experiment.config;
    let table = data::parametric(config.rows, &mut Rng::new(3_000 + job.seed))?;
    let (net, parameters) = fit::partial(experiment, job, &table)?;
    let loss =
        |t: &Dataset| -> Result<f64> { Ok(half_mse(&net.value(t.inputs(), t.parameters())?, t.targets())) };
    let test = data::parametric(config.test, &mut Rng::new(3_999))?;
    // The true value at the computed minima, where the true minimum (a, ba²) is in the rectangle of
    // the data.
    let mut rng = Rng::new(3_998);
    let p: Vec<f64> = (0..400).map(|_| 2.0 * rng.uniform() - 1.0).collect();
    let minima = net.minimize(&p, &InverseOptions::default())?;
    let mut values = Vec::new();
    for (p, m) in p.chunks_exact(2).zip(&minima) {
        values.push(data::parametric_rosenbrock(m.x[0], m.x[1], p[0], p[1]));
    }
    let proved = minima.iter().map(|m| m.distance_bound).fold(0.0, f64::max);
    let certificate = net.verify();
    let (mu, nu) = certificate
        .proved()
        .bounds()
        .filter(|_| certificate.holds())
        .map_or((f64::NAN, f64::NAN), |b| (b.mu(), b.nu()));
    let metrics = [
        ("train_loss", loss(&table)?),
        ("test_loss", loss(&test)?),
        (
            "value_at_minimum",
            values.iter().sum::<f64>() / values.len() as f64,
        ),
        ("largest_proved_distance", proved),
        ("certified_mu", mu),
        ("certified_nu", nu),
        ("claimed_nu", net.net().net().claim().nu()),
    ];
    let mut series = BTreeMap::new();
    if job.seed == 0 {
        let x = grid();
        for (k, p) in SHOWN.iter().enumerate() {
            series.insert(format!("surface{k}"), net.value(&x, &p.repeat(x.len() / 2))?);
            let minimum = &net.minimize(p, &InverseOptions::default())?[0];
            series.insert(format!("minimum{k}"), minimum.x.clone());
        }
    }
    Ok(job_result(job, parameters, &metrics, series))
}

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let Some(run) = result.runs.iter().find(|r| r.seed == 0) else {
        return Ok(());
    };
    let x = grid();
    let mut panels = Vec::new();
    for (k, [a, b]) in SHOWN.into_iter().enumerate() {
        let truth: Vec<f64> = x
            .chunks_exact(2)
            .map(|r| data::parametric_rosenbrock(r[0], r[1], a, b))
            .collect();
        let all = levels(&truth, 14);
        for (what, values, minimum) in [
            ("true", Some(&truth), Some(vec![a, b * a * a])),
            (
                "surrogate",
                run.series.get(&format!("surface{k}")),
                run.series.get(&format!("minimum{k}")).cloned(),
            ),
        ] {
            let (Some(values), Some(minimum)) = (values, minimum) else {
                continue;
            };
            let mut panel = Panel::new(format!("{what}, p = ({a}, {b})"), "x", "y")
                .x_range(-2.0, 2.0)
                .y_range(-1.0, 3.0);
            panel.push(Mark::contours(values.clone(), SIDE, all.clone()));
            panel.push(Mark::cross(minimum[0], minimum[1], 1));
            panels.push(panel);
        }
    }
    files::write_figure(
        &experiment.settings.out,
        "contours",
        &Figure::new(panels).columns(4).panel_size(300.0, 270.0),
    )?;
    result.figures.push((
        "contours".into(),
        "The function and its surrogate at several parameters, seed 0; the cross is the true and the computed minimum.".into(),
    ));
    Ok(())
}
