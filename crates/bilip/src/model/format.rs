//! What stands in the metadata of a model file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::bounds::Bounds;
use crate::base::real::Precision;
use crate::certify::LayerKind;
use crate::layers::activation::Activation;

/// The newest version of the file format. Networks on vectors are written as version 1, networks on
/// images as 2, partial PL networks with an offset network as 3.
pub const FORMAT_VERSION: u32 = 3;

/// Files larger than this are refused: 4 GiB.
pub const MAX_FILE_SIZE: u64 = 4 << 30;

/// The metadata key that holds everything but the tensors.
pub(super) const KEY: &str = "bilip";

/// What a model file says is proved of it: a claim, like everything in a file.
///
/// [`Model::certificate`](crate::Model::certificate) is the proof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredCertificate {
    mu: f64,
    nu: f64,
    distortion: f64,
    holds: bool,
    certified_mu: f64,
    #[serde(with = "crate::base::decimal::json")]
    certified_nu: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pl_constant: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lipschitz: Option<serde_json::Value>,
    pub(super) layers: Vec<StoredLayer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct StoredBounds {
    mu: f64,
    nu: f64,
}

/// The same of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredLayer {
    kind: LayerKind,
    claimed: StoredBounds,
    holds: bool,
    margin: f64,
    certified_mu: f64,
    #[serde(with = "crate::base::decimal::json")]
    certified_nu: f64,
}

impl StoredLayer {
    /// Whether the numbers agree with each other and with the layer: those of an undamaged file do.
    pub(super) fn is_consistent(&self, kind: LayerKind, design: Option<Bounds>) -> bool {
        let numbers =
            self.margin.is_finite() && self.certified_mu >= 0.0 && self.certified_mu <= self.certified_nu;
        let claim = design.is_none_or(|b| (b.mu(), b.nu()) == (self.claimed.mu, self.claimed.nu));
        let verdict =
            !self.holds || (self.certified_mu >= self.claimed.mu && self.certified_nu <= self.claimed.nu);
        self.kind == kind && numbers && claim && verdict
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NetworkKind {
    MonLip,
    BiLipNet,
    PlNet,
    PartialBiLipNet,
    PartialPlNet,
    Classifier,
    ConvBiLipNet,
    ImageFeatures,
    ImageClassifier,
}

/// Sizes of a bias network's layers after its input.
pub(super) type MlpSizes = Vec<usize>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header<C> {
    pub(super) format_version: u32,
    pub(super) kind: NetworkKind,
    pub(super) precision: Precision,
    pub(super) n: usize,
    #[serde(default)]
    pub(super) parameters: usize,
    pub(super) bounds: Bounds,
    pub(super) blocks: Vec<Block>,
    /// Whether there is a change of variables before the first and after the last layer.
    #[serde(default)]
    pub(super) input_scaling: bool,
    #[serde(default)]
    pub(super) output_scaling: bool,
    #[serde(default)]
    pub(super) offset: f64,
    #[serde(default)]
    pub(super) known_minimizer: bool,
    #[serde(default)]
    pub(super) orthogonal_bias_networks: Vec<MlpSizes>,
    #[serde(default)]
    pub(super) hidden_bias_networks: Vec<MlpSizes>,
    /// The network of a partial PL network's offset, in format version 3 alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offset_network: Option<MlpSizes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head: Option<Head>,
    /// Written as a [`Certificate`], read as a [`StoredCertificate`].
    pub(super) certificate: C,
    #[serde(default)]
    pub(super) provenance: BTreeMap<String, String>,
}

/// The header of a file with a network on images: format version 2.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ImageHeader<C> {
    pub(super) format_version: u32,
    pub(super) kind: NetworkKind,
    pub(super) precision: Precision,
    /// Channels and side of the images that go in.
    pub(super) channels: usize,
    pub(super) image: usize,
    /// What the network, or each block of a feature map, claims.
    pub(super) bounds: Bounds,
    pub(super) steps: Vec<Step>,
    /// Numbers that come out of a feature map.
    #[serde(default)]
    pub(super) outputs: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) head: Option<Head>,
    pub(super) certificate: C,
    #[serde(default)]
    pub(super) provenance: BTreeMap<String, String>,
}

/// A step of a network on images.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    Block {
        bounds: Bounds,
        layers: Vec<Block>,
    },
    Convolution {
        outputs: usize,
        kernel: usize,
        stride: usize,
        bound: f64,
    },
}

/// The process of a classifier.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) inputs: usize,
    pub(super) features: usize,
    pub(super) classes: usize,
    pub(super) normalized: bool,
    pub(super) factor: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Block {
    pub(super) units: Vec<usize>,
    pub(super) activation: Activation,
    pub(super) bounds: Bounds,
    pub(super) psi: bool,
}
