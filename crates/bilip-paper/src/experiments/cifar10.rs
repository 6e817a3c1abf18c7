//! CIFAR-10, clean and corrupted: a bi-Lipschitz image network under a Gaussian process.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bilip::{BiLipschitz, Bounds, GpHead, InverseOptions, Rng, metrics};
use bilip_burn::{
    Accumulation, Augment, ConvFeatures, ConvFeaturesConfig, GpConfig, GpNet, Loss, NormalizedConv, OnDevice,
    OptimizerKind, Predict, Progress, TrainConfig, WideResNetConfig, data, train,
};
use burn::module::{AutodiffModule, Module, ModuleDisplay};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Hidden, fit, job_result};
use crate::config::Kind;
use crate::error::{Error, Result};
use crate::files;
use crate::images::{Corruption, Dataset, Images, PIXELS, SEVERITIES, SIDE};
use crate::published;
use crate::run::{Experiment, ExperimentResult, Job, JobResult};
use bilip_plot::{Figure, Mark, Panel};

/// Where the data are looked for when nothing is said of it.
const FOLDER: &str = "data/cifar10";
/// Means and deviations of the three colors over the training data.
const MEAN: [f64; 3] = [0.4914, 0.4822, 0.4465];
const DEVIATION: [f64; 3] = [0.2470, 0.2435, 0.2616];
/// The factor of the mean-field approximation.
const FACTOR: f64 = std::f64::consts::PI / 8.0;
const RIDGE: f64 = 1.0;
const BINS: usize = 15;
/// Images that go through every block and back, to this certified error.
const SAMPLE: usize = 2;
const TOLERANCE: f64 = 1e-6;
/// Numbers that the head sees.
const FEATURES: usize = 128;
/// The published frequencies have deviation 0.05 and inputs are divided by the root of the kernel's scale of 2.
const LENGTH_SCALE: f64 = std::f64::consts::SQRT_2 / 0.05;

fn normalized(pixels: &[u8]) -> Vec<f64> {
    let values: [[f64; 256]; 3] = std::array::from_fn(|color| {
        std::array::from_fn(|v| (v as f64 / 255.0 - MEAN[color]) / DEVIATION[color])
    });
    pixels
        .par_chunks(SIDE * SIDE)
        .enumerate()
        .flat_map_iter(|(k, plane)| plane.iter().map(move |v| values[k % 3][usize::from(*v)]))
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

/// What is left of a trained model: features of images, the head, and what is to be proved.
struct Trained {
    features: Hidden,
    head: GpHead,
    /// Where there is a claim.
    claimed: Option<Bounds>,
    /// Work for the CPU, while the GPU looks at images.
    proof: Option<Box<dyn FnOnce() -> Result<Proof> + Send>>,
    parameters: usize,
    loss: f64,
}

/// What is proved of the stored numbers.
#[derive(Default)]
struct Proof {
    /// Of every block.
    certified: Vec<Option<Bounds>>,
    /// Of the convolutions between them, over the bounds that these were given.
    norms: Vec<f64>,
    /// The worst certified error of images that went through the monotone layer of a block and back, and the most steps that took.
    inverse: Option<(f64, usize)>,
}

struct Work<'a> {
    experiment: &'a Experiment,
    job: &'a Job,
    table: &'a data::Table,
    /// Images to be sent through the blocks and back.
    sample: &'a [f64],
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
                let designed = ConvFeaturesConfig::new(c, width)?;
                let claimed = designed.bounds;
                let config = ConvFeaturesConfig {
                    bounds: match model.published {
                        true => published::conv_bounds(claimed)?,
                        false => claimed,
                    },
                    seed,
                    ..designed
                };
                let (net, rest) = self.finish::<B, _>(config.init::<B>(device)?, device)?;
                let sample = Tensor::from_data(
                    TensorData::new(self.sample.to_vec(), [self.sample.len() / PIXELS, 3, SIDE, SIDE])
                        .convert_dtype(DType::F32),
                    (device, DType::F32),
                );
                Ok(Trained {
                    claimed: Some(claimed),
                    proof: Some(Box::new(move || prove(&net, sample))),
                    ..rest
                })
            }
            Kind::ConvSngp => {
                let config = WideResNetConfig {
                    batch_norm: model.batch_norm,
                    seed,
                    ..WideResNetConfig::new(c, width)
                };
                let (net, rest) = self.finish::<B, _>(config.init::<B>(device)?, device)?;
                let proof = move || {
                    Ok(Proof {
                        norms: norms(net.convolutions())?,
                        ..Proof::default()
                    })
                };
                Ok(Trained {
                    proof: Some(Box::new(proof)),
                    ..rest
                })
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
            checkpoint_every: 2,
            ..fit::settings(self.experiment, self.job)
        };
        let trained = train::<B, _>(net, self.table, None, &settings)?;
        let loss = trained.history.last().map_or(f64::NAN, |e| e.train_loss);
        let parameters = trained.parameters;
        let net = trained.model.valid();
        self.keep::<B::InnerBackend, _>(&net)?;
        let head = net.posterior(self.table, Loss::CrossEntropy, RIDGE, Accumulation::Exact, device)?;
        let features = net.net().clone();
        let place = device.clone();
        let rest = Trained {
            features: Box::new(move |x| net.hidden_rows(x, PIXELS, &place)),
            head,
            claimed: None,
            proof: None,
            parameters,
            loss,
        };
        Ok((features, rest))
    }

    /// Writes the trained network and its head as a record that Burn reads.
    fn keep<B: Backend, M: Module<B>>(&self, net: &M) -> Result<()> {
        let path = self.experiment.model_file(self.job).with_extension("mpk");
        let bytes = NamedMpkBytesRecorder::<FullPrecisionSettings>::default()
            .record::<M::Record>(net.clone().into_record(), ())
            .map_err(|e| Error::config(path.display().to_string(), e.to_string()))?;
        files::write(&path, &bytes)
    }
}

/// What can be proved of the stored numbers of every block and convolution, and images through the monotone layers and back.
fn prove<B: Backend>(net: &ConvFeatures<B>, sample: Tensor<B, 4>) -> Result<Proof> {
    let mut proof = Proof {
        norms: norms(net.convolutions())?,
        ..Proof::default()
    };
    for (k, block) in net.blocks().iter().enumerate() {
        let monotone = block.monotone().freeze::<f32>()?;
        let orthogonal = block.orthogonal().freeze::<f64>()?.bounds();
        let Some(bounds) = monotone.verify().proved().bounds() else {
            proof.certified.push(None);
            continue;
        };
        proof.certified.push(Some(Bounds::new(
            bounds.mu() * orthogonal.mu() * (1.0 - 1e-15),
            bounds.nu() * orthogonal.nu() * (1.0 + 1e-15),
        )?));
        let inputs = net.before_block(sample.clone(), k).to_data();
        let inputs: Vec<f64> = inputs.iter::<f64>().collect();
        let outputs = monotone.to_f64().forward(&inputs)?;
        let options = InverseOptions {
            tolerance: TOLERANCE,
            ..Default::default()
        };
        let inverse = monotone.inverse(&outputs, &options)?;
        let (error, steps) = proof.inverse.unwrap_or((0.0, 0));
        let most = inverse.rows.iter().map(|r| r.iterations).max();
        proof.inverse = Some((error.max(inverse.max_error_bound()), steps.max(most.unwrap_or(0))));
    }
    Ok(proof)
}

fn norms<'a, B: Backend>(convolutions: impl IntoIterator<Item = &'a NormalizedConv<B>>) -> Result<Vec<f64>> {
    let ratio = |c: &NormalizedConv<B>| Ok(c.certified_norm()? / c.bound());
    convolutions.into_iter().map(ratio).collect()
}

/// What is measured on a set of images: accuracy; likelihood and calibration by the mean-field approximation, and by the mean of the logits alone.
const QUALITIES: [&str; 5] = ["accuracy", "nll", "ece", "mode_nll", "mode_ece"];
type Quality = [f64; QUALITIES.len()];

fn quality(head: &GpHead, h: &[f64], labels: &[u8]) -> Result<Quality> {
    let labels: Vec<usize> = labels.iter().map(|l| usize::from(*l)).collect();
    let both = |factor: f64| -> Result<[f64; 3]> {
        let p = head.probabilities(h, factor)?;
        Ok([
            metrics::accuracy(&p, &labels)?,
            metrics::negative_log_likelihood(&p, &labels)?,
            metrics::calibration_error(&p, &labels, BINS)?,
        ])
    };
    let ([accuracy, nll, ece], [_, mode_nll, mode_ece]) = (both(FACTOR)?, both(0.0)?);
    Ok([accuracy, nll, ece, mode_nll, mode_ece])
}

/// Test images, as they are or corrupted.
#[derive(Clone, Copy)]
enum Set {
    Clean,
    Corrupted(Corruption, usize),
}

impl Set {
    fn name(self) -> String {
        match self {
            Set::Clean => "clean".into(),
            Set::Corrupted(corruption, severity) => format!("{} {severity}", corruption.name()),
        }
    }

    fn of(self, test: &Images) -> Result<Images> {
        match self {
            Set::Clean => Ok(test.clone()),
            Set::Corrupted(corruption, severity) => {
                test.corrupted(corruption, severity, 1_000 * severity as u64)
            }
        }
    }
}

/// What is found of sets of test images, in a file: an interruption costs one set, not all.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    #[serde(skip)]
    path: PathBuf,
    /// The last loss of the training that it belongs to.
    loss: f64,
    sets: BTreeMap<String, Quality>,
}

impl Found {
    fn read(path: PathBuf) -> Self {
        let found = files::read_json(&path).unwrap_or_default();
        Found { path, ..found }
    }

    fn missing(&self, sets: &[Set]) -> Vec<Set> {
        let unknown = |set: &&Set| !self.sets.contains_key(&set.name());
        sets.iter().filter(unknown).copied().collect()
    }

    /// Forgets what belongs to another training, and says whether there was any.
    fn forget_unless(&mut self, loss: f64) -> bool {
        let other = self.loss.to_bits() != loss.to_bits() && !self.sets.is_empty();
        if other {
            self.sets.clear();
        }
        self.loss = loss;
        other
    }

    fn judge(&mut self, trained: &Trained, sets: &[(Set, Images)], shown: bool) -> Result<()> {
        let known = self.sets.len();
        let mut progress = Progress::new(shown, known, known + sets.len(), "sets of test images");
        let head = &trained.head;
        std::thread::scope(|scope| {
            let ready = |set: &'_ (Set, Images)| normalized(&set.1.pixels);
            let mut next = sets.first().map(|set| scope.spawn(move || ready(set)));
            let mut before = None;
            for (k, (set, images)) in sets.iter().enumerate() {
                let Some(x) = next.take() else { break };
                let x = joined(x)?;
                next = sets.get(k + 1).map(|set| scope.spawn(move || ready(set)));
                let h = (trained.features)(&x);
                // While a GPU looks at a set, the processor judges the one before and makes the one after ready.
                let this = scope.spawn(move || quality(head, &h, &images.labels));
                if let Some((set, thread)) = before.replace((set, this)) {
                    self.add(*set, joined(thread)??, &mut progress)?;
                }
            }
            if let Some((set, thread)) = before {
                self.add(*set, joined(thread)??, &mut progress)?;
            }
            progress.finish();
            Ok(())
        })
    }

    fn add(&mut self, set: Set, quality: Quality, progress: &mut Progress) -> Result<()> {
        progress.advance(&format!("{}: {:.4}", set.name(), quality[0]));
        self.sets.insert(set.name(), quality);
        files::write_json_line(&self.path, self)
    }
}

/// The short version looks at one severity.
fn severities(quick: bool) -> RangeInclusive<usize> {
    if quick { 3..=3 } else { 1..=SEVERITIES }
}

pub(super) fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let (training, test) = images(experiment)?;
    let labels = training.labels.iter().map(|l| f64::from(*l)).collect();
    let table = data::Table::new(normalized(&training.pixels), PIXELS, labels, 1)?;
    let sample = normalized(&test.first(SAMPLE).pixels);
    let kinds = (Corruption::ALL.iter())
        .flat_map(|c| severities(experiment.settings.quick).map(|severity| Set::Corrupted(*c, severity)));
    let mut sets: Vec<Set> = std::iter::once(Set::Clean).chain(kinds).collect();
    // Those that enter the means come first.
    sets.sort_by_key(|set| matches!(set, Set::Corrupted(corruption, _) if corruption.is_extra()));
    let (trained, found, proof) = std::thread::scope(|scope| {
        let mut found = Found::read(experiment.checkpoints(job).join("sets.json"));
        let make = |sets: Vec<Set>| -> Result<Vec<(Set, Images)>> {
            sets.into_par_iter()
                .map(|set| Ok((set, set.of(&test)?)))
                .collect()
        };
        // The processor has nothing else to do while a GPU trains.
        let missing = found.missing(&sets);
        let made = scope.spawn(move || make(missing));
        let mut trained = experiment.settings.device.run(Work {
            experiment,
            job,
            table: &table,
            sample: &sample,
        })??;
        let proof = trained.proof.take().map(|proof| scope.spawn(proof));
        let mut made = joined(made)??;
        if found.forget_unless(trained.loss) {
            made = make(sets.clone())?;
        }
        found.judge(&trained, &made, experiment.settings.progress)?;
        let proof = proof.map(|thread| joined(thread)?).transpose()?;
        Ok::<_, Error>((trained, found.sets, proof))
    })?;
    let clean = found[&Set::Clean.name()];
    let mut corrupted: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for set in &sets {
        if let Set::Corrupted(corruption, _) = set {
            for (name, value) in QUALITIES.iter().zip(found[&set.name()]) {
                corrupted
                    .entry(series(*corruption, name))
                    .or_default()
                    .push(value);
            }
        }
    }
    // Bounds of blocks of which one is not proved are no bounds.
    let proof = proof.as_ref();
    let bounds: Option<Vec<Bounds>> = proof.and_then(|p| p.certified.iter().copied().collect());
    let certified = |of: fn(&Bounds) -> f64, worse: fn(f64, f64) -> f64| {
        let all = bounds.iter().flatten().map(of);
        all.reduce(worse).unwrap_or(f64::NAN)
    };
    let (error, steps) = (bounds.as_ref().and(proof))
        .and_then(|p| p.inverse)
        .map_or((f64::NAN, f64::NAN), |(error, steps)| (error, steps as f64));
    let claimed = |of: fn(&Bounds) -> f64| trained.claimed.as_ref().map_or(f64::NAN, of);
    let mut figures: Vec<(String, f64)> = [
        ("train_loss", trained.loss),
        (
            "training_seconds",
            bilip_burn::time_spent(&experiment.checkpoints(job))?,
        ),
        ("claimed_mu", claimed(Bounds::mu)),
        ("claimed_nu", claimed(Bounds::nu)),
        ("certified_mu", certified(Bounds::mu, f64::min)),
        ("certified_nu", certified(Bounds::nu, f64::max)),
        (
            "convolution_norm_over_bound",
            (proof.iter().flat_map(|p| p.norms.iter().copied()))
                .reduce(f64::max)
                .unwrap_or(f64::NAN),
        ),
        ("inverse_error", error),
        ("inverse_steps", steps),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into();
    for (name, value) in QUALITIES.iter().zip(clean) {
        figures.push((name.to_string(), value));
        // As published: without the kinds that are there for validation.
        let kinds = Corruption::ALL.iter().filter(|c| !c.is_extra());
        let values = kinds.flat_map(|c| corrupted[&series(*c, name)].iter());
        figures.push((format!("corrupted_{name}"), mean(values)));
    }
    let accuracies = Corruption::ALL
        .iter()
        .flat_map(|c| corrupted[&series(*c, "accuracy")].iter());
    figures.push(("corrupted_accuracy_of_all".into(), mean(accuracies)));
    Ok(job_result(job, trained.parameters, &figures, corrupted))
}

/// The name of a series: accuracies are those that are drawn.
fn series(corruption: Corruption, quality: &str) -> String {
    match quality {
        "accuracy" => corruption.name().to_string(),
        _ => format!("{}.{quality}", corruption.name()),
    }
}

fn mean<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
    sum / count
}

/// What a thread has found.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| Error::config("cifar10", "a thread has failed; this is a mistake of ours"))
}

pub(super) fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    let severities = severities(experiment.settings.quick);
    let line = |run: &JobResult, values: &[f64]| -> Vec<(f64, f64)> {
        // Severity 0 is the clean picture.
        let clean = run.metrics.get("accuracy").map(|a| (0.0, *a));
        let corrupted = severities.clone().map(|s| s as f64).zip(values.iter().copied());
        clean.into_iter().chain(corrupted).collect()
    };
    let runs: Vec<&JobResult> = result.runs.iter().filter(|r| r.seed == 0).collect();
    // Means over other kinds of images could not be compared.
    let common = |c: &&Corruption| !c.is_extra() && runs.iter().all(|r| r.series.contains_key(c.name()));
    let common: Vec<&Corruption> = Corruption::ALL.iter().filter(common).collect();
    let mut means = Panel::new("mean", "severity", "accuracy").y_range(0.0, 1.0);
    for (k, run) in runs.iter().enumerate() {
        let values: Vec<f64> = (0..severities.clone().count())
            .map(|s| mean(common.iter().filter_map(|c| run.series.get(c.name())?.get(s))))
            .collect();
        means.push(Mark::line(line(run, &values), k).labeled(&run.model));
    }
    let mut panels = vec![means];
    for corruption in Corruption::ALL {
        let mut panel =
            Panel::new(corruption.name().replace('_', " "), "severity", "accuracy").y_range(0.0, 1.0);
        for (k, run) in runs.iter().enumerate() {
            if let Some(values) = run.series.get(corruption.name()) {
                panel.push(Mark::line(line(run, values), k));
            }
        }
        panels.push(panel);
    }
    files::write_figure(
        &experiment.settings.out,
        "corruptions",
        &Figure::new(panels).columns(3).panel_size(300.0, 220.0),
    )?;
    result.figures.push((
        "corruptions".into(),
        format!(
            "Accuracy on clean test images (severity 0) and on images under seventeen corruptions, seed 0; the mean is over {} kinds, which all runs have, without those for validation.",
            common.len()
        ),
    ));
    if experiment.settings.quick && experiment.settings.data.is_none() {
        result
            .notes
            .push("Made of stripes, not of CIFAR-10: the short version without data.".into());
    }
    result.notes.push(
        "Corruptions are of the kinds and constants of CIFAR-10-C with random numbers of our own. Means are, as published, over the kinds that are not for validation, without frost. Likelihood and calibration are those of the mean-field approximation with the factor π/8; `mode_`, of the mean of the logits alone. Bounds are those of the blocks; convolutions of bounded norm lie between them.".into(),
    );
    Ok(())
}
