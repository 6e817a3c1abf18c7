//! Layers with explicit weights: what they compute, how exactly, and what is proved of them.

pub(crate) mod activation;
pub(crate) mod bias;
pub(crate) mod cayley;
pub(crate) mod channels;
pub(crate) mod conv;
pub(crate) mod convolution;
pub(crate) mod evaluate;
pub(crate) mod gp;
pub(crate) mod layer;
pub(crate) mod mlp;
pub(crate) mod monlip;
pub(crate) mod monotone;
pub(crate) mod orthogonal;
pub(crate) mod scaling;
pub(crate) mod stack;
