#![doc = include_str!("../README.md")]

mod activation;
mod bias;
mod bilipnet;
mod bounds;
mod cayley;
mod certificate;
mod classifier;
mod conv;
mod decimal;
mod error;
mod estimate;
mod files;
mod gp;
mod inverse;
mod map;
pub mod metrics;
mod minimum;
mod mlp;
mod model;
mod monlip;
#[cfg(feature = "onnx")]
mod onnx;
mod orthogonal;
mod parallel;
mod partial;
mod plnet;
mod random;
mod real;
mod rounding;
mod scaling;
mod strict;

pub use activation::{Activation, Slope};
pub use bilipnet::{BiLipNet, BiLipNetFree};
pub use bounds::{Bounds, Claimed};
pub use cayley::{cayley, householder, inverse_cayley, with_norm};
pub use certificate::psd::norm2_upper as spectral_norm_bound;
pub use certificate::{Certificate, LayerCertificate, LayerKind, Proved};
pub use classifier::Classifier;
pub use conv::{ConvFree, ConvMonLip, Kernels};
pub use decimal::{at_least, at_most, json as json_number};
pub use error::{Error, Result};
pub use estimate::{Estimate, local_lipschitz, measured_slopes};
/// The linear algebra library whose matrices this crate takes and gives.
pub use faer;
pub use files::write_file;
pub use gp::{GpHead, PosteriorPrecision, RandomFeatures};
pub use inverse::{
    DavisYin, DouglasRachford, ForwardBackward, ForwardBackwardForward, ForwardStep, Inverse, InverseMethod,
    InverseOptions, Iteration, LayerProblem, Method, Newton, PeacemanRachford, RowReport, Status, TracePoint,
};
pub use map::{BiLipschitz, LayerRef, RowEvaluator};
pub use minimum::{GradientMethod, GradientPath, Minimum, distance_to_minimum};
pub use mlp::Mlp;
pub use model::{FORMAT_VERSION, MAX_FILE_SIZE, Model, Network, Stored, StoredCertificate};
pub use monlip::{FormulaConstants, MonLip, MonLipExplicit, MonLipFree};
#[cfg(feature = "onnx")]
pub use onnx::Onnx;
pub use orthogonal::Orthogonal;
pub use partial::{PartialBiLipNet, PartialPlNet};
pub use plnet::PlNet;
pub use random::Rng;
pub use real::{Precision, Real};
pub use scaling::Scaling;
