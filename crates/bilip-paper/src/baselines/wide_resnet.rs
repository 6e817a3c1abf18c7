//! SNGP on images: a wide residual network whose convolutions have bounded norm.

use std::sync::Arc;

use bilip_burn::{Columns, ImageGroups, NormalizedConv, NormalizedConvConfig, PooledProjection, Predict};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Tensor};

use crate::error::{Error, Result};

/// Settings of a [`WideResNet`]: the feature map of SNGP on images (Liu et al. 2020).
#[derive(Config, Debug, PartialEq)]
pub struct WideResNetConfig {
    /// The bound on every residual branch: that on the norm of its second convolution, where its
    /// first and the shortcut have 1.
    pub bound: f64,
    /// Channels are 16 times this in the first stage, 32 and 64 in the others.
    pub width: usize,
    /// The side of the images, a multiple of 4.
    #[config(default = 32)]
    pub size: usize,
    /// Residual blocks of each of the three stages; four make 28 layers.
    #[config(default = 4)]
    pub blocks: usize,
    /// Whether there is batch normalization before every activation of the branches, too: better,
    /// and without any guarantee.
    #[config(default = false)]
    pub batch_norm: bool,
    /// Share of the channels of an image that are left out at random before every convolution of a
    /// branch while training; the published network has 0.1.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether kernels are scaled down after every step, as the published code does, instead of in
    /// the forward pass.
    #[config(default = false)]
    pub projected: bool,
    /// Numbers that the head sees.
    #[config(default = 128)]
    pub outputs: usize,
    /// Weight of the squares of convolutions and batch normalization in the loss.
    #[config(default = 3e-4)]
    pub decay: f64,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
}

impl WideResNetConfig {
    /// The network.
    ///
    /// # Errors
    /// On sizes of zero, a bound that is not positive, and images whose side is no multiple of 4.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<WideResNet<B>> {
        if self.size == 0 || !self.size.is_multiple_of(4) {
            return Err(Error::config("size", "must be a multiple of 4"));
        }
        for (name, value) in [
            ("width", self.width),
            ("outputs", self.outputs),
            ("blocks", self.blocks),
        ] {
            if value == 0 {
                return Err(Error::config(name, "must be at least 1"));
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::config("dropout", "must be at least 0 and below 1"));
        }
        let mut part = 0;
        let mut convolution = |channels, size, kernel, stride, bound| {
            part += 1;
            NormalizedConvConfig::new(channels, size)
                .with_kernel(kernel)
                .with_stride(stride)
                .with_bound(bound)
                .with_projected(self.projected)
                .with_seed(self.seed ^ (part << 40))
                .init::<B>(device)
        };
        let norm = |channels: usize| {
            self.batch_norm
                .then(|| BatchNormConfig::new(channels).init(device))
        };
        let bias =
            |channels: usize| Param::from_tensor(Tensor::<B, 1>::zeros([channels], (device, DType::F32)));
        let first = convolution([3, 16], self.size, 3, 1, 6.0)?;
        let (mut channels, mut size) = (16, self.size);
        let mut blocks = Vec::new();
        for stage in 0..3 {
            let next = (16 * self.width) << stage;
            for block in 0..self.blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(ResidualBlock {
                    first_norm: norm(channels),
                    first: convolution([channels, next], size, 3, stride, 1.0)?,
                    first_bias: bias(next),
                    second_norm: norm(next),
                    second: convolution([next, next], size / stride, 3, 1, self.bound)?,
                    second_bias: bias(next),
                    shortcut: match channels == next && stride == 1 {
                        true => None,
                        false => Some(convolution([channels, next], size, 1, stride, 1.0)?),
                    },
                });
                (channels, size) = (next, size / stride);
            }
        }
        Ok(WideResNet {
            first,
            blocks,
            head: PooledProjection::new(channels, self.outputs, self.seed ^ (1 << 60), device),
            config: Arc::new(self.clone()),
        })
    }
}

/// `shortcut(x) + W₂∗relu(W₁∗relu(x) + b₁) + b₂`, with batch normalization before the activations
/// or without. (A bias of the shortcut would be one with `b₂`.)
#[derive(Module, Debug)]
struct ResidualBlock<B: Backend> {
    first_norm: Option<BatchNorm<B>>,
    first: NormalizedConv<B>,
    first_bias: Param<Tensor<B, 1>>,
    second_norm: Option<BatchNorm<B>>,
    second: NormalizedConv<B>,
    second_bias: Param<Tensor<B, 1>>,
    /// Where the shape changes.
    shortcut: Option<NormalizedConv<B>>,
}

fn normalized<B: Backend>(norm: &Option<BatchNorm<B>>, x: Tensor<B, 5>) -> Tensor<B, 5> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// A number for every channel added.
fn shifted<B: Backend>(x: Tensor<B, 5>, bias: &Param<Tensor<B, 1>>) -> Tensor<B, 5> {
    let channels = x.dims()[1];
    x + bias.val().reshape([1, channels, 1, 1, 1])
}

/// Whole channels of images left out at random while training, the others scaled up.
fn thinned<B: Backend>(x: Tensor<B, 5>, share: f64) -> Tensor<B, 5> {
    let device = x.device();
    if share == 0.0 || !B::ad_enabled(&device) {
        return x;
    }
    let [groups, channels, images, _, _] = x.dims();
    let kept = Distribution::Bernoulli(1.0 - share);
    let mask = Tensor::<B, 5>::random([groups, channels, images, 1, 1], kept, (&device, x.dtype()));
    x * mask.div_scalar(1.0 - share)
}

impl<B: Backend> ResidualBlock<B> {
    fn forward(&self, x: Tensor<B, 5>, dropout: f64) -> Tensor<B, 5> {
        let h = relu(normalized(&self.first_norm, x.clone()));
        let h = shifted(self.first.on_groups(thinned(h, dropout)), &self.first_bias);
        let h = relu(normalized(&self.second_norm, h));
        let h = shifted(self.second.on_groups(thinned(h, dropout)), &self.second_bias);
        match &self.shortcut {
            Some(shortcut) => shortcut.on_groups(x) + thinned(h, dropout),
            None => x + h,
        }
    }

    fn settle(self) -> Self {
        ResidualBlock {
            first: self.first.settle(),
            second: self.second.settle(),
            shortcut: self.shortcut.map(NormalizedConv::settle),
            ..self
        }
    }

    fn square(&self) -> Tensor<B, 1> {
        let mut sum = self.first.square() + self.second.square();
        if let Some(shortcut) = &self.shortcut {
            sum = sum + shortcut.square();
        }
        for norm in [&self.first_norm, &self.second_norm].into_iter().flatten() {
            sum = sum + square_of_norm(norm);
        }
        sum
    }
}

/// The feature map of SNGP on images: a wide residual network whose convolutions have bounded norm;
/// then batch normalization, ReLU, the mean over the image and a fixed random projection, as in
/// [`ConvFeatures`](bilip_burn::ConvFeatures).
#[derive(Module, Debug)]
pub struct WideResNet<B: Backend> {
    first: NormalizedConv<B>,
    blocks: Vec<ResidualBlock<B>>,
    head: PooledProjection<B>,
    #[module(skip)]
    config: Arc<WideResNetConfig>,
}

impl<B: Backend> WideResNet<B> {
    /// The features.
    ///
    /// # Shapes
    /// `[batch, 3, size, size] → [batch, outputs]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let dropout = self.config.dropout;
        let mut x = thinned(self.first.on_groups(ImageGroups::of(x).0), dropout);
        for block in &self.blocks {
            x = block.forward(x, dropout);
        }
        self.head.forward(x)
    }

    /// The convolutions, all of bounded norm.
    pub fn convolutions(&self) -> Vec<&NormalizedConv<B>> {
        let of_blocks =
            (self.blocks.iter()).flat_map(|b| [&b.first, &b.second].into_iter().chain(&b.shortcut));
        std::iter::once(&self.first).chain(of_blocks).collect()
    }
}

impl<B: Backend> Predict<B> for WideResNet<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        let [batch, _] = x.dims();
        let size = self.config.size;
        self.forward(x.reshape([batch, 3, size, size]))
    }

    fn columns(&self) -> Columns {
        let size = self.config.size;
        Columns::new(3 * size * size, self.config.outputs)
    }

    fn settle(self) -> Self {
        WideResNet {
            first: self.first.settle(),
            blocks: self.blocks.into_iter().map(ResidualBlock::settle).collect(),
            ..self
        }
    }

    fn penalty(&self) -> Option<Tensor<B, 1>> {
        let mut sum = self.first.square() + self.head.square();
        for block in &self.blocks {
            sum = sum + block.square();
        }
        Some(sum.mul_scalar(self.config.decay))
    }
}

/// The sum of the squares of a batch normalization's factors and shifts.
fn square_of_norm<B: Backend>(norm: &BatchNorm<B>) -> Tensor<B, 1> {
    let (gamma, beta) = (norm.gamma.val(), norm.beta.val());
    (gamma.clone() * gamma).sum() + (beta.clone() * beta).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn residual_networks_have_the_shape_and_size_they_should() -> Result<()> {
        let device = Default::default();
        for batch_norm in [false, true] {
            let config = WideResNetConfig {
                size: 32,
                blocks: 1,
                batch_norm,
                outputs: 7,
                ..WideResNetConfig::new(0.65, 1)
            };
            let net = config.init::<Flex>(&device)?;
            let x = Tensor::<Flex, 2>::ones([2, 3 * 1024], (&device, DType::F32));
            assert_eq!(net.predict(x, None).dims(), [2, 7]);
            assert!(net.penalty().is_some());
            // As they start, kernels exceed their bounds and are taken down to them; what is proved
            // is a little more.
            for block in &net.blocks {
                let parts = [
                    (Some(&block.first), 1.0),
                    (Some(&block.second), 0.65),
                    (block.shortcut.as_ref(), 1.0),
                ];
                for (convolution, bound) in parts {
                    if let Some(convolution) = convolution {
                        let norm = convolution.certified_norm()?;
                        assert!((0.99 * bound..1.3 * bound).contains(&norm), "{norm} for {bound}");
                    }
                }
            }
            assert!(net.first.certified_norm()? < 6.5);
        }
        // Stages of 16, 32 and 64: two kernels of 3 × 3 a block, one of 1 × 1 where the shape
        // changes.
        let net = WideResNetConfig::new(0.65, 1).init::<Flex>(&device)?;
        let weights: usize = std::iter::once(3 * 16 * 9)
            .chain((0..3).map(|k| {
                let (before, now) = (if k == 0 { 16 } else { 16 << (k - 1) }, 16usize << k);
                let change = if k == 0 { 0 } else { before * now };
                9 * before * now + 7 * 9 * now * now + change
            }))
            .sum();
        let found: usize = (net.blocks.iter())
            .flat_map(|b| [Some(&b.first), Some(&b.second), b.shortcut.as_ref()])
            .flatten()
            .chain([&net.first])
            .map(|c| c.num_params() - c.size() * c.size() * c.channels()[0])
            .sum();
        assert_eq!(found, weights);
        assert!(
            WideResNetConfig {
                width: 0,
                ..WideResNetConfig::new(0.65, 1)
            }
            .init::<Flex>(&device)
            .is_err()
        );
        Ok(())
    }

    #[test]
    fn dropout_leaves_out_whole_channels_while_training_alone() -> Result<()> {
        use burn::backend::Autodiff;
        let device = Default::default();
        let x = Tensor::<Autodiff<Flex>, 5>::ones([2, 50, 4, 3, 3], &device);
        let thin: Vec<f32> = thinned(x.clone(), 0.2).to_data().to_vec().unwrap_or_default();
        let kept = thin.chunks(9).filter(|c| c[0] > 0.0).count();
        assert!(thin.chunks(9).all(|c| c.iter().all(|v| *v == c[0])));
        assert!(thin.iter().all(|v| *v == 0.0 || (*v - 1.25).abs() < 1e-6));
        assert!((280..360).contains(&kept), "{kept} of 400");
        let inner = thinned(x.inner(), 0.2)
            .to_data()
            .to_vec::<f32>()
            .unwrap_or_default();
        assert!(inner.iter().all(|v| *v == 1.0));
        assert!(
            WideResNetConfig::new(0.5, 1)
                .with_dropout(1.0)
                .init::<Flex>(&device)
                .is_err()
        );
        Ok(())
    }
}
