//! Inverting random monotone layers: error against steps for several step sizes and methods.

use bilip::{
    BiLipschitz, Bounds, DavisYin, DouglasRachford, ForwardStep, InverseOptions, Method, MonLip, MonLipFree,
    Newton, RandomLayer, Rng,
};

use crate::config::Reference;
use crate::error::Result;
use crate::files;
use crate::results::{ExperimentResult, Summary};
use crate::run::{Definition, Experiment};
use bilip_plot::{Figure, Mark, Panel};

pub(super) struct Inverse;

impl Definition for Inverse {
    fn name(&self) -> &'static str {
        "inverse"
    }

    fn title(&self) -> &'static str {
        "Inverting a layer: error against steps"
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

const BATCH: usize = 32;

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let bounds = Bounds::new(0.2, 4.0)?;
    let alpha = bounds.mu() / bounds.gap();
    let seeds = if experiment.settings.quick {
        1
    } else {
        experiment.settings.seeds
    };
    let limit = 1_500;
    let mut panels = Vec::new();
    for (n, width) in [(8, 64), (8, 128), (16, 64), (16, 128)] {
        let mut panel = Panel::new(
            format!("n = {n}, 6×{width}"),
            "steps",
            "error bound, mean of rows",
        )
        .y_log()
        .x_range(0.0, limit as f64)
        .y_range(1e-10, 1e2);
        let mut methods: Vec<(String, Method)> = [0.3, 0.5, 0.7, 1.0]
            .into_iter()
            .map(|share| {
                (
                    format!("dys({share})"),
                    Method::DavisYin(DavisYin {
                        alpha: Some(share * alpha),
                        ..Default::default()
                    }),
                )
            })
            .collect();
        methods.push(("fsm".into(), Method::ForwardStep(ForwardStep::default())));
        methods.push(("drs".into(), Method::DouglasRachford(DouglasRachford::default())));
        methods.push(("newton".into(), Method::Newton(Newton::default())));
        for (k, (name, method)) in methods.into_iter().enumerate() {
            let (mut arrived, mut shown) = (Vec::new(), Vec::new());
            for seed in 0..seeds as u64 {
                let mut rng = Rng::new(6_000 + seed);
                let free =
                    MonLipFree::random(&RandomLayer::new(n, &[width; 6], bounds).with_bias(1.0), &mut rng)?;
                let layer = MonLip::<f64>::from_free(&free)?;
                let y = layer.forward(&rng.normals(BATCH * n))?;
                let inverse = layer.inverse(
                    &y,
                    &InverseOptions {
                        method: method.clone(),
                        tolerance: 1e-9,
                        max_iterations: Some(limit),
                        start: None,
                        trace: true,
                    },
                )?;
                // The mean over the rows; a row that has arrived keeps its last error.
                let longest = inverse.rows.iter().map(|r| r.trace.len()).max().unwrap_or(0);
                let mean: Vec<(f64, f64)> = (0..longest)
                    .map(|i| {
                        let sum: f64 = inverse
                            .rows
                            .iter()
                            .filter_map(|r| r.trace.get(i.min(r.trace.len().saturating_sub(1))))
                            .map(|t| t.error)
                            .sum();
                        ((i + 1) as f64, sum / BATCH as f64)
                    })
                    .collect();
                if let Some((steps, _)) = mean.iter().find(|p| p.1 <= 1e-6) {
                    arrived.push(*steps);
                }
                if seed == 0 {
                    shown = mean;
                }
            }
            if arrived.len() == seeds {
                result.summary.insert(
                    format!("{name}.steps_to_1e-6(n{n},6x{width})"),
                    Summary::of(&arrived, Reference::default()),
                );
            }
            panel.push(Mark::line(shown, k).labeled(name));
        }
        panels.push(panel);
    }
    files::write_figure(
        &experiment.settings.out,
        "inverse",
        &Figure::new(panels).columns(2).panel_size(470.0, 360.0),
    )?;
    result.figures.push((
        "inverse".into(),
        "Error of the inverse against steps for random layers with bounds (0.2, 4), 32 rows; dys(s) takes the step s·μ/γ.".into(),
    ));
    result.notes.push(format!(
        "A method that is missing from the table had not reached 1e-6 after {limit} steps in every seed."
    ));
    Ok(())
}
