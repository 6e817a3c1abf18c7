#![doc = include_str!("../README.md")]

mod adam;
mod baselines;
mod bounds;
mod checkpoint;
mod conv;
pub mod data;
mod device;
mod error;
#[cfg(test)]
mod golden;
mod gp;
#[cfg(feature = "gpu")]
mod gpu;
mod kernel;
mod mlp;
mod modules;
mod network;
mod normalized;
mod ops;
mod partial;
mod portable;
mod potential;
mod predict;
mod progress;
mod published;
mod schedule;
mod spectral;
mod train;
mod vision;

pub use adam::{Adam, AdamState};
pub use baselines::{Branch, Icnn, ResidualConfig, ResidualLayer, ResidualNet};
pub use bounds::{BoundsMode, LayerBounds};
pub use conv::{ConvBiLipNet, ConvConfig, ConvMonLip};
pub use device::{Device, OnDevice};
pub use error::{Error, Result};
pub use gp::{Accumulation, GpConfig, GpNet, RandomFeatureGp, Sngp};
pub use mlp::Mlp;
pub use modules::{
    CayleyOrthogonal, HouseholderOrthogonal, MonLip, MonLipConfig, OrthogonalKind, OrthogonalLayer,
};
pub use network::{BiLipNet, BiLipNetConfig};
pub use normalized::{NormalizedConv, NormalizedConvConfig};
pub use partial::{PartialBiLipNet, PartialConfig};
pub use potential::{PartialPlNet, PlNet, Quadratic};
pub use predict::Predict;
pub use progress::Progress;
pub use published::PublishedBiLipNet;
pub use schedule::Schedule;
pub use spectral::{Normalization, NormalizedLinear};
pub use train::{Epoch, Loss, OptimizerKind, TrainConfig, Trained, time_spent, train};
pub use vision::{Augment, ConvFeatures, ConvFeaturesConfig, WideResNet, WideResNetConfig};
