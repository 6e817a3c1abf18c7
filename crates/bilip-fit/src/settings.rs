//! What a fit is asked for.

use std::path::PathBuf;

use bilip::{Activation, Precision};
use bilip_burn::Device;

use crate::error::{Error, Result};

/// The kind of model that is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// One target: a scalar with exactly one minimum.
    PlNet,
    /// As many targets as inputs: an invertible map.
    BiLipNet,
    /// As many targets as inputs: one monotone layer.
    MonLip,
    /// One target of classes: a bi-Lipschitz feature map under a Gaussian process.
    Classifier,
}

/// The optimizer of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Optimizer {
    /// Adam, or AdamW with a decay.
    Adam,
    /// Gradient descent with Nesterov momentum 0.9.
    Sgd,
}

/// Settings of [`fit`](crate::fit).
///
/// | setting | default | effect |
/// |---|---|---|
/// | `model` | `PlNet` | see [`ModelKind`] |
/// | `target` | | target columns, by name or number from 1 |
/// | `inputs` | all others | input columns |
/// | `params` | none | parameter columns: the guarantee holds in the inputs for each of their values |
/// | `mu`, `nu`, `tau` | `tau` = 100 | bounds of the standardized variables; `tau` alone learns ν |
/// | `hidden`, `blocks` | 64,64 and 2 | hidden widths of a monotone layer, number of monotone layers |
/// | `activation` | ReLU | |
/// | `householder` | none | orthogonal layers as products of N reflections instead of Cayley transforms |
/// | `general` | false | Q of the general form, `QᵀQ ⪯ I` |
/// | `minimum` | none | the point where the minimum is known to be |
/// | `constant_offset` | false | one minimum value for all parameters, as in the paper; otherwise it depends on them |
/// | `width`, `features`, `length_scale` | see there | of a classifier |
/// | `in_units`, `no_standardize` | false | bounds in the user's units, with one factor for all columns; columns as they are |
/// | `epochs`, `batch`, `lr`, `optimizer`, `decay`, `clip` | 300, 100, 5e-3, Adam, 0, none | training |
/// | `validation`, `patience` | 0.1, none | share of held-out rows; epochs without a better validation loss |
/// | `seed`, `precision`, `device` | 0, f64, CPU | |
/// | `checkpoints`, `resume`, `metrics`, `progress` | none, false, none, false | files of a run, and whether it shows how far it is |
#[derive(Clone, Debug)]
pub struct FitSettings {
    /// Target columns, by name or number from 1.
    pub target: Vec<String>,
    /// Input columns; all others if not given.
    pub inputs: Option<Vec<String>>,
    /// Parameter columns.
    pub params: Vec<String>,
    /// The kind of model.
    pub model: ModelKind,
    /// Inverse-Lipschitz bound.
    pub mu: Option<f64>,
    /// Lipschitz bound.
    pub nu: Option<f64>,
    /// Distortion ν/μ.
    pub tau: Option<f64>,
    /// Hidden widths of a monotone layer.
    pub hidden: Vec<usize>,
    /// Number of monotone layers; 2 if not given.
    pub blocks: Option<usize>,
    /// The activation.
    pub activation: Activation,
    /// Number of Householder reflections of an orthogonal layer; Cayley transforms if not given.
    pub householder: Option<usize>,
    /// Q of the general form.
    pub general: bool,
    /// The known minimum.
    pub minimum: Option<Vec<f64>>,
    /// Whether the minimum of a PL network of parameters has one value for all of them.
    pub constant_offset: bool,
    /// Dimension of a classifier's feature map; that of the inputs, at least 8, if not given.
    pub width: Option<usize>,
    /// Random features of a classifier's Gaussian process; 1,024 if not given.
    pub features: Option<usize>,
    /// Length scale of its kernel in standard deviations of the inputs; `√(inputs/2)` if not given.
    pub length_scale: Option<f64>,
    /// Whether the bounds are those in the user's units, for which all inputs share one factor.
    pub in_units: bool,
    /// Keep the columns as they are.
    pub no_standardize: bool,
    /// Passes through the table.
    pub epochs: usize,
    /// Rows per step.
    pub batch: usize,
    /// Largest learning rate of the one-cycle schedule.
    pub lr: f64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Decoupled weight decay of Adam.
    pub decay: f64,
    /// Largest norm of a gradient.
    pub clip: Option<f64>,
    /// Share of the rows held out for validation.
    pub validation: f64,
    /// Stop after this many epochs without a better validation loss.
    pub patience: Option<usize>,
    /// Seed of weights, held-out rows and batches.
    pub seed: u64,
    /// Precision of the stored weights.
    pub precision: Precision,
    /// Where to train.
    pub device: Device,
    /// The folder of checkpoints, with a text that a run must share with the one that it continues.
    pub checkpoints: Option<(PathBuf, String)>,
    /// Go on with an interrupted run.
    pub resume: bool,
    /// A .csv or .json file for the figures of every epoch.
    pub metrics: Option<PathBuf>,
    /// Show how far the run is on standard error.
    pub progress: bool,
}

impl FitSettings {
    /// Default settings of a model of a kind for target columns.
    pub fn new(model: ModelKind, target: &[&str]) -> Self {
        FitSettings {
            target: target.iter().map(|t| t.to_string()).collect(),
            inputs: None,
            params: Vec::new(),
            model,
            mu: None,
            nu: None,
            tau: None,
            hidden: vec![64, 64],
            blocks: None,
            activation: Activation::Relu,
            householder: None,
            general: false,
            minimum: None,
            constant_offset: false,
            width: None,
            features: None,
            length_scale: None,
            in_units: false,
            no_standardize: false,
            epochs: 300,
            batch: 100,
            lr: 5e-3,
            optimizer: Optimizer::Adam,
            decay: 0.0,
            clip: None,
            validation: 0.1,
            patience: None,
            seed: 0,
            precision: Precision::F64,
            device: Device::Cpu,
            checkpoints: None,
            resume: false,
            metrics: None,
            progress: false,
        }
    }

    /// Checks everything that can be checked without the table.
    ///
    /// # Errors
    /// On the first setting that is out of its range or does not go with the others.
    pub fn check(&self) -> Result<()> {
        let need = |holds: bool, error: Error| if holds { Ok(()) } else { Err(error) };
        need(
            (0.0..=0.9).contains(&self.validation),
            Error::value(
                "validation",
                self.validation,
                "the share of held-out rows must be between 0 and 0.9",
            ),
        )?;
        need(
            self.patience.is_none() || self.validation > 0.0,
            Error::setting(
                "patience",
                "needs held-out rows: the validation share must be positive",
            ),
        )?;
        need(
            self.lr > 0.0 && self.lr.is_finite(),
            Error::value("lr", self.lr, "the learning rate must be positive"),
        )?;
        need(
            self.decay >= 0.0 && self.decay.is_finite(),
            Error::value("decay", self.decay, "must not be negative"),
        )?;
        for (name, count) in [
            ("epochs", self.epochs),
            ("batch", self.batch),
            ("blocks", self.blocks.unwrap_or(1)),
            ("householder", self.householder.unwrap_or(1)),
        ] {
            need(count > 0, Error::value(name, 0, "must be at least 1"))?;
        }
        need(
            !self.hidden.is_empty() && self.hidden.iter().all(|w| *w > 0),
            Error::setting("hidden", "every width must be at least 1"),
        )?;
        if self.model == ModelKind::MonLip {
            for (name, given, why) in [
                ("params", !self.params.is_empty(), "a monotone layer has none"),
                (
                    "blocks",
                    self.blocks.is_some_and(|b| b != 1),
                    "a monotone layer is one block",
                ),
                (
                    "householder",
                    self.householder.is_some(),
                    "a monotone layer has no orthogonal ones",
                ),
            ] {
                need(!given, Error::setting(name, format!("{why}; fit a bilipnet")))?;
            }
        }
        let classifier = self.model == ModelKind::Classifier;
        need(
            !(classifier && self.in_units),
            Error::setting(
                "in_units",
                "the bounds of a classifier are those of standardized inputs",
            ),
        )?;
        need(
            !classifier || self.params.is_empty(),
            Error::setting("params", "a classifier has none"),
        )?;
        for (name, given) in [
            ("width", self.width.is_some()),
            ("features", self.features.is_some()),
            ("length_scale", self.length_scale.is_some()),
        ] {
            need(classifier || !given, Error::setting(name, "only for classifiers"))?;
        }
        if let Some(length) = self.length_scale {
            need(
                length > 0.0 && length.is_finite(),
                Error::value("length_scale", length, "must be positive"),
            )?;
        }
        if let Some(features) = self.features {
            need(
                (1..=8_192).contains(&features),
                Error::value("features", features, "must be between 1 and 8192"),
            )?;
        }
        need(
            !self.constant_offset || (self.model == ModelKind::PlNet && !self.params.is_empty()),
            Error::setting(
                "constant_offset",
                "only a plnet of parameters has an offset that could depend on them",
            ),
        )?;
        need(
            self.minimum.is_none() || (self.model == ModelKind::PlNet && self.params.is_empty()),
            Error::setting(
                "minimum",
                "only a plnet without parameters has a minimum to be known",
            ),
        )
    }
}
