//! Everything that is decided about one training run.

use std::sync::Arc;

use bilip::Activation;
use bilip_burn::{BiLipNetConfig, BoundsMode, MonLipConfig, OrthogonalKind};

use crate::linear::Front;
use crate::prepare::{Prepared, width};
use crate::settings::FitSettings;

/// The number of monotone layers when nothing is said of it.
pub(crate) const DEFAULT_BLOCKS: usize = 2;

/// Hidden widths, activation, passes, rows per step and rate of a plain fit of which nothing is said.
pub(crate) const DEFAULT_HIDDEN: [usize; 2] = [64, 64];
const DEFAULT_EPOCHS: usize = 300;
const DEFAULT_BATCH: usize = 100;
const DEFAULT_RATE: f64 = 5e-3;

/// One training run.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Of the network, behind the front.
    pub bounds: BoundsMode,
    /// Dimension of the network.
    pub width: usize,
    pub hidden: Vec<usize>,
    pub blocks: usize,
    pub activation: Activation,
    pub lr: f64,
    pub batch: usize,
    pub epochs: usize,
    pub seed: u64,
    /// The linear part that is not trained.
    pub front: Option<Arc<Front>>,
    /// Whether the network is the front alone.
    pub untrained: bool,
    /// Whether the first target is fitted with its sign changed.
    pub reversed: bool,
    /// Whether all targets are.
    pub negated: bool,
    /// Where the minimum is known to be, in the user's units.
    pub minimum: Option<Vec<f64>>,
    /// What is taken off standardized targets: where the offset of a potential begins.
    pub level: f64,
}

impl Recipe {
    /// The recipe of a plain fit.
    pub fn plain(settings: &FitSettings, prepared: &Prepared) -> Self {
        Recipe {
            bounds: prepared.bounds,
            width: width(settings, prepared.inputs.len()),
            hidden: settings.hidden.clone().unwrap_or(DEFAULT_HIDDEN.to_vec()),
            blocks: settings.blocks.unwrap_or(DEFAULT_BLOCKS),
            activation: settings.activation.unwrap_or(Activation::Relu),
            lr: settings.lr.unwrap_or(DEFAULT_RATE),
            batch: settings.batch.unwrap_or(DEFAULT_BATCH),
            epochs: settings.epochs.unwrap_or(DEFAULT_EPOCHS),
            seed: settings.seed,
            front: None,
            untrained: false,
            reversed: prepared.reversed,
            negated: prepared.negated,
            minimum: settings.minimum.clone(),
            level: 0.0,
        }
    }

    pub fn layer_config(&self, settings: &FitSettings) -> MonLipConfig {
        MonLipConfig::new(self.width, self.hidden.clone(), self.bounds)
            .with_activation(self.activation)
            .with_general(settings.general)
            .with_seed(self.seed)
    }

    pub fn net_config(&self, settings: &FitSettings) -> BiLipNetConfig {
        let orthogonal = match settings.householder {
            None => OrthogonalKind::Cayley,
            Some(count) => OrthogonalKind::Householder(count),
        };
        BiLipNetConfig::new(self.blocks, self.layer_config(settings)).with_orthogonal(orthogonal)
    }
}
