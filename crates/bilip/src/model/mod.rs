//! The model file: explicit weights in a safetensors container, everything else as JSON in its metadata.
//!
//! A file is checked completely before any of it is used: container, format version, kind, sizes, shapes and types of
//! every tensor, finite numbers, bounds. Memory stays proportional to the size of the file, which is limited.
//!
//! **Nothing that a file says of itself is taken for a proof.** Bounds and certificate in a file are claims
//! ([`StoredCertificate`]); bounds of a loaded network are proved from its weights when they are first asked for, and
//! [`Model::load_verified`] asks at once. Saving goes through a temporary file and a rename.

#[cfg(feature = "onnx")]
pub(crate) mod onnx;
mod strict;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use faer::{Mat, MatRef};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result};
use crate::base::real::{Precision, Real};
use crate::certify::{Certificate, LayerKind, out_of_range};
use crate::layers::activation::Activation;
use crate::layers::gp::{GpHead, RandomFeatures};
use crate::layers::mlp::Mlp;
use crate::layers::monlip::{MonLip, MonLipExplicit};
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;
use crate::networks::bilipnet::BiLipNet;
use crate::networks::classifier::Classifier;
use crate::networks::map::BiLipschitz;
use crate::networks::partial::{PartialBiLipNet, PartialPlNet};
use crate::networks::plnet::PlNet;

/// The version of the file format written here.
pub const FORMAT_VERSION: u32 = 1;

/// Files larger than this are refused: 4 GiB.
pub const MAX_FILE_SIZE: u64 = 4 << 30;

/// The metadata key that holds everything but the tensors.
const KEY: &str = "bilip";

/// A network of any kind, with weights of one precision.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Network<T> {
    /// A monotone layer.
    MonLip(MonLip<T>),
    /// A bi-Lipschitz network.
    BiLipNet(BiLipNet<T>),
    /// A PL network.
    PlNet(PlNet<T>),
    /// A partial bi-Lipschitz network.
    PartialBiLipNet(PartialBiLipNet<T>),
    /// A partial PL network.
    PartialPlNet(PartialPlNet<T>),
    /// A feature map under a Gaussian process.
    Classifier(Classifier<T>),
}

/// A network of any kind and precision.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Weights in f32.
    F32(Network<f32>),
    /// Weights in f64.
    F64(Network<f64>),
}

/// What a model file holds: a network, and where it came from.
///
/// ```
/// use bilip::{Activation, Bounds, Model, MonLip, MonLipFree, Network, Rng};
/// let free = MonLipFree::random(2, &[8, 8], Bounds::new(0.5, 2.0)?, Activation::Relu, 1.0, &mut Rng::new(1))?;
/// let model = Model::from(Network::MonLip(MonLip::<f32>::from_free(&free)?));
/// let again = Model::from_bytes(&model.to_bytes()?)?;
/// assert!(again.certificate().holds());
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    /// The network.
    pub network: Stored,
    /// Free text about its origin: who made it from what, by key.
    pub provenance: BTreeMap<String, String>,
    /// The certificate in the file that it was read from.
    stored: Option<StoredCertificate>,
}

/// What a model file says is proved of it: a claim, like everything in a file.
///
/// [`Model::certificate`] is the proof.
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
    layers: Vec<StoredLayer>,
}

/// The same of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredLayer {
    kind: LayerKind,
    claimed: Bounds,
    holds: bool,
    margin: f64,
    certified_mu: f64,
    #[serde(with = "crate::base::decimal::json")]
    certified_nu: f64,
}

impl StoredLayer {
    /// Whether the numbers agree with each other and with the layer: those of an undamaged file do.
    fn is_consistent(&self, kind: LayerKind, design: Option<Bounds>) -> bool {
        let numbers =
            self.margin.is_finite() && self.certified_mu >= 0.0 && self.certified_mu <= self.certified_nu;
        let claim = design.is_none_or(|b| b == self.claimed);
        let verdict =
            !self.holds || (self.certified_mu >= self.claimed.mu() && self.certified_nu <= self.claimed.nu());
        self.kind == kind && numbers && claim && verdict
    }
}

impl From<Network<f32>> for Model {
    fn from(network: Network<f32>) -> Self {
        Model {
            network: Stored::F32(network),
            provenance: BTreeMap::new(),
            stored: None,
        }
    }
}

impl From<Network<f64>> for Model {
    fn from(network: Network<f64>) -> Self {
        Model {
            network: Stored::F64(network),
            provenance: BTreeMap::new(),
            stored: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    MonLip,
    BiLipNet,
    PlNet,
    PartialBiLipNet,
    PartialPlNet,
    Classifier,
}

/// Sizes of a bias network's layers after its input.
type MlpSizes = Vec<usize>;

#[derive(Debug, Serialize, Deserialize)]
struct Header<C> {
    format_version: u32,
    kind: Kind,
    precision: Precision,
    n: usize,
    #[serde(default)]
    parameters: usize,
    bounds: Bounds,
    blocks: Vec<Block>,
    /// Whether there is a change of variables before the first and after the last layer.
    #[serde(default)]
    input_scaling: bool,
    #[serde(default)]
    output_scaling: bool,
    #[serde(default)]
    offset: f64,
    #[serde(default)]
    known_minimizer: bool,
    #[serde(default)]
    orthogonal_bias_networks: Vec<MlpSizes>,
    #[serde(default)]
    hidden_bias_networks: Vec<MlpSizes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<Head>,
    /// Written as a [`Certificate`], read as a [`StoredCertificate`].
    certificate: C,
    #[serde(default)]
    provenance: BTreeMap<String, String>,
}

/// The process of a classifier.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Head {
    inputs: usize,
    features: usize,
    classes: usize,
    normalized: bool,
    factor: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Block {
    units: Vec<usize>,
    activation: Activation,
    bounds: Bounds,
    psi: bool,
}

impl<T: Real> Network<T> {
    fn kind(&self) -> Kind {
        match self {
            Network::MonLip(_) => Kind::MonLip,
            Network::BiLipNet(_) => Kind::BiLipNet,
            Network::PlNet(_) => Kind::PlNet,
            Network::PartialBiLipNet(_) => Kind::PartialBiLipNet,
            Network::PartialPlNet(_) => Kind::PartialPlNet,
            Network::Classifier(_) => Kind::Classifier,
        }
    }

    /// The kind of network, in words.
    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            Kind::MonLip => "monotone layer",
            Kind::BiLipNet => "BiLipNet",
            Kind::PlNet => "PLNet",
            Kind::PartialBiLipNet => "partial BiLipNet",
            Kind::PartialPlNet => "partial PLNet",
            Kind::Classifier => "classifier",
        }
    }

    /// The dimension n of x.
    pub fn dim(&self) -> usize {
        match self {
            Network::MonLip(l) => l.dim(),
            Network::BiLipNet(g) => g.dim(),
            Network::PlNet(f) => f.dim(),
            Network::PartialBiLipNet(g) => g.dim(),
            Network::PartialPlNet(f) => f.net().dim(),
            Network::Classifier(c) => c.inputs(),
        }
    }

    /// What has been proved of the stored numbers.
    pub fn certificate(&self) -> Certificate {
        match self {
            Network::MonLip(l) => l.certificate(),
            Network::BiLipNet(g) => g.certificate(),
            Network::PlNet(f) => f.certificate(),
            Network::PartialBiLipNet(g) => g.certificate(),
            Network::PartialPlNet(f) => f.certificate(),
            Network::Classifier(c) => c.certificate(),
        }
    }

    /// As [`certificate`](Self::certificate), proved again from the stored weights.
    pub fn verify(&self) -> Certificate {
        match self {
            Network::MonLip(l) => l.verify(),
            Network::BiLipNet(g) => g.verify(),
            Network::PlNet(f) => f.verify(),
            Network::PartialBiLipNet(g) => g.verify(),
            Network::PartialPlNet(f) => f.verify(),
            Network::Classifier(c) => c.verify(),
        }
    }

    /// The bounds that the network claims.
    pub fn claim(&self) -> Claimed {
        match self {
            Network::MonLip(l) => l.claim(),
            other => other.net().map_or(Bounds::ISOMETRY.into(), |net| net.claim()),
        }
    }

    /// What is proved of the same network in another program that stores the constants of its formula
    /// ([`MonLip::formula_constants`]) beside the weights, all in this network's precision.
    pub fn certificate_of_constants(&self) -> Certificate {
        let bounds = self.monotone().into_iter().map(MonLip::bounds_of_constants);
        self.certificate().with_monotone(bounds)
    }

    fn net(&self) -> Option<&BiLipNet<T>> {
        match self {
            Network::MonLip(_) => None,
            Network::BiLipNet(g) => Some(g),
            Network::PlNet(f) => Some(f.net()),
            Network::PartialBiLipNet(g) => Some(g.net()),
            Network::PartialPlNet(f) => Some(f.net().net()),
            Network::Classifier(c) => Some(c.net()),
        }
    }

    fn partial(&self) -> Option<&PartialBiLipNet<T>> {
        match self {
            Network::PartialBiLipNet(g) => Some(g),
            Network::PartialPlNet(f) => Some(f.net()),
            _ => None,
        }
    }

    fn monotone(&self) -> Vec<&MonLip<T>> {
        match self {
            Network::MonLip(l) => vec![l],
            other => other
                .net()
                .map_or(Vec::new(), |net| net.monotone().iter().collect()),
        }
    }

    fn header(&self, provenance: &BTreeMap<String, String>) -> Header<Certificate> {
        let sizes = |mlps: &[Mlp<T>]| {
            mlps.iter()
                .map(|mlp| mlp.layers().iter().map(|(w, _)| w.nrows()).collect())
                .collect()
        };
        let certificate = self.certificate();
        Header {
            format_version: FORMAT_VERSION,
            kind: self.kind(),
            precision: T::PRECISION,
            n: self.net().map_or(self.dim(), BiLipschitz::dim),
            parameters: self.partial().map_or(0, |p| p.parameters()),
            bounds: self.claim().bounds(),
            blocks: self
                .monotone()
                .iter()
                .map(|l| Block {
                    units: l.units().to_vec(),
                    activation: l.activation(),
                    bounds: l.design(),
                    psi: l.psi().is_some(),
                })
                .collect(),
            input_scaling: self.net().is_some_and(|net| net.input().is_some()),
            output_scaling: self.net().is_some_and(|net| net.output().is_some()),
            offset: match self {
                Network::PlNet(f) => f.offset(),
                Network::PartialPlNet(f) => f.offset(),
                _ => 0.0,
            },
            known_minimizer: matches!(self, Network::PlNet(f) if f.minimizer().is_some()),
            orthogonal_bias_networks: self.partial().map_or(Vec::new(), |p| sizes(p.orthogonal_bias())),
            hidden_bias_networks: self.partial().map_or(Vec::new(), |p| sizes(p.hidden_bias())),
            head: match self {
                Network::Classifier(c) => Some(Head {
                    inputs: c.inputs(),
                    features: c.head().features().count(),
                    classes: c.classes(),
                    normalized: c.head().features().normalized_inputs(),
                    factor: c.factor(),
                }),
                _ => None,
            },
            certificate,
            provenance: provenance.clone(),
        }
    }

    fn tensors(&self) -> Vec<StoredTensor> {
        let mut tensors = Tensors(Vec::new());
        let partial = self.partial();
        for (k, l) in self.monotone().into_iter().enumerate() {
            for (j, v) in l.v().iter().enumerate() {
                tensors.matrix(format!("monotone.{k}.v.{}", j + 2), v.as_ref());
            }
            tensors.matrix(format!("monotone.{k}.s"), l.s());
            if let Some(psi) = l.psi() {
                tensors.vector(format!("monotone.{k}.psi"), psi);
            }
            if partial.is_none() {
                tensors.vector(format!("monotone.{k}.hidden_bias"), l.hidden_bias());
            }
            tensors.vector(format!("monotone.{k}.output_bias"), l.output_bias());
        }
        for (k, l) in self
            .net()
            .map_or(&[][..], |net| net.orthogonal())
            .iter()
            .enumerate()
        {
            tensors.matrix(format!("orthogonal.{k}.weight"), l.matrix());
            if partial.is_none() {
                tensors.vector(format!("orthogonal.{k}.bias"), l.bias());
            }
        }
        if let Some(net) = self.net() {
            for (which, scaling) in [("input", net.input()), ("output", net.output())] {
                if let Some(scaling) = scaling {
                    tensors.vector(format!("{which}.scale"), scaling.scale());
                    tensors.vector(format!("{which}.shift"), scaling.shift());
                }
            }
        }
        if let Some(partial) = partial {
            for (which, mlps) in [
                ("orthogonal_bias", partial.orthogonal_bias()),
                ("hidden_bias", partial.hidden_bias()),
            ] {
                for (k, mlp) in mlps.iter().enumerate() {
                    for (i, (weight, bias)) in mlp.layers().iter().enumerate() {
                        tensors.matrix(format!("{which}.{k}.{i}.weight"), weight.as_ref());
                        tensors.vector(format!("{which}.{k}.{i}.bias"), bias);
                    }
                }
            }
        }
        if let Network::PlNet(f) = self
            && let Some(x) = f.minimizer()
        {
            tensors.vector("minimizer".into(), x);
        }
        if let Network::Classifier(c) = self {
            // The process is in f64 whatever the precision of the feature map.
            let head = c.head();
            tensors.matrix("head.frequencies".into(), head.features().frequencies());
            tensors.vector("head.phases".into(), head.features().phases());
            tensors.matrix("head.weights".into(), head.weights());
            tensors.vector("head.bias".into(), head.bias());
            tensors.vector("head.factor".into(), &head.triangle());
        }
        tensors.0
    }

    fn to_bytes(&self, provenance: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let header = serde_json::to_string(&self.header(provenance))
            .map_err(|e| Error::file(format!("metadata cannot be written: {e}")))?;
        let tensors = self.tensors();
        let views = tensors
            .iter()
            .map(|tensor| {
                TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes)
                    .map(|view| (tensor.name.as_str(), view))
                    .map_err(|e| Error::file(format!("tensor {}: {e}", tensor.name)))
            })
            .collect::<Result<Vec<_>>>()?;
        let metadata = HashMap::from([(KEY.to_string(), header)]);
        safetensors::serialize(views, Some(metadata)).map_err(|e| Error::file(e.to_string()))
    }
}

struct StoredTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn dtype<T: Real>() -> Dtype {
    match T::PRECISION {
        Precision::F32 => Dtype::F32,
        Precision::F64 => Dtype::F64,
    }
}

struct Tensors(Vec<StoredTensor>);

impl Tensors {
    fn matrix<T: Real>(&mut self, name: String, m: MatRef<'_, T>) {
        let mut bytes = Vec::with_capacity(m.nrows() * m.ncols() * size_of::<T>());
        for i in 0..m.nrows() {
            for j in 0..m.ncols() {
                m[(i, j)].write_le(&mut bytes);
            }
        }
        self.push::<T>(name, vec![m.nrows(), m.ncols()], bytes);
    }

    fn vector<T: Real>(&mut self, name: String, v: &[T]) {
        let mut bytes = Vec::with_capacity(size_of_val(v));
        for value in v {
            value.write_le(&mut bytes);
        }
        self.push::<T>(name, vec![v.len()], bytes);
    }

    fn push<T: Real>(&mut self, name: String, shape: Vec<usize>, bytes: Vec<u8>) {
        self.0.push(StoredTensor {
            name,
            dtype: dtype::<T>(),
            shape,
            bytes,
        });
    }
}

impl Model {
    /// What has been proved of the stored numbers.
    pub fn certificate(&self) -> Certificate {
        match &self.network {
            Stored::F32(n) => n.certificate(),
            Stored::F64(n) => n.certificate(),
        }
    }

    /// As [`certificate`](Self::certificate), proved again from the stored weights.
    pub fn verify(&self) -> Certificate {
        match &self.network {
            Stored::F32(n) => n.verify(),
            Stored::F64(n) => n.verify(),
        }
    }

    /// The bounds that the model claims.
    pub fn claim(&self) -> Claimed {
        match &self.network {
            Stored::F32(n) => n.claim(),
            Stored::F64(n) => n.claim(),
        }
    }

    /// The dimension n of x.
    pub fn dim(&self) -> usize {
        match &self.network {
            Stored::F32(n) => n.dim(),
            Stored::F64(n) => n.dim(),
        }
    }

    /// The contents of a model file.
    ///
    /// # Errors
    /// Only if the container refuses them, which it does not for networks built here.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        match &self.network {
            Stored::F32(n) => n.to_bytes(&self.provenance),
            Stored::F64(n) => n.to_bytes(&self.provenance),
        }
    }

    /// Reads the contents of a model file.
    ///
    /// # Errors
    /// [`Error::ModelFile`] and others on anything that is not a complete, consistent model of this format version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|e| Error::file(format!("not a complete safetensors file ({e})")))?;
        let (length, metadata) = SafeTensors::read_metadata(bytes)
            .map_err(|e| Error::file(format!("not a complete safetensors file ({e})")))?;
        let container = bytes.get(8..8 + length).unwrap_or_default();
        strict::check_container(container).map_err(|e| Error::file(format!("header of the file: {e}")))?;
        let text = metadata
            .metadata()
            .as_ref()
            .and_then(|map| map.get(KEY))
            .ok_or_else(|| Error::file("a safetensors file, but not a bilip model; `bilip import` reads weights of other programs"))?;
        // The version first: a newer format may not parse as this one.
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let version: Version =
            serde_json::from_str(text).map_err(|e| Error::file(format!("metadata: {e}")))?;
        if version.format_version != FORMAT_VERSION {
            return Err(Error::file(format!(
                "format version {} cannot be read by this release, which reads version {FORMAT_VERSION}",
                version.format_version
            )));
        }
        strict::check_metadata(text).map_err(|e| Error::file(format!("metadata: {e}")))?;
        let header: Header<StoredCertificate> =
            serde_json::from_str(text).map_err(|e| Error::file(format!("metadata: {e}")))?;
        let network = match header.precision {
            Precision::F32 => Stored::F32(read(&header, Reader::new(&tensors))?),
            Precision::F64 => Stored::F64(read(&header, Reader::new(&tensors))?),
        };
        Ok(Model {
            network,
            provenance: header.provenance,
            stored: Some(header.certificate),
        })
    }

    /// What the file that this model was read from says is proved of it; `None` for a model made here.
    pub fn stored_certificate(&self) -> Option<&StoredCertificate> {
        self.stored.as_ref()
    }

    /// Reads a model file. What is proved of it is found out when it is first asked for, from the weights alone.
    ///
    /// # Errors
    /// As for [`from_bytes`](Self::from_bytes), and when the file cannot be read or is larger than [`MAX_FILE_SIZE`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(&read_file(path.as_ref())?)
    }

    /// Reads a model file and proves the bounds that it claims.
    ///
    /// # Errors
    /// As for [`load`](Self::load), [`Error::ClaimNotProved`] when other bounds are proved than those claimed, and
    /// [`Error::NotCertifiable`] when none are.
    pub fn load_verified(path: impl AsRef<Path>) -> Result<Self> {
        let model = Self::load(path)?;
        let certificate = model.certificate();
        if !certificate.holds() {
            let (claimed, proved) = (certificate.claimed(), certificate.proved());
            if proved.bounds().is_some() {
                return Err(Error::ClaimNotProved {
                    claimed,
                    proved_mu: proved.mu(),
                    proved_nu: proved.nu(),
                });
            }
            for layer in certificate.layers() {
                layer.need_positive()?;
            }
            return Err(out_of_range());
        }
        Ok(model)
    }

    /// Writes a model file: to a temporary file beside it first, which then takes its place.
    ///
    /// # Errors
    /// When the directory does not exist or cannot be written to, or the disk is full; the old file is then untouched.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        crate::base::files::write_file(path, &self.to_bytes()?)
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io {
        path: path.display().to_string(),
        source,
    };
    let file = std::fs::File::open(path).map_err(io)?;
    let info = file.metadata().map_err(io)?;
    if !info.is_file() {
        return Err(Error::file(format!("{} is not a regular file", path.display())));
    }
    if info.len() > MAX_FILE_SIZE {
        return Err(too_large(path));
    }
    // Reads grow with what is really there, so a length that lies costs nothing.
    let mut bytes = Vec::new();
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(too_large(path));
    }
    Ok(bytes)
}

fn too_large(path: &Path) -> Error {
    Error::file(format!(
        "{} is larger than {} GiB",
        path.display(),
        MAX_FILE_SIZE >> 30
    ))
}

/// Takes tensors out of a file, each once.
struct Reader<'a> {
    tensors: &'a SafeTensors<'a>,
    used: usize,
}

impl<'a> Reader<'a> {
    fn new(tensors: &'a SafeTensors<'a>) -> Self {
        Reader { tensors, used: 0 }
    }

    fn values<T: Real>(&mut self, name: &str, shape: &[usize]) -> Result<Vec<T>> {
        let view = self
            .tensors
            .tensor(name)
            .map_err(|_| Error::file(format!("tensor {name} is missing")))?;
        if view.shape() != shape {
            return Err(Error::file(format!(
                "tensor {name}: expected shape {shape:?}, found {:?}",
                view.shape()
            )));
        }
        let expected = dtype::<T>();
        if view.dtype() != expected {
            return Err(Error::file(format!(
                "tensor {name}: expected {expected:?}, found {:?}",
                view.dtype()
            )));
        }
        self.used += 1;
        let values: Vec<T> = match T::PRECISION {
            Precision::F32 => view
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| T::round_from(f64::from(f32::from_le_bytes(*b))))
                .collect(),
            Precision::F64 => view
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| T::round_from(f64::from_le_bytes(*b)))
                .collect(),
        };
        crate::base::error::check_finite(&format!("tensor {name}"), &values)?;
        Ok(values)
    }

    fn matrix<T: Real>(&mut self, name: &str, rows: usize, cols: usize) -> Result<Mat<T>> {
        let values = self.values::<T>(name, &[rows, cols])?;
        Ok(Mat::from_fn(rows, cols, |i, j| values[i * cols + j]))
    }

    /// Every tensor of the file must have been asked for.
    fn finish(&self) -> Result<()> {
        if self.used != self.tensors.len() {
            return Err(Error::file(format!(
                "{} tensors that do not belong to the model",
                self.tensors.len() - self.used
            )));
        }
        Ok(())
    }
}

fn read<T: Real>(header: &Header<StoredCertificate>, mut reader: Reader<'_>) -> Result<Network<T>> {
    let n = header.n;
    let blocks = header.blocks.len();
    if n == 0 {
        return Err(Error::file("n = 0"));
    }
    if header.kind == Kind::MonLip && blocks != 1 {
        return Err(Error::file(format!(
            "a monotone layer needs one block, found {blocks}"
        )));
    }
    let partial = matches!(header.kind, Kind::PartialBiLipNet | Kind::PartialPlNet);
    check_certificate(header)?;

    let mut monotone = Vec::new();
    for (k, block) in header.blocks.iter().enumerate() {
        let m = block
            .units
            .iter()
            .try_fold(0usize, |sum, u| sum.checked_add(*u))
            .filter(|m| *m > 0)
            .ok_or_else(|| {
                let shown: Vec<String> = block.units.iter().take(8).map(|u| u.to_string()).collect();
                Error::file(format!(
                    "block {k}: hidden widths [{}] cannot be",
                    shown.join(", ")
                ))
            })?;
        let mut v = Vec::new();
        for j in 1..block.units.len() {
            v.push(reader.matrix(
                &format!("monotone.{k}.v.{}", j + 1),
                block.units[j],
                block.units[j - 1],
            )?);
        }
        let explicit = MonLipExplicit {
            bounds: block.bounds,
            activation: block.activation,
            v,
            s: reader.matrix(&format!("monotone.{k}.s"), m, n)?,
            psi: match block.psi {
                true => Some(reader.values(&format!("monotone.{k}.psi"), &[m])?),
                false => None,
            },
            hidden_bias: match partial {
                true => vec![T::zero(); m],
                false => reader.values(&format!("monotone.{k}.hidden_bias"), &[m])?,
            },
            output_bias: reader.values(&format!("monotone.{k}.output_bias"), &[n])?,
        };
        monotone.push(MonLip::unproved(explicit)?);
    }
    if header.kind == Kind::MonLip {
        reader.finish()?;
        let layer = monotone.pop().ok_or_else(|| Error::file("no block"))?;
        if layer.design() != header.bounds {
            return Err(Error::file("the bounds of the layer and of the model differ"));
        }
        return Ok(Network::MonLip(layer));
    }

    let mut orthogonal = Vec::new();
    for k in 0..=blocks {
        let matrix = reader.matrix(&format!("orthogonal.{k}.weight"), n, n)?;
        let bias = match partial {
            true => vec![T::zero(); n],
            false => reader.values(&format!("orthogonal.{k}.bias"), &[n])?,
        };
        orthogonal.push(Orthogonal::unproved(matrix, bias)?);
    }
    let mut scaling = |which: &str, there: bool| -> Result<Option<Scaling<T>>> {
        if !there {
            return Ok(None);
        }
        let scale = reader.values(&format!("{which}.scale"), &[n])?;
        let shift = reader.values(&format!("{which}.shift"), &[n])?;
        Ok(Some(Scaling::new(scale, shift)?))
    };
    let input = scaling("input", header.input_scaling)?;
    let output = scaling("output", header.output_scaling)?;
    let net = BiLipNet::with_claim(orthogonal, monotone, Bounds::ISOMETRY.into())?
        .with_scalings(input, output)?
        .claiming(header.bounds.into());
    let network = if partial {
        let mut mlps = |which: &str, sizes: &[MlpSizes]| -> Result<Vec<Mlp<T>>> {
            sizes
                .iter()
                .enumerate()
                .map(|(k, sizes)| {
                    let mut before = header.parameters;
                    let mut layers = Vec::new();
                    for (i, &size) in sizes.iter().enumerate() {
                        layers.push((
                            reader.matrix(&format!("{which}.{k}.{i}.weight"), size, before)?,
                            reader.values(&format!("{which}.{k}.{i}.bias"), &[size])?,
                        ));
                        before = size;
                    }
                    Mlp::new(layers)
                })
                .collect()
        };
        let orthogonal_bias = mlps("orthogonal_bias", &header.orthogonal_bias_networks)?;
        let hidden_bias = mlps("hidden_bias", &header.hidden_bias_networks)?;
        let net = PartialBiLipNet::new(net, orthogonal_bias, hidden_bias)?;
        match header.kind {
            Kind::PartialPlNet => Network::PartialPlNet(PartialPlNet::new(net, header.offset)?),
            _ => Network::PartialBiLipNet(net),
        }
    } else {
        match header.kind {
            Kind::PlNet if header.known_minimizer => {
                let x = reader.values("minimizer", &[n])?;
                Network::PlNet(PlNet::with_minimizer(net, header.offset, x)?)
            }
            Kind::PlNet => Network::PlNet(PlNet::new(net, header.offset)?),
            Kind::Classifier => {
                let head = header
                    .head
                    .ok_or_else(|| Error::file("a classifier without a head"))?;
                Network::Classifier(Classifier::new(
                    net,
                    head.inputs,
                    read_head(&mut reader, head, n)?,
                    head.factor,
                )?)
            }
            _ => Network::BiLipNet(net),
        }
    };
    reader.finish()?;
    Ok(network)
}

fn read_head(reader: &mut Reader<'_>, head: Head, n: usize) -> Result<GpHead> {
    let (count, classes) = (head.features, head.classes);
    let frequencies = reader.matrix::<f64>("head.frequencies", count, n)?;
    let mut features = RandomFeatures::new(frequencies, reader.values("head.phases", &[count])?)?;
    if head.normalized {
        features = features.with_normalized_inputs();
    }
    let weights = reader.matrix::<f64>("head.weights", count, classes)?;
    let bias = reader.values::<f64>("head.bias", &[classes])?;
    let numbers = count
        .checked_add(1)
        .and_then(|next| count.checked_mul(next))
        .ok_or_else(|| Error::file("too many features"))?
        / 2;
    let triangle = reader.values::<f64>("head.factor", &[numbers])?;
    GpHead::from_triangle(features, weights, bias, &triangle)
}

/// Checks that the stored certificate belongs to these layers and agrees with itself: that of an undamaged file does.
fn check_certificate(header: &Header<StoredCertificate>) -> Result<()> {
    let layers = &header.certificate.layers;
    let scalings = usize::from(header.input_scaling) + usize::from(header.output_scaling);
    let expected = match header.kind {
        Kind::MonLip if scalings > 0 => {
            return Err(Error::file("a monotone layer has no change of variables"));
        }
        Kind::MonLip => 1,
        _ => 2 * header.blocks.len() + 1 + scalings,
    };
    if layers.len() != expected {
        return Err(Error::file(format!(
            "certificate of {} layers, the model has {expected}",
            layers.len()
        )));
    }
    let first = usize::from(header.input_scaling);
    for (k, layer) in layers.iter().enumerate() {
        let scaling = (k == 0 && header.input_scaling) || (k + 1 == layers.len() && header.output_scaling);
        let consistent = if scaling {
            layer.is_consistent(LayerKind::Scaling, None)
        } else if header.kind != Kind::MonLip && (k - first).is_multiple_of(2) {
            layer.is_consistent(LayerKind::Orthogonal, None)
        } else {
            let block = &header.blocks[(k - first) / 2];
            layer.is_consistent(LayerKind::MonLip, Some(block.bounds))
        };
        if !consistent {
            return Err(Error::file(format!(
                "the certificate of layer {k} contradicts the model or itself"
            )));
        }
    }
    Ok(())
}
