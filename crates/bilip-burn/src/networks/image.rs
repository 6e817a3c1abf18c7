//! The feature map of the paper's image classifier.
//!
//! Between its layers images are in [groups](crate::ImageGroups).

use std::sync::Arc;

use bilip::faer::Mat;
use bilip::{Bounds, ImageStep, Real};
use burn::config::Config;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::conv::ConvBiLipNet;
use super::pooled::PooledProjection;
use super::predict::Predict;
use crate::base::{Columns, Error, Result, numbers};
use crate::layers::{ConvMonLipConfig, ImageGroups, NormalizedConv, NormalizedConvConfig};

/// Settings of [`ConvFeatures`]: the paper's image network.
#[derive(Config, Debug, PartialEq)]
pub struct ConvFeaturesConfig {
    /// Channels are 16 times this in the first block, 32 and 64 in the others; the paper has 10.
    pub width: usize,
    /// The bounds of every block.
    pub bounds: Bounds,
    /// The side of the images, a multiple of 4.
    #[config(default = 32)]
    pub size: usize,
    /// Numbers that the head sees.
    #[config(default = 128)]
    pub outputs: usize,
    /// Weight of the squares of plain convolutions and batch normalization in the loss.
    #[config(default = 3e-4)]
    pub decay: f64,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
}

impl ConvFeaturesConfig {
    /// Bounds `((1 − c)⁴, (1 + c)⁴)` of every block: those of four residual layers whose branches
    /// are bounded by c.
    ///
    /// # Errors
    /// Unless `0 < c < 1`.
    pub fn of_branch_bound(c: f64, width: usize) -> Result<Self> {
        if !(c > 0.0 && c < 1.0) {
            return Err(Error::setting("c", c, "must be between 0 and 1"));
        }
        let bounds = Bounds::new((1.0 - c).powi(4), (1.0 + c).powi(4))?;
        Ok(ConvFeaturesConfig::new(width, bounds))
    }

    /// The network.
    ///
    /// # Errors
    /// On sizes of zero and images whose side is no multiple of 4.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<ConvFeatures<B>> {
        if self.size == 0 || !self.size.is_multiple_of(4) {
            return Err(Error::setting("size", self.size, "must be a multiple of 4"));
        }
        for (name, value) in [("width", self.width), ("outputs", self.outputs)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let seed = |part: u64| self.seed ^ ((part + 1) << 40);
        let first = 16;
        let convolution = |channels, size, stride, bound, part| {
            NormalizedConvConfig::new(channels, size)
                .with_stride(stride)
                .with_bound(bound)
                .with_seed(seed(part))
                .init::<B>(device)
        };
        let mut convolutions = vec![convolution([3, first], self.size, 1, 6.0, 0)?];
        let mut blocks = Vec::new();
        let (mut channels, mut size) = (first, self.size);
        for k in 0..3 {
            let next = (first * self.width) << k;
            let stride = if k == 0 { 1 } else { 2 };
            convolutions.push(convolution([channels, next], size, stride, 1.0, 1 + k as u64)?);
            (channels, size) = (next, size / stride);
            let config = ConvMonLipConfig::new(channels, size, vec![channels / 8; 8], self.bounds)
                .with_seed(seed(4 + k as u64));
            blocks.push(ConvBiLipNet::new(&config, device)?);
        }
        Ok(ConvFeatures {
            convolutions,
            blocks,
            head: PooledProjection::new(channels, self.outputs, seed(7), device),
            config: Arc::new(self.clone()),
        })
    }
}

/// The feature map of the paper's image network: convolutions of bounded norm, each before a
/// bi-Lipschitz block; then batch normalization, ReLU, the mean over the image and a fixed random
/// projection.
#[derive(Module, Debug)]
pub struct ConvFeatures<B: Backend> {
    convolutions: Vec<NormalizedConv<B>>,
    blocks: Vec<ConvBiLipNet<B>>,
    head: PooledProjection<B>,
    #[module(skip)]
    config: Arc<ConvFeaturesConfig>,
}

impl<B: Backend> ConvFeatures<B> {
    /// The bi-Lipschitz blocks.
    pub fn blocks(&self) -> &[ConvBiLipNet<B>] {
        &self.blocks
    }

    /// The convolutions of bounded norm.
    pub fn convolutions(&self) -> &[NormalizedConv<B>] {
        &self.convolutions
    }

    /// What goes into block `k`: images `[batch, 3, size, size]` through everything before it.
    ///
    /// # Shapes
    /// `[batch, 3, size, size] → [batch, channels, s, s]`
    pub fn before_block(&self, x: Tensor<B, 4>, k: usize) -> Tensor<B, 4> {
        ImageGroups::of(x).map(|x| self.until_block(x, k)).images()
    }

    fn until_block(&self, x: Tensor<B, 5>, k: usize) -> Tensor<B, 5> {
        let mut x = self.convolutions[0].on_groups(x);
        for block in 0..=k {
            x = self.convolutions[block + 1].on_groups(x);
            if block < k {
                x = self.blocks[block].on_groups(x);
            }
        }
        x
    }

    /// The certified explicit feature map: every block with its bounds, every convolution with the
    /// norm that is proved.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::ImageFeatures<T>> {
        let mut steps = Vec::new();
        for (k, convolution) in self.convolutions.iter().enumerate() {
            let frozen = convolution.freeze::<T>()?;
            let norm = frozen.norm_bound()?;
            steps.push(ImageStep::Convolution(frozen, norm));
            if let Some(block) = k.checked_sub(1).and_then(|k| self.blocks.get(k)) {
                steps.push(ImageStep::Block(block.freeze()?));
            }
        }
        // Batch normalization with its moving statistics is one factor and one shift per channel.
        let norm = &self.head.norm;
        let (gamma, beta) = (numbers(norm.gamma.val()), numbers(norm.beta.val()));
        let (mean, variance) = (
            numbers(norm.running_mean.value_sync()),
            numbers(norm.running_var.value_sync()),
        );
        let scale: Vec<f64> = (gamma.iter().zip(&variance))
            .map(|(g, v)| g / (v + norm.epsilon).sqrt())
            .collect();
        let shift = (beta.iter().zip(&scale).zip(&mean)).map(|((b, s), m)| T::round_from(b - s * m));
        let [channels, outputs] = self.head.projection.val().dims();
        let projection = numbers(self.head.projection.val());
        Ok(bilip::ImageFeatures::new(
            steps,
            scale.iter().map(|s| T::round_from(*s)).collect(),
            shift.collect(),
            Mat::from_fn(outputs, channels, |i, j| {
                T::round_from(projection[j * outputs + i])
            }),
            self.config.bounds,
        )?)
    }

    /// The features.
    ///
    /// # Shapes
    /// `[batch, 3, size, size] → [batch, outputs]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let last = self.blocks.len() - 1;
        let x = self.blocks[last].on_groups(self.until_block(ImageGroups::of(x).0, last));
        self.head.forward(x)
    }
}

impl<B: Backend> Predict<B> for ConvFeatures<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        let [batch, _] = x.dims();
        let size = self.config.size;
        self.forward(x.reshape([batch, 3, size, size]))
    }

    fn current_bounds(&self) -> Option<Bounds> {
        Some(self.config.bounds)
    }

    fn columns(&self) -> Columns {
        let size = self.config.size;
        Columns::new(3 * size * size, self.config.outputs)
    }

    fn settle(self) -> Self {
        ConvFeatures {
            convolutions: self
                .convolutions
                .into_iter()
                .map(NormalizedConv::settle)
                .collect(),
            ..self
        }
    }

    fn penalty(&self) -> Option<Tensor<B, 1>> {
        let mut sum = self.head.square();
        for convolution in &self.convolutions {
            sum = sum + convolution.square();
        }
        Some(sum.mul_scalar(self.config.decay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        assert!(ConvFeaturesConfig::of_branch_bound(1.0, 1).is_err());
        let odd = ConvFeaturesConfig::of_branch_bound(0.5, 1).unwrap().with_size(6);
        assert!(odd.init::<Flex>(&device).is_err());
    }
}
