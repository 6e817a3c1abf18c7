//! CIFAR-10, clean and spoilt: a bi-Lipschitz image network under a Gaussian process.

use std::collections::BTreeMap;
use std::path::Path;

use bilip::{BiLipschitz, Bounds, GpHead, Rng, metrics};
use bilip_burn::{
    Accumulation, Augment, ConvFeatures, ConvFeaturesConfig, GpConfig, GpNet, Loss, OnDevice, OptimizerKind,
    Predict, TrainConfig, WideResNetConfig, data, train,
};
use burn::module::{AutodiffModule, Module, ModuleDisplay};
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::{Hidden, fit, job_result};
use crate::config::Kind;
use crate::error::{Error, Result};
use crate::files;
use crate::images::{Corruption, Dataset, Images, PIXELS, SEVERITIES, SIDE};
use crate::plot::{Figure, Mark, Panel};
use crate::run::{Experiment, ExperimentResult, Job, JobResult};

/// Where the data are looked for when nothing is said of it.
const FOLDER: &str = "data/cifar10";
/// Means and deviations of the three colours over the training data.
const MEAN: [f64; 3] = [0.4914, 0.4822, 0.4465];
const DEVIATION: [f64; 3] = [0.2470, 0.2435, 0.2616];
/// The factor of the mean-field approximation.
const FACTOR: f64 = std::f64::consts::PI / 8.0;
const RIDGE: f64 = 1.0;
const BINS: usize = 15;
/// Numbers that the head sees.
const FEATURES: usize = 128;
/// The published frequencies have deviation 0.05 and inputs are divided by the root of the kernel's scale of 2.
const LENGTH_SCALE: f64 = std::f64::consts::SQRT_2 / 0.05;

fn normalized(pixels: &[u8]) -> Vec<f64> {
    pixels
        .iter()
        .enumerate()
        .map(|(k, v)| {
            let color = k / (SIDE * SIDE) % 3;
            (f64::from(*v) / 255.0 - MEAN[color]) / DEVIATION[color]
        })
        .collect()
}

/// Stripes that lie, stand or lean, where there are no data: for a short version that needs none.
fn stripes(count: usize, seed: u64) -> Images {
    let mut rng = Rng::new(seed);
    let mut images = Images {
        pixels: Vec::with_capacity(count * PIXELS),
        labels: Vec::new(),
        classes: 10,
    };
    for k in 0..count {
        let class = k % 3;
        let phase = 8.0 * rng.uniform();
        for color in 0..3 {
            let strength = 40.0 + 30.0 * rng.uniform() + 5.0 * f64::from(color);
            for p in 0..SIDE {
                for q in 0..SIDE {
                    let along = [p, q, p + q][class] as f64;
                    let value = 128.0 + strength * (0.8 * (along + phase)).sin() + 10.0 * rng.normal();
                    images.pixels.push(value.clamp(0.0, 255.0) as u8);
                }
            }
        }
        images.labels.push(class as u8);
    }
    images
}

fn images(experiment: &Experiment) -> Result<(Images, Images)> {
    let config = &experiment.config;
    let folder = experiment.settings.data.as_deref();
    let (training, test) = match (folder, experiment.settings.quick) {
        (None, true) => (stripes(config.rows, 1), stripes(config.test, 2)),
        (folder, _) => {
            let folder = folder.unwrap_or(Path::new(FOLDER));
            if !folder.is_dir() {
                let shown = folder.display();
                return Err(Error::config(
                    shown.to_string(),
                    format!("there are no data; `bilip data cifar10 {shown}` makes them"),
                ));
            }
            Dataset::Cifar10.read(folder)?
        }
    };
    Ok((training.first(config.rows), test.first(config.test)))
}

/// What is left of a trained model: features of images, the head, and what is proved.
struct Trained {
    features: Hidden,
    head: GpHead,
    /// Where there is a claim.
    claimed: Option<Bounds>,
    /// Of every block.
    certified: Vec<Option<Bounds>>,
    /// Of the convolutions between them.
    norms: Vec<f64>,
    parameters: usize,
    loss: f64,
}

struct Work<'a> {
    experiment: &'a Experiment,
    job: &'a Job,
    table: &'a data::Table,
}

impl OnDevice for Work<'_> {
    type Output = Result<Trained>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Trained> {
        let (model, seed) = (&self.job.model, self.job.seed);
        let c = model
            .c
            .ok_or_else(|| Error::config(&model.name, "c is missing"))?;
        let [width] = model.hidden[..] else {
            return Err(Error::config(&model.name, "hidden holds one number, the width"));
        };
        match model.kind {
            Kind::ConvBilipnet => {
                let config = ConvFeaturesConfig {
                    published: model.published,
                    seed,
                    ..ConvFeaturesConfig::new(c, width)?
                };
                let (net, rest) = self.finish::<B, _>(config.init::<B>(device)?, device)?;
                let (certified, norms) = proved(&net)?;
                Ok(Trained {
                    claimed: Some(config.bounds),
                    certified,
                    norms,
                    ..rest
                })
            }
            Kind::ConvSngp => {
                let config = WideResNetConfig {
                    batch_norm: model.batch_norm,
                    seed,
                    ..WideResNetConfig::new(c, width)
                };
                Ok(self.finish::<B, _>(config.init::<B>(device)?, device)?.1)
            }
            _ => Err(Error::config(&model.name, "is not a model of this experiment")),
        }
    }
}

impl Work<'_> {
    /// Trains a feature map under a head, and computes the posterior.
    fn finish<B, M>(&self, features: M, device: &B::Device) -> Result<(M::InnerModule, Trained)>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B> + ModuleDisplay + Predict<B> + 'static,
        M::InnerModule: ModuleDisplay + Predict<B::InnerBackend> + 'static,
    {
        let head = GpConfig {
            length_scale: LENGTH_SCALE,
            orthogonal: true,
            normalize: true,
            seed: 7_000 + self.job.seed,
            ..GpConfig::new(FEATURES, 10)
        };
        let net = GpNet::new(features, head.init::<B>(device)?);
        let settings = TrainConfig {
            loss: Loss::CrossEntropy,
            optimizer: OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
            augment: Some(Augment {
                channels: 3,
                size: SIDE,
                pad: 4,
            }),
            checkpoint_every: 1,
            ..fit::settings(self.experiment, self.job)
        };
        let trained = train::<B, _>(net, self.table, None, &settings)?;
        let loss = trained.history.last().map_or(f64::NAN, |e| e.train_loss);
        let parameters = trained.model.num_params();
        let net = trained.model.valid();
        let head = net.posterior(self.table, Loss::CrossEntropy, RIDGE, Accumulation::Exact, device)?;
        let features = net.net().clone();
        let place = device.clone();
        let rest = Trained {
            features: Box::new(move |x| net.hidden_rows(x, PIXELS, &place)),
            head,
            claimed: None,
            certified: Vec::new(),
            norms: Vec::new(),
            parameters,
            loss,
        };
        Ok((features, rest))
    }
}

/// What can be proved of the stored numbers of every block and convolution.
fn proved<B: Backend>(net: &ConvFeatures<B>) -> Result<(Vec<Option<Bounds>>, Vec<f64>)> {
    let mut certified = Vec::new();
    for block in net.blocks() {
        let monotone = block.monotone().freeze::<f32>()?.verify().certified();
        let orthogonal = block.orthogonal().freeze::<f64>()?.bounds();
        certified.push(match monotone {
            Some(bounds) => Some(Bounds::new(
                bounds.mu() * orthogonal.mu() * (1.0 - 1e-15),
                bounds.nu() * orthogonal.nu() * (1.0 + 1e-15),
            )?),
            None => None,
        });
    }
    let norms = net
        .convolutions()
        .iter()
        .map(|c| Ok(c.certified_norm()?))
        .collect::<Result<_>>()?;
    Ok((certified, norms))
}

/// Accuracy, likelihood and calibration on some images.
fn quality(trained: &Trained, images: &Images) -> Result<[f64; 3]> {
    let h = (trained.features)(&normalized(&images.pixels));
    let p = trained.head.probabilities(&h, FACTOR)?;
    let labels: Vec<usize> = images.labels.iter().map(|l| usize::from(*l)).collect();
    Ok([
        metrics::accuracy(&p, &labels)?,
        metrics::negative_log_likelihood(&p, &labels)?,
        metrics::calibration_error(&p, &labels, BINS)?,
    ])
}

pub(super) fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let (training, test) = images(experiment)?;
    let labels = training.labels.iter().map(|l| f64::from(*l)).collect();
    let table = data::Table::new(normalized(&training.pixels), PIXELS, labels, 1)?;
    let trained = experiment.settings.device.run(Work {
        experiment,
        job,
        table: &table,
    })??;
    drop(table);
    let [accuracy, nll, ece] = quality(&trained, &test)?;
    // The short version looks at one severity.
    let severities: Vec<usize> = match experiment.settings.quick {
        true => vec![3],
        false => (1..=SEVERITIES).collect(),
    };
    let mut series = BTreeMap::new();
    let mut sums = [0.0; 3];
    for corruption in Corruption::ALL {
        let mut accuracies = Vec::new();
        for &severity in &severities {
            let spoilt = test.corrupted(corruption, severity, 1_000 * severity as u64);
            let found = quality(&trained, &spoilt)?;
            sums.iter_mut().zip(found).for_each(|(s, v)| *s += v);
            accuracies.push(found[0]);
        }
        series.insert(corruption.name().to_string(), accuracies);
    }
    let mean = sums.map(|s| s / (Corruption::ALL.len() * severities.len()) as f64);
    let certified = |of: fn(&Bounds) -> f64, worse: fn(f64, f64) -> f64| {
        trained
            .certified
            .iter()
            .map(|b| b.as_ref().map_or(f64::NAN, of))
            .reduce(worse)
            .unwrap_or(f64::NAN)
    };
    let figures = [
        ("accuracy", accuracy),
        ("nll", nll),
        ("ece", ece),
        ("corrupted_accuracy", mean[0]),
        ("corrupted_nll", mean[1]),
        ("corrupted_ece", mean[2]),
        ("train_loss", trained.loss),
        ("claimed_mu", trained.claimed.map_or(f64::NAN, |b| b.mu())),
        ("claimed_nu", trained.claimed.map_or(f64::NAN, |b| b.nu())),
        ("certified_mu", certified(Bounds::mu, f64::min)),
        ("certified_nu", certified(Bounds::nu, f64::max)),
        (
            "convolution_norm",
            (trained.norms.iter().skip(1).copied())
                .reduce(f64::max)
                .unwrap_or(f64::NAN),
        ),
    ];
    Ok(job_result(job, trained.parameters, &figures, series))
}

pub(super) fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let mut panels = Vec::new();
    for run in result.runs.iter().filter(|r| r.seed == 0) {
        let mut panel = Panel::new(run.model.clone(), "severity", "accuracy").y_range(0.0, 1.0);
        for (k, corruption) in Corruption::ALL.iter().enumerate() {
            let Some(values) = run.series.get(corruption.name()) else {
                continue;
            };
            let line: Vec<(f64, f64)> = (1..).map(f64::from).zip(values.iter().copied()).collect();
            panel.push(match line.len() {
                1 => Mark::points(line, k).labelled(corruption.name()),
                _ => Mark::line(line, k).labelled(corruption.name()),
            });
        }
        panels.push(panel);
    }
    files::write_figure(
        &experiment.settings.out,
        "corruptions",
        &Figure::new(panels).columns(2).panel_size(460.0, 360.0),
    )?;
    result.figures.push((
        "corruptions".into(),
        "Accuracy on test images spoilt in eleven ways, seed 0.".into(),
    ));
    if experiment.settings.quick && experiment.settings.data.is_none() {
        result
            .notes
            .push("Made of stripes, not of CIFAR-10: the short version without data.".into());
    }
    result.notes.push(
        "Corruptions are of the kinds and constants of CIFAR-10-C with random numbers of our own. Bounds are those of the blocks; convolutions of bounded norm lie between them.".into(),
    );
    Ok(())
}
