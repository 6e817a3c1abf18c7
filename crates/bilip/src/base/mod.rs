//! What everything else stands on: numbers, errors, bounds, threads, files.

pub(crate) mod bounds;
pub(crate) mod decimal;
pub(crate) mod double;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod matrix;
pub(crate) mod parallel;
pub(crate) mod random;
pub(crate) mod real;
pub(crate) mod rounding;
