//! Networks: sequences of layers with a guarantee as a whole.

pub(crate) mod bilipnet;
pub(crate) mod classifier;
pub(crate) mod conv;
pub(crate) mod estimate;
pub(crate) mod image;
pub(crate) mod map;
pub mod metrics;
pub(crate) mod partial;
pub(crate) mod plnet;
