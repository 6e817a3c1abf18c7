//! Configurations of the experiments: every setting in one TOML file each.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files;

/// One experiment's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Rows of training data.
    pub rows: usize,
    /// Rows of test data, or points along the side of the test grid.
    pub test: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Passes through the data.
    pub epochs: usize,
    /// Largest learning rate.
    pub peak: f64,
    /// The one-cycle schedule (a, b, d, e).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycle: Option<[f64; 4]>,
    /// Or a schedule of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// Length of the schedule in steps; the run's own if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_steps: Option<usize>,
    /// Of images: whether corrupted ones are looked at, too.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub corrupted: bool,
    /// The models.
    pub models: Vec<ModelConfig>,
    /// Values to compare with, by metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reference: BTreeMap<String, Reference>,
}

/// A rate that grows over a first share of the run and falls by a factor at some others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// The share in which the rate is reached.
    #[serde(default)]
    pub warm: f64,
    /// Shares at which it falls.
    pub at: Vec<f64>,
    /// By what.
    pub factor: f64,
}

/// One model of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The name in tables and metrics.
    pub name: String,
    /// What it is.
    pub kind: ModelFamily,
    /// For the residual baselines and feature maps: the variant of the published code instead of
    /// the one with the spectral norm.
    #[serde(default)]
    pub published: bool,
    /// Fixed bounds (μ, ν).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[f64; 2]>,
    /// Fixed distortion, ν learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// The Lipschitz bound of a residual branch, from which the bounds of a feature map follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<f64>,
    /// Hidden widths.
    pub hidden: Vec<usize>,
    /// Monotone or residual layers.
    #[serde(default = "one")]
    pub depth: usize,
    /// The activation.
    #[serde(default = "relu")]
    pub activation: String,
    /// Another largest learning rate than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<f64>,
    /// Whether a residual network on images has batch normalization.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch_norm: bool,
    /// Share of the channels that such a network leaves out at random while training.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// Whether its kernels are scaled down after every step, as in the published code.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub projected: bool,
    /// Most seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds: Option<usize>,
}

fn is_zero(v: &f64) -> bool {
    *v == 0.0
}

fn yes() -> bool {
    true
}

fn is_yes(v: &bool) -> bool {
    *v
}

fn one() -> usize {
    1
}

fn relu() -> String {
    "relu".into()
}

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelFamily {
    /// A monotone layer.
    Monlip,
    /// A PL network.
    Plnet,
    /// A perceptron under the quadratic potential.
    Mlp,
    /// An input-convex network.
    Icnn,
    /// Residual layers, branches layer after layer.
    IResnet,
    /// Residual layers, branches with concatenation.
    IDensenet,
    /// A bi-Lipschitz network under a Gaussian process.
    GpBilipnet,
    /// SNGP: residual layers under a Gaussian process.
    GpSngp,
    /// A bi-Lipschitz image network under a Gaussian process.
    ConvBilipnet,
    /// SNGP on images: a wide residual network under a Gaussian process.
    ConvSngp,
}

/// What others report for a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// The paper.
    #[serde(default)]
    pub paper: Option<f64>,
    /// A rerun of the authors' code.
    #[serde(default)]
    pub published_code: Option<f64>,
}

impl Config {
    /// The configuration shipped for an experiment, or one from a file.
    ///
    /// # Errors
    /// When the file cannot be read or says something that is not known.
    pub fn read(shipped: &str, file: Option<&Path>) -> Result<Self> {
        let (text, what) = match file {
            None => (shipped.to_string(), "shipped configuration".to_string()),
            Some(path) => (files::read(path)?, path.display().to_string()),
        };
        let config: Config = toml::from_str(&text)
            .map_err(|e| Error::config(&what, e.message().lines().next().unwrap_or("not readable")))?;
        let numbers = [
            ("rows", config.rows),
            ("test", config.test),
            ("batch", config.batch),
            ("epochs", config.epochs),
        ];
        for (name, value) in numbers {
            if value == 0 {
                return Err(Error::config(what, format!("{name} = 0: must be at least 1")));
            }
        }
        if config.cycle.is_some() == config.steps.is_some() {
            return Err(Error::config(what, "one of `cycle` and `steps` must be given"));
        }
        for (k, model) in config.models.iter().enumerate() {
            if config.models[..k].iter().any(|m| m.name == model.name) {
                return Err(Error::config(
                    what,
                    format!("two models are called {:?}", model.name),
                ));
            }
            if model.hidden.is_empty() || model.hidden.contains(&0) || model.depth == 0 {
                return Err(Error::config(
                    what,
                    format!("{:?}: hidden widths and depth must be at least 1", model.name),
                ));
            }
        }
        Ok(config)
    }

    /// What is set otherwise here than in the configuration of earlier runs, if anything is. Models
    /// that only one of them has and values to compare with do not count.
    pub(crate) fn difference(&self, earlier: &Config) -> Option<String> {
        let settings = |c: &Config| {
            [
                ("rows", c.rows.to_string()),
                ("test", c.test.to_string()),
                ("batch", c.batch.to_string()),
                ("epochs", c.epochs.to_string()),
                ("peak", c.peak.to_string()),
                ("cycle", format!("{:?}", c.cycle)),
                ("steps", format!("{:?}", c.steps)),
                ("schedule_steps", format!("{:?}", c.schedule_steps)),
                ("corrupted", c.corrupted.to_string()),
            ]
        };
        for ((name, was), (_, is)) in settings(earlier).into_iter().zip(settings(self)) {
            if was != is {
                return Some(format!("{name} {was} instead of {is}"));
            }
        }
        for model in &self.models {
            let found = earlier.models.iter().find(|m| m.name == model.name).cloned();
            let seeds = model.seeds;
            if found.is_some_and(|m| ModelConfig { seeds, ..m } != *model) {
                return Some(format!("another {}", model.name));
            }
        }
        None
    }

    /// The same with image networks of another width, which their names then say.
    ///
    /// # Errors
    /// When there are none, or the width is 0.
    pub fn with_width(mut self, width: usize) -> Result<Self> {
        if width == 0 {
            return Err(Error::config("width", "must be at least 1"));
        }
        let images =
            |m: &&mut ModelConfig| matches!(m.kind, ModelFamily::ConvBilipnet | ModelFamily::ConvSngp);
        let mut found = false;
        for model in self.models.iter_mut().filter(images) {
            found = true;
            // Half the width makes about as many parameters.
            model.hidden = match model.kind {
                ModelFamily::ConvSngp => vec![(width / 2).max(1)],
                _ => vec![width],
            };
            let name = model.name.strip_suffix(')').unwrap_or(&model.name);
            model.name = format!("{name},width {})", model.hidden[0]);
        }
        match found {
            true => Ok(self),
            false => Err(Error::config("width", "belongs to image networks")),
        }
    }

    /// A version that takes seconds instead of minutes: for tests, and to see that everything
    /// works.
    pub fn quick(mut self) -> Self {
        self.rows = (self.rows / 20).max(100);
        self.test = if self.test > 10_000 {
            2_000
        } else {
            (self.test / 5).max(40)
        };
        self.epochs = (self.epochs / 100).max(2);
        self.schedule_steps = None;
        if self.models.iter().any(|m| m.kind == ModelFamily::ConvBilipnet) {
            (self.rows, self.test, self.batch) = (self.rows.min(96), self.test.min(24), self.batch.min(32));
            self.models.truncate(1);
        }
        for model in &mut self.models {
            if matches!(model.kind, ModelFamily::ConvBilipnet | ModelFamily::ConvSngp) {
                model.hidden.fill(1);
                continue;
            }
            for width in &mut model.hidden {
                *width = (*width / 8).max(4);
            }
        }
        self
    }
}
