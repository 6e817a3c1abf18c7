//! CIFAR-10, clean and corrupted: a bi-Lipschitz image network under a Gaussian process.

mod sets;
mod work;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use bilip::{Bounds, Rng};
use bilip_burn::Dataset;
use bilip_plot::{Figure, Mark, Panel};
use rayon::prelude::*;

use super::job_result;
use crate::error::{Error, Result};
use crate::files;
use crate::images::{Cifar, Corruption, Images, PIXELS, SEVERITIES, SIDE};
use crate::results::{ExperimentResult, JobResult};
use crate::run::{Definition, Experiment, Job};
use sets::{Found, QUALITIES, Set, joined, normalized};
use work::Work;

/// Where the data are looked for when nothing is said of it.
const FOLDER: &str = "data/cifar10";
/// Images that go through every block and back.
const SAMPLE: usize = 2;

pub(super) struct Cifar10;

impl Definition for Cifar10 {
    fn name(&self) -> &'static str {
        "cifar10"
    }

    fn title(&self) -> &'static str {
        "CIFAR-10, clean and corrupted"
    }

    fn config(&self) -> Option<&'static str> {
        Some(include_str!("../../../configs/cifar10.toml"))
    }

    fn run(&self, experiment: &Experiment, job: &Job) -> Result<JobResult> {
        run(experiment, job)
    }

    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
        finish(experiment, result)
    }
}

/// Horizontal, vertical and diagonal stripes, where there are no data: for a short version that
/// needs none.
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
            Cifar::Cifar10.read(folder)?
        }
    };
    Ok((training.first(config.rows), test.first(config.test)))
}

/// The short version looks at one severity.
fn severities(quick: bool) -> RangeInclusive<usize> {
    if quick { 3..=3 } else { 1..=SEVERITIES }
}

fn run(experiment: &Experiment, job: &Job) -> Result<JobResult> {
    let (training, test) = images(experiment)?;
    let labels = training.labels.iter().map(|l| f64::from(*l)).collect();
    let table = Dataset::new(normalized(&training.pixels), PIXELS, labels, 1)?;
    let sample = normalized(&test.first(SAMPLE).pixels);
    let kinds = (Corruption::ALL.iter().filter(|_| experiment.config.corrupted))
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
        let values = kinds.filter_map(|c| corrupted.get(&series(*c, name))).flatten();
        figures.push((format!("corrupted_{name}"), mean(values)));
    }
    let accuracies = Corruption::ALL
        .iter()
        .filter_map(|c| corrupted.get(&series(*c, "accuracy")))
        .flatten();
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

/// Accuracy against severity, a panel for every corruption.
fn picture(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
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
    Ok(())
}

fn finish(experiment: &Experiment, result: &mut ExperimentResult) -> Result<()> {
    if experiment.config.corrupted {
        picture(experiment, result)?;
    }
    if experiment.settings.quick && experiment.settings.data.is_none() {
        result
            .notes
            .push("Made of stripes, not of CIFAR-10: the short version without data.".into());
    }
    if experiment.config.corrupted {
        result.notes.push(
            "Corruptions are of the kinds and constants of CIFAR-10-C with random numbers of our own. Means are, as published, over the kinds that are not for validation, without frost.".into(),
        );
    }
    result.notes.push(
        "Likelihood and calibration are those of the mean-field approximation with the factor π/8; `mode_`, of the mean of the logits alone. Bounds are those of the blocks; convolutions of bounded norm are between them.".into(),
    );
    Ok(())
}
