//! Variants of the published code, with their slips: to be compared with, not to be used.

mod bilipnet;
mod conv;

pub use bilipnet::PublishedBiLipNet;
pub use conv::conv_bounds;
