//! Bi-Lipschitz networks on images.

use bilip::Real;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::base::Result;
use crate::layers::{ConvMonLip, ConvMonLipConfig, HouseholderOrthogonal, ImageGroups, OrthogonalConfig};
use crate::ops;

/// A bi-Lipschitz block on images: a [`ConvMonLip`] and, pixel by pixel, an orthogonal map of the
/// channels by Householder reflections.
#[derive(Module, Debug)]
pub struct ConvBiLipNet<B: Backend> {
    monotone: ConvMonLip<B>,
    orthogonal: HouseholderOrthogonal<B>,
}

impl<B: Backend> ConvBiLipNet<B> {
    /// The block, with `max(channels/16, 10)` reflections.
    ///
    /// # Errors
    /// As [`ConvMonLipConfig::init`].
    pub fn new(config: &ConvMonLipConfig, device: &B::Device) -> Result<Self> {
        let reflections = (config.channels / 16).max(10);
        Ok(ConvBiLipNet {
            monotone: config.init(device)?,
            orthogonal: OrthogonalConfig::new(config.channels)
                .with_seed(config.seed ^ (1 << 48))
                .with_dtype(config.dtype)
                .init_householder(reflections, device)?,
        })
    }

    /// The monotone layer.
    pub fn monotone(&self) -> &ConvMonLip<B> {
        &self.monotone
    }

    /// The orthogonal map of the channels.
    pub fn orthogonal(&self) -> &HouseholderOrthogonal<B> {
        &self.orthogonal
    }

    /// The certified explicit network, its bounds exactly those of the block.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::ConvBiLipNet<T>> {
        let bounds = self.monotone.bounds();
        Ok(bilip::ConvBiLipNet::from_free(
            &[self.monotone.free()?],
            vec![self.orthogonal.freeze()?],
            bounds,
        )?)
    }

    /// `O(F(x))` of images in [groups](ImageGroups).
    pub fn on_groups(&self, x: Tensor<B, 5>) -> Tensor<B, 5> {
        let [groups, channels, images, size, _] = x.dims();
        let pixels = size * size;
        let x = ops::exchanged(x.reshape([1, groups, channels, images * pixels]));
        let y = self
            .monotone
            .by_channels(x.reshape([channels, groups * images, pixels]));
        let y = ops::exchanged(y.reshape([1, channels, groups, images * pixels]));
        self.orthogonal
            .on_groups(y.reshape([groups, channels, images, pixels]))
            .reshape([groups, channels, images, size, size])
    }

    /// `O(F(x))`.
    ///
    /// # Shapes
    /// `[batch, channels, image, image] → [batch, channels, image, image]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        ImageGroups::of(x).map(|x| self.on_groups(x)).images()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;
    use bilip::{Bounds, Rng};
    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData};

    fn images(shape: [usize; 4], seed: u64) -> Tensor<Flex, 4> {
        let values = Rng::new(seed).normals(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), (&Default::default(), DType::F64))
    }

    #[test]
    fn a_block_keeps_its_bounds_between_images() -> Result<()> {
        let config = ConvMonLipConfig::new(3, 4, vec![2, 2], Bounds::new(0.3, 2.5)?)
            .with_seed(5)
            .with_dtype(DType::F64);
        let net = ConvBiLipNet::<Flex>::new(&config, &Default::default())?;
        let (a, b) = (images([40, 3, 4, 4], 1), images([40, 3, 4, 4], 2));
        let (fa, fb) = (net.forward(a.clone()), net.forward(b.clone()));
        let distances = |u: Tensor<Flex, 4>, v: Tensor<Flex, 4>| -> Vec<f64> {
            numbers(u - v)
                .chunks(48)
                .map(|d| d.iter().map(|v| v * v).sum::<f64>().sqrt())
                .collect()
        };
        for (dy, dx) in distances(fa, fb).iter().zip(distances(a, b)) {
            assert!((0.3 - 1e-9..=2.5 + 1e-9).contains(&(dy / dx)), "{}", dy / dx);
        }
        Ok(())
    }
}
