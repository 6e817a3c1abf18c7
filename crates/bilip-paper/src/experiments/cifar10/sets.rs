//! What a trained network makes of sets of test images.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bilip::{GpHead, metrics};
use bilip_burn::Progress;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::work::Trained;
use crate::error::{Error, Result};
use crate::files;
use crate::images::{Corruption, Images, SIDE};

/// Means and deviations of the three colors over the training data.
const MEAN: [f64; 3] = [0.4914, 0.4822, 0.4465];
const DEVIATION: [f64; 3] = [0.2470, 0.2435, 0.2616];
/// The factor of the mean-field approximation.
const FACTOR: f64 = std::f64::consts::PI / 8.0;
const BINS: usize = 15;

/// Pixels in units of their deviation.
pub(super) fn normalized(pixels: &[u8]) -> Vec<f64> {
    let values: [[f64; 256]; 3] = std::array::from_fn(|color| {
        std::array::from_fn(|v| (v as f64 / 255.0 - MEAN[color]) / DEVIATION[color])
    });
    pixels
        .par_chunks(SIDE * SIDE)
        .enumerate()
        .flat_map_iter(|(k, plane)| plane.iter().map(move |v| values[k % 3][usize::from(*v)]))
        .collect()
}

/// What is measured on a set of images: accuracy; likelihood and calibration by the mean-field
/// approximation, and by the mean of the logits alone.
pub(super) const QUALITIES: [&str; 5] = ["accuracy", "nll", "ece", "mode_nll", "mode_ece"];
pub(super) type Quality = [f64; QUALITIES.len()];

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
pub(super) enum Set {
    Clean,
    Corrupted(Corruption, usize),
}

impl Set {
    pub fn name(self) -> String {
        match self {
            Set::Clean => "clean".into(),
            Set::Corrupted(corruption, severity) => format!("{} {severity}", corruption.name()),
        }
    }

    pub fn of(self, test: &Images) -> Result<Images> {
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
pub(super) struct Found {
    #[serde(skip)]
    path: PathBuf,
    /// The last loss of the training that it belongs to.
    loss: f64,
    pub sets: BTreeMap<String, Quality>,
}

impl Found {
    pub fn read(path: PathBuf) -> Self {
        let found = files::read_json(&path).unwrap_or_default();
        Found { path, ..found }
    }

    pub fn missing(&self, sets: &[Set]) -> Vec<Set> {
        let unknown = |set: &&Set| !self.sets.contains_key(&set.name());
        sets.iter().filter(unknown).copied().collect()
    }

    /// Forgets what belongs to another training, and says whether there was any.
    pub fn forget_unless(&mut self, loss: f64) -> bool {
        let other = self.loss.to_bits() != loss.to_bits() && !self.sets.is_empty();
        if other {
            self.sets.clear();
        }
        self.loss = loss;
        other
    }

    pub fn judge(&mut self, trained: &Trained, sets: &[(Set, Images)], shown: bool) -> Result<()> {
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
                // While a GPU looks at a set, the processor judges the one before and makes the one
                // after ready.
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

/// What a thread has found.
pub(super) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| Error::config("cifar10", "a thread has failed; this is a mistake of ours"))
}
