//! Bi-Lipschitz networks on images.

use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result};
use crate::base::real::Real;
use crate::certify::Proved;
use crate::layers::channels::ChannelOrthogonal;
use crate::layers::conv::{ConvFree, ConvMonLip};
use crate::layers::layer::Layer;
use crate::layers::orthogonal::Orthogonal;
use crate::layers::stack::LayerRef;
use crate::networks::bilipnet::inner_bounds;
use crate::networks::map::{BiLipschitz, sealed};

/// `O_K∘F_K∘…∘O_1∘F_1` on images `[channels, size, size]`: monotone layers by circular
/// convolutions, each before an orthogonal map of the channels.
///
/// ```
/// use bilip::{BiLipschitz, Bounds, ConvBiLipNet, ConvFree, InverseOptions, Orthogonal};
/// use bilip::{RandomConvLayer, Rng};
///
/// let (bounds, mut rng) = (Bounds::new(0.2, 4.0)?, Rng::new(1));
/// let free = ConvFree::random(&RandomConvLayer::new(3, 8, &[4, 4], bounds).with_bias(0.1), &mut rng)?;
/// let mixing = Orthogonal::<f32>::from_free(rng.glorot(3, 3).as_ref(), &[0.0; 3])?;
/// let net = ConvBiLipNet::from_free(&[free], vec![mixing], bounds)?;
/// assert_eq!(net.bounds().bounds(), Some(bounds));
///
/// let images = rng.normals(2 * net.dim());
/// let (y, _) = net.forward_with_error(&images)?;
/// let inverse = net.inverse(&y, &InverseOptions::default())?;
/// assert!(inverse.converged() && inverse.max_error_bound() <= 1e-8);
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConvBiLipNet<T> {
    monotone: Vec<ConvMonLip<T>>,
    orthogonal: Vec<ChannelOrthogonal<T>>,
    claim: Claimed,
}

impl<T: Real> ConvBiLipNet<T> {
    /// The explicit network of free kernels, with `bounds` proved for the stored weights.
    ///
    /// As in [`BiLipNet::from_free`](crate::BiLipNet::from_free), the monotone layers' bounds are
    /// moved inwards by what rounding takes from the orthogonal maps.
    ///
    /// # Errors
    /// Unless there are as many orthogonal maps as monotone layers, at least one, all on images of
    /// one shape; when the monotone layers' bounds do not multiply to `bounds`; and as
    /// [`ConvMonLip::from_free`].
    pub fn from_free(monotone: &[ConvFree], orthogonal: Vec<Orthogonal<T>>, bounds: Bounds) -> Result<Self> {
        let shares: Vec<Bounds> = monotone.iter().map(|m| m.bounds).collect();
        let isometries: Vec<Proved> = orthogonal.iter().map(|l| l.proof().proved()).collect();
        let inner = inner_bounds::<T>(&isometries, &shares, bounds)?;
        let image = monotone.first().map_or(1, |m| m.image);
        let monotone = (monotone.iter().zip(inner))
            .map(|(layer, bounds)| {
                ConvMonLip::from_free(&ConvFree {
                    bounds,
                    ..layer.clone()
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let orthogonal = (orthogonal.into_iter())
            .map(|map| ChannelOrthogonal::new(map, image))
            .collect::<Result<Vec<_>>>()?;
        Self::with_claim(monotone, orthogonal, bounds.into())
    }

    pub(crate) fn with_claim(
        monotone: Vec<ConvMonLip<T>>,
        orthogonal: Vec<ChannelOrthogonal<T>>,
        claim: Claimed,
    ) -> Result<Self> {
        if monotone.is_empty() || monotone.len() != orthogonal.len() {
            return Err(Error::shape(
                "orthogonal maps of a network on images",
                format!("as many as monotone layers ({}), at least one", monotone.len()),
                orthogonal.len(),
            ));
        }
        let (channels, image) = (monotone[0].channels(), monotone[0].image());
        let shapes = (monotone.iter().map(|l| (l.channels(), l.image())))
            .chain(orthogonal.iter().map(|l| (l.channels(), l.image())));
        for (k, shape) in shapes.enumerate() {
            if shape != (channels, image) {
                return Err(Error::shape(
                    format!("layer {k}"),
                    format!("{channels} channels of side {image}"),
                    format!("{} of side {}", shape.0, shape.1),
                ));
            }
        }
        Ok(ConvBiLipNet {
            monotone,
            orthogonal,
            claim,
        })
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.monotone[0].channels()
    }

    /// The side of the images.
    pub fn image(&self) -> usize {
        self.monotone[0].image()
    }

    /// The monotone layers, in order.
    pub fn monotone(&self) -> &[ConvMonLip<T>] {
        &self.monotone
    }

    /// The orthogonal maps, in order.
    pub fn orthogonal(&self) -> &[ChannelOrthogonal<T>] {
        &self.orthogonal
    }
}

impl<T: Real> sealed::Sealed for ConvBiLipNet<T> {}

impl<T: Real> BiLipschitz<T> for ConvBiLipNet<T> {
    fn dim(&self) -> usize {
        self.monotone[0].size()
    }

    fn claim(&self) -> Claimed {
        self.claim
    }

    fn bounds(&self) -> Proved {
        Proved::product(self.layers().iter().map(|layer| layer.bounds())).as_claimed(self.claim)
    }

    fn layers(&self) -> Vec<LayerRef<'_, T>> {
        (self.monotone.iter().zip(&self.orthogonal))
            .flat_map(|(f, o)| [LayerRef::ConvMonLip(f), LayerRef::ChannelOrthogonal(o)])
            .collect()
    }
}
