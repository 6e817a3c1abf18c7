//! Computing the minimum of the trained 20-dimensional surrogates: gap against steps, and against
//! time.

use std::time::Instant;

use bilip::{
    BiLipschitz, DavisYin, DouglasRachford, ForwardStep, GradientMethod, InverseOptions, Method, Model,
    Network, Newton, PlNet, Rng, Stored,
};

use crate::config::Reference;
use crate::error::{Error, Result};
use crate::files;
use crate::results::{ExperimentResult, Summary};
use crate::run::{Definition, Experiment};
use bilip_plot::{Figure, Mark, Panel};

pub(super) struct Solver;

impl Definition for Solver {
    fn name(&self) -> &'static str {
        "solver"
    }

    fn title(&self) -> &'static str {
        "Computing the minimum: gap against steps"
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

const STEPS: [usize; 18] = [
    1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1_200, 2_000, 3_000,
];
/// What counts as arrived.
const GAP: f64 = 1e-10;

fn load(experiment: &Experiment, tau: usize) -> Result<PlNet<f64>> {
    let folder = experiment
        .settings
        .out
        .parent()
        .unwrap_or(std::path::Path::new("."))
        .join("rosenbrock20/models");
    let path = folder.join(format!("plnet_{tau}_-seed0.safetensors"));
    let quick = if experiment.settings.quick { " --quick" } else { "" };
    let model = Model::load(&path).map_err(|e| {
        Error::config(
            "solver",
            format!(
                "{e}; this is what is minimized here: `bilip repro rosenbrock20{quick} --only \"plnet({tau})\" --seeds 1 --out FOLDER/rosenbrock20` trains it, then `bilip repro solver{quick} --out FOLDER/solver`"
            ),
        )
    })?;
    match model.network {
        Stored::F64(Network::PlNet(net)) => Ok(net),
        _ => Err(Error::config(path.display().to_string(), "is not a PLNet in f64")),
    }
}

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let mut panels = Vec::new();
    let last = if experiment.settings.quick {
        10
    } else {
        STEPS.len()
    };
    for tau in [5, 50] {
        let net = load(experiment, tau)?;
        let n = net.dim();
        let start: Vec<f64> = Rng::new(5)
            .matrix(1, n, 1.0)
            .row(0)
            .iter()
            .map(|v| v.clamp(-2.0, 2.0))
            .collect();
        // The paper's step α = μ/γ, of the layer that allows the least.
        let alpha = net
            .net()
            .monotone()
            .iter()
            .map(|l| l.design().mu() / l.design().gap())
            .fold(f64::INFINITY, f64::min);
        let mut panel = Panel::new(format!("τ = {tau}"), "steps", "surrogate gap")
            .x_log()
            .y_log()
            .y_range(1e-18, 1e2);
        let methods: [(&str, Method); 5] = [
            (
                "dys, α = μ/γ",
                Method::DavisYin(DavisYin {
                    alpha: Some(alpha),
                    ..Default::default()
                }),
            ),
            ("dys, longest step", Method::DavisYin(DavisYin::default())),
            ("fsm", Method::ForwardStep(ForwardStep::default())),
            ("drs", Method::DouglasRachford(DouglasRachford::default())),
            ("newton", Method::Newton(Newton::default())),
        ];
        let mut record = |name: &str, points: &[(f64, f64)], seconds: f64| {
            let arrived = points.iter().find(|p| p.1 <= GAP).map(|p| p.0);
            let key = name
                .replace(", ", "(")
                .replace("α = μ/γ", "mu/gamma)")
                .replace("longest step", "longest)");
            if let Some(steps) = arrived {
                let summary = Summary::of(&[steps], Reference::default());
                result
                    .summary
                    .insert(format!("{key}.steps_to_1e-10.tau{tau}"), summary);
            }
            if let Some((_, gap)) = points.iter().rev().find(|p| p.0 <= 100.0) {
                let summary = Summary::of(&[*gap], Reference::default());
                result
                    .summary
                    .insert(format!("{key}.gap_after_100.tau{tau}"), summary);
            }
            let summary = Summary::of(&[seconds * 1e3], Reference::default());
            result
                .summary
                .insert(format!("{key}.ms_in_all.tau{tau}"), summary);
        };
        for (k, (name, method)) in methods.into_iter().enumerate() {
            let (mut points, mut seconds) = (Vec::new(), 0.0);
            // The first-order methods are stopped after a number of steps. Newton ends with steps
            // on the whole network, which no such limit stops: it is asked for less and less error,
            // and its steps are counted.
            let newton = matches!(method, Method::Newton(_));
            let goals: Vec<(f64, Option<usize>)> = if newton {
                (0..13).map(|k| (10f64.powi(-k), None)).collect()
            } else {
                STEPS[..last].iter().map(|steps| (0.0, Some(*steps))).collect()
            };
            for (tolerance, max_iterations) in goals {
                let options = InverseOptions {
                    method: method.clone(),
                    tolerance,
                    max_iterations,
                    start: Some(start.clone()),
                    trace: false,
                };
                let clock = Instant::now();
                let inverse = net.net().inverse(&vec![0.0; n], &options)?;
                seconds = clock.elapsed().as_secs_f64();
                let gap = net.value(&inverse.x)?[0] - net.offset();
                let steps = max_iterations.unwrap_or(inverse.rows[0].iterations);
                points.push((steps as f64, gap.max(1e-20)));
                if gap < 1e-24 {
                    break;
                }
            }
            record(name, &points, seconds);
            panel.push(Mark::line(points, k).labeled(name));
        }
        // Adam on the surrogate itself, at the best of several rates.
        let steps = STEPS[last - 1];
        let mut best: Option<(f64, Vec<f64>, f64)> = None;
        for rate in [0.1, 0.5, 1.0, 2.0, 5.0] {
            let clock = Instant::now();
            let path = GradientMethod::Adam { rate }.run(&net, &start, steps)?;
            let seconds = clock.elapsed().as_secs_f64();
            let smallest = path.gaps.iter().copied().fold(f64::INFINITY, f64::min);
            let so_far = best.as_ref().map_or(f64::INFINITY, |b| {
                b.1.iter().copied().fold(f64::INFINITY, f64::min)
            });
            if smallest < so_far {
                best = Some((rate, path.gaps, seconds));
            }
        }
        if let Some((rate, gaps, seconds)) = best {
            let points: Vec<(f64, f64)> = gaps
                .iter()
                .enumerate()
                .skip(1)
                .map(|(k, g)| (k as f64, g.max(1e-20)))
                .collect();
            record("adam", &points, seconds);
            panel.push(Mark::line(points, 5).labeled(format!("Adam, rate {rate}")));
        }
        panels.push(panel);
    }
    files::write_figure(
        &experiment.settings.out,
        "solver",
        &Figure::new(panels).panel_size(470.0, 400.0),
    )?;
    result.figures.push((
        "solver".into(),
        "Gap of the surrogate to its minimum against the steps a layer (of Newton: in all; of Adam: gradient steps), from the same start.".into(),
    ));
    result.notes.push(
        "A step of dys, fsm and drs costs about one pass through a layer, a Newton step n of them and an n×n solve, a step of Adam a forward and a backward pass.".into(),
    );
    Ok(())
}
