//! Descriptions that layers, operations and backends share: shapes, places, choices. Nothing here
//! computes.

mod adam;
mod convolution;
mod fourier;
mod monlip;
mod product;
mod rearrangement;

pub(crate) use adam::AdamStep;
pub(crate) use convolution::{Convolved, Window};
pub(crate) use fourier::{frequencies, weight};
pub use monlip::Layout;
pub(crate) use product::{MatmulPrecision, Transposed};
pub(crate) use rearrangement::{Rearrangement, Strips};
