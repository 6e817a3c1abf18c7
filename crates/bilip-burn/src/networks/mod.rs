//! Networks made of the layers, and what the training loop asks of a model.

mod bilipnet;
mod conv;
#[cfg(test)]
mod golden;
mod gp;
mod image;
mod partial;
mod pooled;
mod potential;
mod predict;

pub use bilipnet::{BiLipNet, BiLipNetConfig};
pub use conv::ConvBiLipNet;
pub use gp::GpNet;
pub use image::{ConvFeatures, ConvFeaturesConfig};
pub use partial::{PartialBiLipNet, PartialConfig};
pub use pooled::PooledProjection;
pub use potential::{OffsetPlNet, PartialPlNet, PlNet, Quadratic};
pub use predict::Predict;
