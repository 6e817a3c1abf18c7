//! What everything else stands on: errors, devices, rows of data, losses, and helpers for tensors.

mod dataset;
mod device;
mod error;
mod loss;
mod tensors;

pub use dataset::{Columns, Dataset, shuffled};
pub use device::{Device, OnDevice};
pub use error::{Error, Result};
pub use loss::Loss;
pub(crate) use tensors::{numbers, primitive, vector, wrap};
