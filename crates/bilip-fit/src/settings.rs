//! What a fit is asked for.

use std::path::PathBuf;

use bilip::{Activation, Precision};
use bilip_burn::Device;

use crate::columns::MissingValues;
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
/// | `target` | | target columns, by name, number from 1 or range (see [`Table::find_all`](crate::Table::find_all)), as all columns |
/// | `inputs` | all others | input columns |
/// | `params` | none | parameter columns: the guarantee holds in the inputs for each of their values |
/// | `exclude` | none | columns left out of the inputs |
/// | `categories` | none | columns of words among inputs and parameters, each category but the first a variable |
/// | `weights` | none | a column of row weights |
/// | `na` | `Error` | see [`MissingValues`] |
/// | `quick` | false | one plain fit instead of a search over settings |
/// | `budget` | 1 | steps of the search, in units of the default |
/// | `mu`, `nu`, `tau` | searched, or `tau` = 100 | bounds of the standardized variables; `tau` alone learns ν |
/// | `hidden`, `blocks` | 64,64 and 2 | hidden widths of a monotone layer, number of monotone layers |
/// | `activation` | searched, or ReLU | |
/// | `householder` | none | orthogonal layers as products of N reflections instead of Cayley transforms |
/// | `general` | false | Q of the general form, `QᵀQ ⪯ I` |
/// | `minimum` | none | the point where the minimum is known to be |
/// | `constant_offset` | false | one minimum value for all parameters, as in the paper; otherwise it depends on them |
/// | `width`, `features`, `length_scale` | see there | of a classifier |
/// | `in_units`, `no_standardize` | false | bounds in the user's units, with one factor for all columns; columns as they are |
/// | `epochs` | 300 | of a plain fit, which it asks for |
/// | `batch`, `lr`, `optimizer`, `decay`, `clip` | 100, 5e-3, Adam, 0, none | training |
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
    /// Columns left out of the inputs.
    pub exclude: Vec<String>,
    /// Columns of words among inputs and parameters. Each category but the first in order becomes a
    /// variable of 0 and 1, `color=red`; rows of the first are those where all others are 0.
    pub categories: Vec<String>,
    /// The column of the rows' weights, which are not negative.
    pub weights: Option<String>,
    /// What to do with missing values.
    pub na: MissingValues,
    /// The kind of model.
    pub model: ModelKind,
    /// Inverse-Lipschitz bound.
    pub mu: Option<f64>,
    /// Lipschitz bound.
    pub nu: Option<f64>,
    /// Distortion ν/μ.
    pub tau: Option<f64>,
    /// Hidden widths of a monotone layer; 64,64 if not given.
    pub hidden: Option<Vec<usize>>,
    /// Number of monotone layers; 2 if not given.
    pub blocks: Option<usize>,
    /// The activation; chosen by the search, or ReLU, if not given.
    pub activation: Option<Activation>,
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
    /// One plain fit instead of a search.
    pub quick: bool,
    /// Steps of a search, in units of the default.
    pub budget: f64,
    /// Passes through the table of a plain fit, which this asks for; 300 if not given.
    pub epochs: Option<usize>,
    /// Rows per step; chosen by the number of rows, or 100 in a plain fit, if not given.
    pub batch: Option<usize>,
    /// Largest learning rate of the one-cycle schedule; 5e-3 if not given.
    pub lr: Option<f64>,
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
            exclude: Vec::new(),
            categories: Vec::new(),
            weights: None,
            na: MissingValues::Error,
            model,
            mu: None,
            nu: None,
            tau: None,
            hidden: None,
            blocks: None,
            activation: None,
            householder: None,
            general: false,
            minimum: None,
            constant_offset: false,
            width: None,
            features: None,
            length_scale: None,
            in_units: false,
            no_standardize: false,
            quick: false,
            budget: 1.0,
            epochs: None,
            batch: None,
            lr: None,
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

    /// Whether this is one plain fit and not a search: where the length of the run or what depends
    /// on it is given, where its figures are wanted, and for classifiers.
    pub fn is_plain(&self) -> bool {
        self.quick
            || self.epochs.is_some()
            || self.patience.is_some()
            || self.metrics.is_some()
            || self.model == ModelKind::Classifier
            || self.no_standardize
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
            self.lr.is_none_or(|lr| lr > 0.0 && lr.is_finite()),
            Error::value(
                "lr",
                self.lr.unwrap_or_default(),
                "the learning rate must be positive",
            ),
        )?;
        need(
            self.budget > 0.0 && self.budget <= 1e4,
            Error::value("budget", self.budget, "must be positive, and at most 10000"),
        )?;
        need(
            self.decay >= 0.0 && self.decay.is_finite(),
            Error::value("decay", self.decay, "must not be negative"),
        )?;
        for (name, count) in [
            ("epochs", self.epochs.unwrap_or(1)),
            ("batch", self.batch.unwrap_or(1)),
            ("blocks", self.blocks.unwrap_or(1)),
            ("householder", self.householder.unwrap_or(1)),
        ] {
            need(count > 0, Error::value(name, 0, "must be at least 1"))?;
        }
        need(
            (self.hidden.as_ref()).is_none_or(|h| !h.is_empty() && h.iter().all(|w| *w > 0)),
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
