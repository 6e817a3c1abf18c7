//! From a table to a certified model in the user's units: columns, standardizing, training,
//! freezing, and how good the result is on the rows. See [`fit`].
//!
//! No arguments are parsed and nothing is printed here (but progress, where it is asked for): the
//! program and other callers stand on it alike.

mod answer;
mod columns;
mod error;
mod fit;
mod folder;
mod free;
mod freeze;
mod interval;
mod landscape;
mod linear;
mod memory;
mod named;
mod orientation;
mod prepare;
mod process;
mod quadratic;
mod quality;
mod recipe;
mod search;
mod settings;
mod standard;
mod table;
pub mod text;
mod work;

pub use answer::{Answer, Point};
pub use columns::MissingValues;
pub use error::{Error, Result};
pub use fit::{Fit, fit};
pub use interval::UnseenErrors;
pub use named::NamedModel;
pub use quality::{Quality, TargetQuality};
pub use search::{Candidate, Trial};
pub use settings::{FitSettings, ModelKind, Optimizer};
pub use table::{Table, Variables};
