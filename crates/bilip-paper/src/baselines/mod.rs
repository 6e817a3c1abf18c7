//! The networks that the paper compares with, under the same interface.

mod icnn;
mod linear;
mod residual;
mod sngp;
mod wide_resnet;

pub use icnn::{Icnn, IcnnConfig};
pub use linear::{Normalization, NormalizedLinear};
pub use residual::{Branch, ResidualConfig, ResidualLayer, ResidualNet};
pub use sngp::{Sngp, SngpConfig};
pub use wide_resnet::{WideResNet, WideResNetConfig};
