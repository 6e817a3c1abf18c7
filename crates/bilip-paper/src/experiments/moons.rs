//! Two moons under a Gaussian process: does the uncertainty tell the data from what is outside of
//! it?

use std::collections::BTreeMap;

use bilip::faer::{Mat, MatRef};
use bilip::{BiLipschitz, Bounds, GpHead, Rng, metrics};
use bilip_burn::{
    Accumulation, BiLipNetConfig, BoundsMode, Dataset, GpConfig, GpNet, Loss, MonLipConfig, OnDevice,
    Predict, TrainConfig, train,
};
use burn::module::{AutodiffModule, Module, ModuleDisplay};
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::{Hidden, fit, job_result};
use crate::baselines::SngpConfig;
use crate::config::ModelFamily;
use crate::data;
use crate::error::{Error, Result};
use crate::files;
use crate::published::PublishedBiLipNet;
use crate::results::{ExperimentResult, JobResult};
use crate::run::{Definition, Experiment, Job};
use bilip_plot::{Figure, Mark, Panel};

pub(super) struct Moons;

impl Definition for Moons {
    fn name(&self) -> &'static str {
        "moons"
    }

    fn title(&self) -> &'static str {
        "Two moons: knowing what is not known"
    }

    fn config(&self) -> Option<&'static str> {
        Some(include_str!("../../configs/moons.toml"))
    }

    fn run(&self, experiment: &Experiment, job: &Job) -> Result<JobResult> {
        run(experiment, job)
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

/// Width of the space in which the feature maps live.
const WIDTH: usize = 128;
/// Residual layers whose bounds all models share.
const LAYERS: i32 = 3;
const OUTLIERS: usize = 1_000;
const X: (f64, f64) = (-3.5, 3.5);
const Y: (f64, f64) = (-2.5, 2.5);
/// The data: one draw for all seeds, which vary weights and batches.
const DATA: u64 = 5_000;
/// The factor of the mean-field approximation.
const FACTOR: f64 = std::f64::consts::PI / 8.0;
const RIDGE: f64 = 1.0;
const BINS: usize = 15;
/// Where slopes are measured.
const POINTS: usize = 50;

fn grid(side: usize) -> Vec<f64> {
    let at = |k: usize, (low, high): (f64, f64)| low + (high - low) * k as f64 / (side - 1).max(1) as f64;
    (0..side * side)
        .flat_map(|k| [at(k % side, X), at(k / side, Y)])
        .collect()
}

/// A trained model as numbers: what its head sees of rows, and the head.
struct Trained {
    hidden: Hidden,
    head: GpHead,
    claimed: Bounds,
    certified: Option<Bounds>,
    /// Smallest and largest slope of the feature map that were found.
    slopes: (f64, f64),
    parameters: usize,
}

impl Trained {
    /// Probabilities of both classes, and the uncertainty p(1 − p)/0.25.
    fn classify(&self, x: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let p = self.head.probabilities(&(self.hidden)(x), FACTOR)?;
        let uncertainty = p.chunks_exact(2).map(|p| p[0] * p[1] / 0.25).collect();
        Ok((p, uncertainty))
    }
}

struct Work<'a> {
    experiment: &'a Experiment,
    job: &'a Job,
    table: &'a Dataset,
}

impl OnDevice for Work<'_> {
    type Output = Result<Trained>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Trained> {
        let (model, seed) = (&self.job.model, self.job.seed);
        let c = model
            .c
            .ok_or_else(|| Error::config(&model.name, "c is missing: the bound of a residual branch"))?;
        if !(c > 0.0 && c < 1.0) {
            return Err(Error::config(&model.name, "c must be between 0 and 1"));
        }
        let head = GpConfig::new(WIDTH, 2)
            .with_seed(7_000 + seed)
            .init::<B>(device)?;
        match model.kind {
            ModelFamily::GpBilipnet => {
                let bounds = Bounds::new((1.0 - c).powi(LAYERS), (1.0 + c).powi(LAYERS))?;
                let layer =
                    MonLipConfig::new(WIDTH, model.hidden.clone(), BoundsMode::Fixed(bounds)).with_seed(seed);
                let config = BiLipNetConfig::new(1, layer);
                if model.published {
                    let net = PublishedBiLipNet::<B>::new(&config, device)?;
                    let net = GpNet::new(net, head).with_random_lift(2, WIDTH, 8_000 + seed, device)?;
                    let (trained, rest) = self.finish::<B, _>(net, device)?;
                    return Ok(Trained {
                        claimed: trained.net().claim(),
                        certified: trained.net().certified_bounds().ok(),
                        ..rest
                    });
                }
                let net = config.init::<B>(device)?;
                let net = GpNet::new(net, head).with_random_lift(2, WIDTH, 8_000 + seed, device)?;
                let (trained, rest) = self.finish::<B, _>(net, device)?;
                let frozen = trained.net().freeze::<f64>()?;
                let certificate = frozen.verify();
                Ok(Trained {
                    claimed: frozen.claim().bounds(),
                    certified: certificate.proved().bounds().filter(|_| certificate.holds()),
                    ..rest
                })
            }
            ModelFamily::GpSngp => {
                let net = SngpConfig::new(WIDTH, model.depth, c)
                    .with_seed(seed)
                    .init::<B>(device)?;
                let net = GpNet::new(net, head).with_random_lift(2, WIDTH, 8_000 + seed, device)?;
                let (trained, rest) = self.finish::<B, _>(net, device)?;
                Ok(Trained {
                    claimed: trained.net().bounds()?,
                    certified: trained.net().certified_bounds().ok(),
                    ..rest
                })
            }
            _ => Err(Error::config(&model.name, "is not a model of this experiment")),
        }
    }
}

impl Work<'_> {
    /// Trains, computes the posterior, and measures the slopes of the feature map.
    fn finish<B, M>(&self, net: GpNet<B, M>, device: &B::Device) -> Result<(GpNet<B, M>, Trained)>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B> + ModuleDisplay + Predict<B> + 'static,
        M::InnerModule: ModuleDisplay + Predict<B::InnerBackend> + 'static,
    {
        let settings = TrainConfig {
            loss: Loss::CrossEntropy,
            ..fit::settings(self.experiment, self.job)
        };
        let trained = train::<B, _>(net, self.table, None, &settings)?;
        let (trained, parameters) = (trained.model, trained.parameters);
        // Without dropout.
        let fixed = trained.valid();
        let head = fixed.posterior(self.table, Loss::CrossEntropy, RIDGE, Accumulation::Exact, device)?;
        let slopes = slopes(&fixed, self.table.inputs(), device)?;
        let place = device.clone();
        let rest = Trained {
            hidden: Box::new(move |x| fixed.hidden_rows(x, 2, &place)),
            head,
            claimed: Bounds::new(1.0, 1.0)?,
            certified: None,
            slopes,
            parameters,
        };
        Ok((trained, rest))
    }
}

/// Smallest and largest slope of the feature map found at points of the data: along the directions
/// of its coordinates, and along those that its Jacobian there shrinks and stretches most.
/// Measured, not proved.
fn slopes<B: Backend, M: Module<B> + Predict<B>>(
    net: &GpNet<B, M>,
    x: &[f64],
    device: &B::Device,
) -> Result<(f64, f64)> {
    let Some(lift) = net.lift() else {
        return Ok((f64::NAN, f64::NAN));
    };
    // Near enough to see the slope, far enough for single precision.
    const STEP: f64 = 0.01;
    let (mut low, mut high) = (f64::INFINITY, 0.0f64);
    for p in x.chunks_exact(2).step_by((x.len() / 2).div_ceil(POINTS)) {
        let point: Vec<f64> = (0..WIDTH)
            .map(|j| p[0] * lift[(0, j)] + p[1] * lift[(1, j)])
            .collect();
        let mut differences = |directions: MatRef<'_, f64>| {
            let mut rows = point.clone();
            for direction in directions.col_iter() {
                rows.extend(point.iter().zip(direction.iter()).map(|(v, d)| v + STEP * d));
            }
            let mapped = net.mapped_rows(&rows, WIDTH, device);
            let found = Mat::from_fn(WIDTH, directions.ncols(), |i, j| {
                (mapped[(j + 1) * WIDTH + i] - mapped[i]) / STEP
            });
            for column in found.col_iter() {
                low = low.min(column.norm_l2());
                high = high.max(column.norm_l2());
            }
            found
        };
        let jacobian = differences(Mat::<f64>::identity(WIDTH, WIDTH).as_ref());
        let svd = jacobian
            .svd()
            .map_err(|_| Error::config("moons", "a Jacobian is not finite"))?;
        // Sorted, the largest singular value first.
        differences(svd.V().subcols(0, 1));
        differences(svd.V().subcols(WIDTH - 1, 1));
    }
    Ok((low, high))
}

fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let config = &experiment.config;
    let table = data::moons(config.rows, &mut Rng::new(DATA))?;
    let outliers = data::moons_outliers(OUTLIERS, &mut Rng::new(DATA + 1));
    let test = data::moons(config.rows, &mut Rng::new(DATA + 2))?;
    let trained = experiment.settings.device.run(Work {
        experiment,
        job,
        table: &table,
    })??;
    let labels = |t: &Dataset| -> Vec<usize> { t.targets().iter().map(|v| *v as usize).collect() };
    let (p_train, known) = trained.classify(table.inputs())?;
    let (p_test, _) = trained.classify(test.inputs())?;
    let (_, unknown) = trained.classify(&outliers)?;
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mu, nu) = trained
        .certified
        .map_or((f64::NAN, f64::NAN), |b| (b.mu(), b.nu()));
    let figures = [
        ("accuracy", metrics::accuracy(&p_train, &labels(&table))?),
        ("test_accuracy", metrics::accuracy(&p_test, &labels(&test))?),
        (
            "test_nll",
            metrics::negative_log_likelihood(&p_test, &labels(&test))?,
        ),
        (
            "test_ece",
            metrics::calibration_error(&p_test, &labels(&test), BINS)?,
        ),
        ("test_brier", metrics::brier_score(&p_test, &labels(&test))?),
        ("ood_auroc", metrics::auroc(&known, &unknown)?),
        ("ood_aupr", metrics::average_precision(&known, &unknown)?),
        ("uncertainty_train", mean(&known)),
        ("uncertainty_ood", mean(&unknown)),
        ("claimed_mu", trained.claimed.mu()),
        ("claimed_nu", trained.claimed.nu()),
        ("certified_mu", mu),
        ("certified_nu", nu),
        ("slope_min", trained.slopes.0),
        ("slope_max", trained.slopes.1),
    ];
    let mut series = BTreeMap::new();
    if job.seed == 0 {
        series.insert("surface".to_string(), trained.classify(&grid(config.test))?.1);
    }
    Ok(job_result(job, trained.parameters, &figures, series))
}

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let table = data::moons(experiment.config.rows, &mut Rng::new(DATA))?;
    let outliers = data::moons_outliers(OUTLIERS, &mut Rng::new(DATA + 1));
    let points = |x: &[f64], step: usize| -> Vec<(f64, f64)> {
        x.chunks_exact(2).step_by(step).map(|p| (p[0], p[1])).collect()
    };
    let half = table.rows().div_ceil(2) * 2;
    let levels: Vec<f64> = (0..=10).map(|k| k as f64 / 10.0).collect();
    let mut panels = Vec::new();
    // A row for every family of models, a column for every c.
    let mut runs: Vec<_> = result.runs.iter().filter(|r| r.seed == 0).collect();
    let family = |name: &str| match () {
        _ if name.starts_with("sngp") => 1,
        _ if name.contains("published") => 2,
        _ => 0,
    };
    runs.sort_by_key(|run| family(&run.model));
    let columns = runs.iter().filter(|run| family(&run.model) == 0).count().max(1);
    for run in runs {
        let Some(surface) = run.series.get("surface") else {
            continue;
        };
        let mut panel = Panel::new(run.model.clone(), "x", "y")
            .x_range(X.0, X.1)
            .y_range(Y.0, Y.1);
        panel.push(Mark::contours(
            surface.clone(),
            experiment.config.test,
            levels.clone(),
        ));
        // Every fifth point is enough to see where they are.
        panel.push(Mark::points(points(&table.inputs()[..half], 5), 5));
        panel.push(Mark::points(points(&table.inputs()[half..], 5), 4));
        panel.push(Mark::points(points(&outliers, 10), 1));
        panels.push(panel);
    }
    files::write_figure(
        &experiment.settings.out,
        "uncertainty",
        &Figure::new(panels).columns(columns).panel_size(300.0, 240.0),
    )?;
    result.figures.push((
        "uncertainty".into(),
        "Uncertainty p(1 − p)/0.25 from 0 (dark) to 1 (bright), seed 0, with some of the two classes' points and, in red, of the outliers.".into(),
    ));
    result.notes.push(
        "All models share the bounds ((1 − c)³, (1 + c)³), a fixed random matrix to 128 dimensions before them and 1,024 random features after; the data are one draw for all seeds. Slopes are measured in single precision, so their last digits are rounding.".into(),
    );
    Ok(())
}
