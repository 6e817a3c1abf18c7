#![doc = include_str!("../README.md")]

mod adam;
mod bounds;
mod checkpoint;
pub mod data;
mod error;
#[cfg(test)]
mod golden;
mod kernel;
mod modules;
mod ops;
mod partial;
mod portable;
mod schedule;
mod train;

pub use adam::{Adam, AdamState};
pub use bounds::{BoundsMode, LayerBounds};
pub use error::{Error, Result};
pub use modules::{
    BiLipNet, BiLipNetConfig, CayleyOrthogonal, HouseholderOrthogonal, MonLip, MonLipConfig, PlNet,
};
pub use partial::{BiasNetwork, PartialBiLipNet, PartialConfig, PartialPlNet};
pub use schedule::Schedule;
pub use train::{Epoch, Loss, OptimizerKind, Predict, TrainConfig, Trained, train};
