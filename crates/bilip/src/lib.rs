#![doc = include_str!("../README.md")]

// From the bottom up: each module uses those above it in this list and none below (`.ci/layers`
// checks it).
mod base;
mod certify;
mod inverse;
mod layers;
mod minimum;
mod model;
mod networks;

pub use base::bounds::{Bounds, Claimed};
pub use base::decimal::{at_least, at_most, json as json_number};
pub use base::error::{Error, Result};
pub use base::files::write_file;
pub use base::random::Rng;
pub use base::real::{Precision, Real};
pub use certify::psd::norm2_upper as spectral_norm_bound;
pub use certify::{Certificate, LayerCertificate, LayerKind, Proved};
/// The linear algebra library whose matrices this crate takes and gives.
pub use faer;
pub use inverse::{
    DavisYin, DouglasRachford, ForwardBackward, ForwardBackwardForward, ForwardStep, Inverse, InverseMethod,
    InverseOptions, Iteration, LayerProblem, Method, Newton, PeacemanRachford, RowReport, Status, TracePoint,
};
pub use layers::activation::{Activation, Slope};
pub use layers::cayley::{cayley, householder, inverse_cayley, with_norm};
pub use layers::channels::ChannelOrthogonal;
pub use layers::conv::{ConvFree, ConvMonLip, Kernels, RandomConvLayer};
pub use layers::convolution::Convolution;
pub use layers::gp::{GpHead, PosteriorPrecision, RandomFeatures};
pub use layers::mlp::Mlp;
pub use layers::monlip::{FormulaConstants, MonLip, MonLipExplicit, MonLipFree, RandomLayer};
pub use layers::orthogonal::Orthogonal;
pub use layers::scaling::Scaling;
pub use layers::stack::LayerRef;
pub use minimum::{
    BoundedMinimum, BoxOptions, BoxStatus, GradientMethod, GradientPath, Minimum, distance_to_minimum,
};
#[cfg(feature = "onnx")]
pub use model::onnx::Onnx;
pub use model::{FORMAT_VERSION, MAX_FILE_SIZE, Model, Network, Stored, StoredCertificate};
pub use networks::bilipnet::{BiLipNet, BiLipNetFree};
pub use networks::classifier::Classifier;
pub use networks::conv::ConvBiLipNet;
pub use networks::estimate::{Estimate, local_lipschitz, measured_slopes};
pub use networks::image::{ImageClassifier, ImageFeatures, ImageStep};
pub use networks::map::{BiLipschitz, RowEvaluator};
pub use networks::metrics;
pub use networks::partial::{PartialBiLipNet, PartialPlNet};
pub use networks::plnet::PlNet;
