//! The model file: explicit weights in a safetensors container, everything else as JSON in its
//! metadata.
//!
//! A file is checked completely before any of it is used: container, format version, kind, sizes,
//! shapes and types of every tensor, finite numbers, bounds. Memory stays proportional to the size
//! of the file, which is limited.
//!
//! **Nothing that a file says of itself is taken for a proof.** Bounds and certificate in a file
//! are claims ([`StoredCertificate`]); bounds of a loaded network are proved from its weights when
//! they are first asked for, and [`Model::load_verified`] asks at once. Saving goes through a
//! temporary file and a rename.

mod format;
mod network;
#[cfg(feature = "onnx")]
pub(crate) mod onnx;
mod read;
mod strict;
mod write;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::SafeTensors;
use serde::Deserialize;

pub use format::{FORMAT_VERSION, MAX_FILE_SIZE, StoredCertificate};
use format::{Header, ImageHeader, KEY};
pub use network::{Network, Stored};
use read::{Reader, read, read_images};

use crate::base::bounds::Claimed;
use crate::base::error::{Error, Result};
use crate::base::files::write_file;
use crate::base::real::Precision;
use crate::certify::{Certificate, out_of_range};
use crate::inverse::{Inverse, InverseOptions};
use crate::minimum::{BoundedMinimum, BoxOptions, Minimum};

/// What a model file holds: a network of any kind and precision, and where it came from. One set of
/// verbs for all.
///
/// ```
/// # use bilip::{Bounds, InverseOptions, Model, MonLip, MonLipFree, Network, RandomLayer, Rng};
/// # let free = MonLipFree::random(&RandomLayer::new(2, &[8, 8], Bounds::new(0.5, 2.0)?).with_bias(1.0), &mut Rng::new(1))?;
/// # let folder = std::env::temp_dir().join(format!("bilip-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("sensor.safetensors");
/// # Model::from(Network::MonLip(MonLip::<f32>::from_free(&free)?)).save(&path)?;
/// let model = Model::load_verified(&path)?;
/// let y = model.evaluate(&[0.3, -1.2, 0.7, 2.0], &[])?;
/// let inverse = model.invert(&y, &[], &InverseOptions::default())?;
/// for (x, row) in inverse.x.chunks(2).zip(&inverse.rows) {
///     println!("x = {x:?}, within {:e} of the exact inverse", row.error_bound);
/// }
/// assert!(inverse.converged());
/// # std::fs::remove_dir_all(folder).unwrap();
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

    /// The kind of network, in words.
    pub fn kind_name(&self) -> &'static str {
        match &self.network {
            Stored::F32(n) => n.kind_name(),
            Stored::F64(n) => n.kind_name(),
        }
    }

    /// Numbers per row of p; 0 unless the network is partial.
    pub fn parameters(&self) -> usize {
        match &self.network {
            Stored::F32(n) => n.parameters(),
            Stored::F64(n) => n.parameters(),
        }
    }

    /// Numbers per row that [`evaluate`](Self::evaluate) gives.
    pub fn outputs(&self) -> usize {
        match &self.network {
            Stored::F32(n) => n.outputs(),
            Stored::F64(n) => n.outputs(),
        }
    }

    /// Number of classes, for a classifier.
    pub fn classes(&self) -> Option<usize> {
        match &self.network {
            Stored::F32(n) => n.classes(),
            Stored::F64(n) => n.classes(),
        }
    }

    /// Channels and side of the images that go in, for a network on images.
    pub fn image(&self) -> Option<(usize, usize)> {
        match &self.network {
            Stored::F32(n) => n.image(),
            Stored::F64(n) => n.image(),
        }
    }

    /// Whether the network is a scalar with one minimum.
    pub fn is_potential(&self) -> bool {
        match &self.network {
            Stored::F32(n) => n.is_potential(),
            Stored::F64(n) => n.is_potential(),
        }
    }

    /// Whether the network is a map with an inverse.
    pub fn is_invertible(&self) -> bool {
        match &self.network {
            Stored::F32(n) => n.is_invertible(),
            Stored::F64(n) => n.is_invertible(),
        }
    }

    /// The network at every row of x, `[batch, n] → [batch, outputs]`, computed in the precision of
    /// the weights.
    ///
    /// Values of a map, the value of a scalar, features, or the probabilities of the classes and
    /// their uncertainty. A partial network takes one row of p per row of x; for all others p is
    /// empty.
    ///
    /// # Errors
    /// On batches of the wrong size or with NaN or infinity.
    pub fn evaluate(&self, x: &[f64], p: &[f64]) -> Result<Vec<f64>> {
        match &self.network {
            Stored::F32(n) => n.evaluate(x, p),
            Stored::F64(n) => n.evaluate(x, p),
        }
    }

    /// `J(x)ᵀw` at every row, with one number of w per output: for a scalar and `w = 1`, its
    /// gradient.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate), and for classifiers and feature maps of images.
    pub fn vjp(&self, x: &[f64], p: &[f64], w: &[f64]) -> Result<Vec<f64>> {
        match &self.network {
            Stored::F32(n) => n.vjp(x, p, w),
            Stored::F64(n) => n.vjp(x, p, w),
        }
    }

    /// The x with `G(x) = y` for every row, each with a certified error.
    ///
    /// # Errors
    /// As [`BiLipschitz::inverse`](crate::BiLipschitz::inverse), and for networks without an
    /// inverse.
    pub fn invert(&self, y: &[f64], p: &[f64], options: &InverseOptions) -> Result<Inverse> {
        match &self.network {
            Stored::F32(n) => n.invert(y, p, options),
            Stored::F64(n) => n.invert(y, p, options),
        }
    }

    /// The global minimum: one, or one per row of p for a partial network.
    ///
    /// # Errors
    /// On settings out of range, rows of p of the wrong size, and networks that are no scalar.
    pub fn minimize(&self, p: &[f64], options: &InverseOptions) -> Result<Vec<Minimum>> {
        match &self.network {
            Stored::F32(n) => n.minimize(p, options),
            Stored::F64(n) => n.minimize(p, options),
        }
    }

    /// The minimum in a box, `limits[i] = (low, high)` for every input, with a proved gap: one, or
    /// one per row of p for a partial network; see [`PlNet::minimize_in`](crate::PlNet::minimize_in).
    ///
    /// # Errors
    /// On a box that holds no point, settings out of range, rows of p of the wrong size, and
    /// networks that are no scalar.
    pub fn minimize_in(
        &self,
        p: &[f64],
        limits: &[(f64, f64)],
        options: &BoxOptions,
    ) -> Result<Vec<BoundedMinimum>> {
        match &self.network {
            Stored::F32(n) => n.minimize_in(p, limits, options),
            Stored::F64(n) => n.minimize_in(p, limits, options),
        }
    }

    /// The distance to a minimum that makes sense: a hundred-millionth of the largest unit that
    /// inputs are divided by.
    pub fn natural_tolerance(&self) -> f64 {
        match &self.network {
            Stored::F32(n) => n.natural_tolerance(),
            Stored::F64(n) => n.natural_tolerance(),
        }
    }

    /// The precision of the weights.
    pub fn precision(&self) -> Precision {
        match &self.network {
            Stored::F32(_) => Precision::F32,
            Stored::F64(_) => Precision::F64,
        }
    }

    /// The network itself, for those who want the concrete type:
    /// `model.into_network().into_f64()?.into_bilipnet()`.
    pub fn into_network(self) -> Stored {
        self.network
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
    /// [`Error::ModelFile`] and others on anything that is not a complete, consistent model of this
    /// format version.
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
        let of_text = |e: serde_json::Error| Error::file(format!("metadata: {e}"));
        let (network, provenance, stored) = match version.format_version {
            1 | 3 => {
                strict::check_metadata(text).map_err(|e| Error::file(format!("metadata: {e}")))?;
                let header: Header<StoredCertificate> = serde_json::from_str(text).map_err(of_text)?;
                let network = match header.precision {
                    Precision::F32 => Stored::F32(read(&header, Reader::new(&tensors))?),
                    Precision::F64 => Stored::F64(read(&header, Reader::new(&tensors))?),
                };
                (network, header.provenance, header.certificate)
            }
            2 => {
                strict::check_metadata(text).map_err(|e| Error::file(format!("metadata: {e}")))?;
                let header: ImageHeader<StoredCertificate> = serde_json::from_str(text).map_err(of_text)?;
                let network = match header.precision {
                    Precision::F32 => Stored::F32(read_images(&header, Reader::new(&tensors))?),
                    Precision::F64 => Stored::F64(read_images(&header, Reader::new(&tensors))?),
                };
                (network, header.provenance, header.certificate)
            }
            other => {
                return Err(Error::file(format!(
                    "format version {other} cannot be read by this release, which reads versions 1 to {FORMAT_VERSION}"
                )));
            }
        };
        Ok(Model {
            network,
            provenance,
            stored: Some(stored),
        })
    }

    /// What the file that this model was read from says is proved of it; `None` for a model made
    /// here.
    pub fn stored_certificate(&self) -> Option<&StoredCertificate> {
        self.stored.as_ref()
    }

    /// Reads a model file. What is proved of it is found out when it is first asked for, from the
    /// weights alone.
    ///
    /// # Errors
    /// As for [`from_bytes`](Self::from_bytes), and when the file cannot be read or is larger than
    /// [`MAX_FILE_SIZE`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(&read_file(path.as_ref())?)
    }

    /// Reads a model file and proves the bounds that it claims.
    ///
    /// # Errors
    /// As for [`load`](Self::load), [`Error::ClaimNotProved`] when other bounds are proved than
    /// those claimed, and [`Error::NotCertifiable`] when none are.
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
    /// When the directory does not exist or cannot be written to, or the disk is full; the old file
    /// is then untouched.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write_file(path, &self.to_bytes()?)
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
    // Reads grow with what is really there, so a wrong length costs nothing.
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
