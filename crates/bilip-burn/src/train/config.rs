//! Settings of a run.

use std::path::PathBuf;

use super::{Adam, Augment, Schedule};
use crate::base::{Columns, Dataset, Error, Loss, Result};

/// The optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptimizerKind {
    /// Adam, or AdamW with a decay.
    Adam(Adam),
    /// Stochastic gradient descent with momentum (0 for none) and Nesterov's variant.
    Sgd {
        /// The momentum.
        momentum: f64,
        /// Whether the momentum is Nesterov's.
        nesterov: bool,
    },
}

/// Settings of a run.
///
/// | setting | default | effect |
/// |---|---|---|
/// | `epochs`, `batch` | 100, 100 | length of the run and of a step |
/// | `schedule` | one-cycle, peak 1e-3, (0.25, 0.7, 10, 100) | learning rate |
/// | `schedule_steps` | none | length of the schedule in steps; the run's own if none |
/// | `loss`, `optimizer` | ½·MSE, Adam | |
/// | `seed` | 0 | order of the batches |
/// | `patience` | none | stops after this many epochs without a better validation loss |
/// | `keep_best` | false | returns the model of the epoch with the lowest validation loss, not the last; not with checkpoints |
/// | `clip` | none | largest norm of a parameter's gradient |
/// | `checkpoints` | none | folder of checkpoints; a run found there is resumed |
/// | `checkpoint_every` | 10 | epochs between checkpoints |
/// | `metrics` | none | file of the epochs' figures, CSV or, by its name, JSON |
/// | `augment` | none | images moved and mirrored at random |
/// | `progress` | false | loss, bounds, step time and time left: a bar on a terminal, else a line every half minute |
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Passes through the table.
    pub epochs: usize,
    /// Rows of a mini-batch.
    pub batch: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// Length of the schedule in steps; `None` takes the run's own.
    pub schedule_steps: Option<usize>,
    /// What is minimized.
    pub loss: Loss,
    /// By what.
    pub optimizer: OptimizerKind,
    /// Seed of the order of batches.
    pub seed: u64,
    /// Epochs without improvement of the validation loss before the run stops.
    pub patience: Option<usize>,
    /// Return the model of the epoch with the lowest validation loss instead of the last one.
    pub keep_best: bool,
    /// Largest Euclidean norm of a parameter tensor's gradient.
    pub clip: Option<f64>,
    /// Where checkpoints are written, and looked for.
    pub checkpoints: Option<PathBuf>,
    /// Epochs between checkpoints.
    pub checkpoint_every: usize,
    /// Where the figures of every epoch are written, as a CSV table or, if the name ends in
    /// `.json`, as JSON.
    pub metrics: Option<PathBuf>,
    /// Changes of the inputs, if they are images, at random in every step.
    pub augment: Option<Augment>,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 100,
            batch: 100,
            schedule: Schedule::one_cycle(1e-3, (0.25, 0.7, 10.0, 100.0)),
            schedule_steps: None,
            loss: Loss::HalfMse,
            optimizer: OptimizerKind::Adam(Adam::default()),
            seed: 0,
            patience: None,
            keep_best: false,
            clip: None,
            checkpoints: None,
            checkpoint_every: 10,
            metrics: None,
            augment: None,
            progress: false,
        }
    }
}

impl TrainConfig {
    /// Whether the settings are in range, and the rows those that a model takes.
    pub(super) fn check(&self, model: Columns, data: &Dataset, validation: Option<&Dataset>) -> Result<()> {
        self.schedule.check()?;
        for (name, value) in [
            ("epochs", self.epochs),
            ("batch", self.batch),
            ("checkpoint_every", self.checkpoint_every),
        ] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        if let Some(clip) = self.clip
            && !(clip > 0.0 && clip.is_finite())
        {
            return Err(Error::setting("clip", clip, "must be positive and finite"));
        }
        if self.patience.is_some() && validation.is_none() {
            return Err(Error::setting(
                "patience",
                self.patience,
                "needs a validation table",
            ));
        }
        if self.keep_best && (validation.is_none() || self.checkpoints.is_some()) {
            return Err(Error::setting(
                "keep_best",
                true,
                "needs a validation table, and no checkpoints, which hold the last model only",
            ));
        }
        let expected = match self.loss {
            Loss::HalfMse => model,
            // The class, whatever the number of logits.
            Loss::CrossEntropy => Columns { targets: 1, ..model },
        };
        for rows in [Some(data), validation].into_iter().flatten() {
            if rows.columns() != expected {
                return Err(Error::setting(
                    "data",
                    rows.columns().to_string(),
                    format!("the model takes {expected}"),
                ));
            }
        }
        Ok(())
    }
}
