#![doc = include_str!("../README.md")]

mod backend;
mod base;
mod layers;
mod networks;
pub mod ops;
mod spec;
mod train;

pub use base::{Columns, Dataset, Device, Error, Loss, OnDevice, Result, shuffled};
pub use layers::{
    Accumulation, BoundsMode, CayleyOrthogonal, ConvMonLip, ConvMonLipConfig, GpConfig,
    HouseholderOrthogonal, ImageGroups, LayerBounds, Mlp, MlpConfig, MonLip, MonLipConfig, NormalizedConv,
    NormalizedConvConfig, OrthogonalConfig, OrthogonalKind, OrthogonalLayer, RandomFeatureGp,
};
pub use networks::{
    BiLipNet, BiLipNetConfig, ConvBiLipNet, ConvFeatures, ConvFeaturesConfig, GpNet, OffsetPlNet,
    PartialBiLipNet, PartialConfig, PartialPlNet, PlNet, PooledProjection, Predict, Quadratic,
};
pub use train::{
    Adam, AdamState, Augment, Epoch, OptimizerKind, Progress, Schedule, TrainConfig, Trained, time_spent,
    train,
};
