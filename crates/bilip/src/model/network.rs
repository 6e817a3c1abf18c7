//! A network of any kind: one set of verbs for all of them.

use super::format::NetworkKind;
use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result, check_rows};
use crate::base::real::Real;
use crate::certify::Certificate;
use crate::inverse::{Inverse, InverseOptions};
use crate::layers::mlp::Mlp;
use crate::layers::monlip::MonLip;
use crate::minimum::{BoundedMinimum, BoxOptions, Minimum};
use crate::networks::bilipnet::BiLipNet;
use crate::networks::classifier::Classifier;
use crate::networks::conv::ConvBiLipNet;
use crate::networks::image::{ImageClassifier, ImageFeatures};
use crate::networks::map::BiLipschitz;
use crate::networks::metrics;
use crate::networks::partial::{PartialBiLipNet, PartialPlNet};
use crate::networks::plnet::PlNet;

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
    /// A bi-Lipschitz network on images.
    ConvBiLipNet(ConvBiLipNet<T>),
    /// A feature map of images with bi-Lipschitz blocks.
    ImageFeatures(ImageFeatures<T>),
    /// Image features under a Gaussian process.
    ImageClassifier(ImageClassifier<T>),
}

/// A network of any kind and precision.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Weights in f32.
    F32(Network<f32>),
    /// Weights in f64.
    F64(Network<f64>),
}

impl Stored {
    /// The network, if its weights are f32.
    pub fn into_f32(self) -> Option<Network<f32>> {
        match self {
            Stored::F32(n) => Some(n),
            Stored::F64(_) => None,
        }
    }

    /// The network, if its weights are f64.
    pub fn into_f64(self) -> Option<Network<f64>> {
        match self {
            Stored::F64(n) => Some(n),
            Stored::F32(_) => None,
        }
    }
}

impl<T: Real> Network<T> {
    pub(super) fn kind(&self) -> NetworkKind {
        match self {
            Network::MonLip(_) => NetworkKind::MonLip,
            Network::BiLipNet(_) => NetworkKind::BiLipNet,
            Network::PlNet(_) => NetworkKind::PlNet,
            Network::PartialBiLipNet(_) => NetworkKind::PartialBiLipNet,
            Network::PartialPlNet(_) => NetworkKind::PartialPlNet,
            Network::Classifier(_) => NetworkKind::Classifier,
            Network::ConvBiLipNet(_) => NetworkKind::ConvBiLipNet,
            Network::ImageFeatures(_) => NetworkKind::ImageFeatures,
            Network::ImageClassifier(_) => NetworkKind::ImageClassifier,
        }
    }

    /// The kind of network, in words.
    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            NetworkKind::MonLip => "monotone layer",
            NetworkKind::BiLipNet => "BiLipNet",
            NetworkKind::PlNet => "PLNet",
            NetworkKind::PartialBiLipNet => "partial BiLipNet",
            NetworkKind::PartialPlNet => "partial PLNet",
            NetworkKind::Classifier => "classifier",
            NetworkKind::ConvBiLipNet => "BiLipNet on images",
            NetworkKind::ImageFeatures => "feature map of images",
            NetworkKind::ImageClassifier => "classifier of images",
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
            Network::ConvBiLipNet(g) => g.dim(),
            Network::ImageFeatures(f) => f.dim(),
            Network::ImageClassifier(c) => c.features().dim(),
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
            Network::ConvBiLipNet(g) => g.certificate(),
            Network::ImageFeatures(f) => f.certificate(),
            Network::ImageClassifier(c) => c.features().certificate(),
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
            Network::ConvBiLipNet(g) => g.verify(),
            Network::ImageFeatures(f) => f.verify(),
            Network::ImageClassifier(c) => c.features().verify(),
        }
    }

    /// The bounds that the network claims.
    pub fn claim(&self) -> Claimed {
        match self {
            Network::MonLip(l) => l.claim(),
            Network::ConvBiLipNet(g) => g.claim(),
            Network::ImageFeatures(f) => f.claim(),
            Network::ImageClassifier(c) => c.features().claim(),
            other => other.net().map_or(Bounds::ISOMETRY.into(), |net| net.claim()),
        }
    }

    /// What is proved of the same network in another program that stores the constants of its
    /// formula ([`MonLip::formula_constants`]) beside the weights, all in this network's precision.
    pub fn certificate_of_constants(&self) -> Certificate {
        let bounds = self.monotone().into_iter().map(MonLip::bounds_of_constants);
        self.certificate().with_monotone(bounds)
    }

    pub(super) fn net(&self) -> Option<&BiLipNet<T>> {
        match self {
            Network::MonLip(_)
            | Network::ConvBiLipNet(_)
            | Network::ImageFeatures(_)
            | Network::ImageClassifier(_) => None,
            Network::BiLipNet(g) => Some(g),
            Network::PlNet(f) => Some(f.net()),
            Network::PartialBiLipNet(g) => Some(g.net()),
            Network::PartialPlNet(f) => Some(f.net().net()),
            Network::Classifier(c) => Some(c.net()),
        }
    }

    pub(super) fn partial(&self) -> Option<&PartialBiLipNet<T>> {
        match self {
            Network::PartialBiLipNet(g) => Some(g),
            Network::PartialPlNet(f) => Some(f.net()),
            _ => None,
        }
    }

    pub(super) fn offset_network(&self) -> Option<&Mlp<T>> {
        match self {
            Network::PartialPlNet(f) => f.offset_network(),
            _ => None,
        }
    }

    pub(super) fn monotone(&self) -> Vec<&MonLip<T>> {
        match self {
            Network::MonLip(l) => vec![l],
            other => other
                .net()
                .map_or(Vec::new(), |net| net.monotone().iter().collect()),
        }
    }

    /// Numbers per row of p; 0 unless the network is partial.
    pub fn parameters(&self) -> usize {
        self.partial().map_or(0, |g| g.parameters())
    }

    /// Numbers per row that [`evaluate`](Self::evaluate) gives.
    pub fn outputs(&self) -> usize {
        match self {
            Network::PlNet(_) | Network::PartialPlNet(_) => 1,
            Network::Classifier(c) => c.classes() + 1,
            Network::ImageFeatures(f) => f.outputs(),
            Network::ImageClassifier(c) => c.classes() + 1,
            _ => self.dim(),
        }
    }

    /// Number of classes, for a classifier.
    pub fn classes(&self) -> Option<usize> {
        match self {
            Network::Classifier(c) => Some(c.classes()),
            Network::ImageClassifier(c) => Some(c.classes()),
            _ => None,
        }
    }

    /// Channels and side of the images that go in, for a network on images.
    pub fn image(&self) -> Option<(usize, usize)> {
        match self {
            Network::ConvBiLipNet(g) => Some((g.channels(), g.image())),
            Network::ImageFeatures(f) => Some(f.image()),
            Network::ImageClassifier(c) => Some(c.features().image()),
            _ => None,
        }
    }

    /// Whether the network is a scalar with one minimum.
    pub fn is_potential(&self) -> bool {
        matches!(self, Network::PlNet(_) | Network::PartialPlNet(_))
    }

    /// Whether the network is a map with an inverse.
    pub fn is_invertible(&self) -> bool {
        matches!(
            self,
            Network::MonLip(_)
                | Network::BiLipNet(_)
                | Network::PartialBiLipNet(_)
                | Network::ConvBiLipNet(_)
        )
    }

    /// The network at every row of x, with one row of p each for a partial network, in the
    /// precision of the weights.
    ///
    /// Values of a map, the value of a scalar, features, or the probabilities of the classes and
    /// their uncertainty.
    ///
    /// # Errors
    /// On batches of the wrong size or with NaN or infinity.
    pub fn evaluate(&self, x: &[f64], p: &[f64]) -> Result<Vec<f64>> {
        self.check_parameters(p)?;
        let (x, p) = (narrow::<T>(x), narrow::<T>(p));
        let y = match self {
            Network::MonLip(l) => l.forward(&x)?,
            Network::BiLipNet(g) => g.forward(&x)?,
            Network::PlNet(f) => f.value(&x)?,
            Network::PartialBiLipNet(g) => g.forward(&x, &p)?,
            Network::PartialPlNet(f) => f.value(&x, &p)?,
            Network::ConvBiLipNet(g) => g.forward(&x)?,
            Network::ImageFeatures(f) => f.forward(&x)?,
            Network::Classifier(c) => return with_uncertainty(c.probabilities(&x)?, c.classes()),
            Network::ImageClassifier(c) => return with_uncertainty(c.probabilities(&x)?, c.classes()),
        };
        Ok(y.iter().map(|v| v.as_f64()).collect())
    }

    /// `J(x)ᵀw` at every row, `w` with one number per output: for a scalar and `w = 1`, its
    /// gradient.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate), and for networks that end in probabilities or features of
    /// images.
    pub fn vjp(&self, x: &[f64], p: &[f64], w: &[f64]) -> Result<Vec<f64>> {
        self.check_parameters(p)?;
        let (x, p, w) = (narrow::<T>(x), narrow::<T>(p), narrow::<T>(w));
        let scaled = |gradient: Vec<T>| -> Result<Vec<T>> {
            let n = self.dim();
            check_rows("cotangent", &w, gradient.len() / n, 1)?;
            Ok((gradient.iter().enumerate())
                .map(|(k, g)| *g * w[k / n])
                .collect())
        };
        let out = match self {
            Network::MonLip(l) => l.vjp(&x, &w)?,
            Network::BiLipNet(g) => g.vjp(&x, &w)?,
            Network::PartialBiLipNet(g) => g.vjp(&x, &p, &w)?,
            Network::ConvBiLipNet(g) => g.vjp(&x, &w)?,
            Network::PlNet(f) => scaled(f.gradient(&x)?)?,
            Network::PartialPlNet(f) => scaled(f.gradient(&x, &p)?)?,
            _ => return Err(self.cannot("vjp", "has no derivative here")),
        };
        Ok(out.iter().map(|v| v.as_f64()).collect())
    }

    /// The x with `G(x) = y` for every row, each with a certified error.
    ///
    /// # Errors
    /// As [`BiLipschitz::inverse`], and for networks without an inverse.
    pub fn invert(&self, y: &[f64], p: &[f64], options: &InverseOptions) -> Result<Inverse> {
        self.check_parameters(p)?;
        match self {
            Network::MonLip(l) => l.inverse(y, options),
            Network::BiLipNet(g) => g.inverse(y, options),
            Network::PartialBiLipNet(g) => g.inverse(y, p, options),
            Network::ConvBiLipNet(g) => g.inverse(y, options),
            _ => Err(self.cannot("invert", "has no inverse")),
        }
    }

    /// The global minimum: one, or one per row of p for a partial network.
    ///
    /// # Errors
    /// On settings out of range, rows of p of the wrong size, and networks that are no scalar.
    pub fn minimize(&self, p: &[f64], options: &InverseOptions) -> Result<Vec<Minimum>> {
        self.check_parameters(p)?;
        match self {
            Network::PlNet(f) => Ok(vec![f.minimize(options)?]),
            Network::PartialPlNet(f) => f.minimize(p, options),
            _ => Err(self.cannot("minimize", "is no scalar and has no minimum")),
        }
    }

    /// The minimum in a box, `limits[i] = (low, high)`: one, or one per row of p for a partial
    /// network; see [`PlNet::minimize_in`].
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
        self.check_parameters(p)?;
        match self {
            Network::PlNet(f) => Ok(vec![f.minimize_in(limits, options)?]),
            Network::PartialPlNet(f) => f.minimize_in(p, limits, options),
            _ => Err(self.cannot("minimize_in", "is no scalar and has no minimum")),
        }
    }

    /// The distance to a minimum that makes sense: a hundred-millionth of the largest unit that
    /// inputs are divided by.
    pub fn natural_tolerance(&self) -> f64 {
        let scale = (self.net().filter(|_| self.is_potential()))
            .and_then(|net| net.input())
            .map_or(&[][..], |s| s.scale());
        1e-8 * scale.iter().map(|d| 1.0 / d.as_f64()).fold(1.0, f64::max)
    }

    fn check_parameters(&self, p: &[f64]) -> Result<()> {
        match self.parameters() {
            0 if !p.is_empty() => Err(Error::shape(
                "p",
                format!("nothing: a {} has no parameters", self.kind_name()),
                format!("{} numbers", p.len()),
            )),
            _ => Ok(()),
        }
    }

    fn cannot(&self, what: &'static str, why: &str) -> Error {
        Error::setting(what, self.kind_name(), format!("this kind of network {why}"))
    }

    /// The monotone layer, if it is one.
    pub fn into_monlip(self) -> Option<MonLip<T>> {
        match self {
            Network::MonLip(l) => Some(l),
            _ => None,
        }
    }

    /// The bi-Lipschitz network, if it is one.
    pub fn into_bilipnet(self) -> Option<BiLipNet<T>> {
        match self {
            Network::BiLipNet(g) => Some(g),
            _ => None,
        }
    }

    /// The PL network, if it is one.
    pub fn into_plnet(self) -> Option<PlNet<T>> {
        match self {
            Network::PlNet(f) => Some(f),
            _ => None,
        }
    }

    /// The network on images, if it is one.
    pub fn into_conv_bilipnet(self) -> Option<ConvBiLipNet<T>> {
        match self {
            Network::ConvBiLipNet(g) => Some(g),
            _ => None,
        }
    }
}

fn narrow<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|v| T::round_from(*v)).collect()
}

/// Probabilities row by row, each row with its uncertainty behind it.
fn with_uncertainty(probabilities: Vec<f64>, classes: usize) -> Result<Vec<f64>> {
    let uncertainty = metrics::uncertainty(&probabilities, classes)?;
    let rows = probabilities.chunks_exact(classes).zip(uncertainty);
    Ok(rows.flat_map(|(row, u)| row.iter().copied().chain([u])).collect())
}
