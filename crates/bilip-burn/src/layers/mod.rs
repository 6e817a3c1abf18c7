//! Layers as Burn modules: settings, `init`, `forward`, `freeze`.

mod bounds;
mod conv_monlip;
mod convolution;
mod gp;
mod groups;
mod mlp;
mod monlip;
mod orthogonal;

pub use bounds::{BoundsMode, LayerBounds};
pub use conv_monlip::{ConvMonLip, ConvMonLipConfig};
pub use convolution::{NormalizedConv, NormalizedConvConfig};
pub use gp::{Accumulation, GpConfig, RandomFeatureGp};
pub(crate) use gp::{fixed, matrix};
pub use groups::ImageGroups;
pub use mlp::{Mlp, MlpConfig};
pub use monlip::{MonLip, MonLipConfig};
pub use orthogonal::{
    CayleyOrthogonal, HouseholderOrthogonal, OrthogonalConfig, OrthogonalKind, OrthogonalLayer,
};
