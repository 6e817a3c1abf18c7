//! Networks on images: the feature maps of the paper's image classifier and of SNGP.
//!
//! Between their layers images lie in [groups](crate::normalized::Groups).

use std::sync::Arc;

use bilip::faer::Mat;
use bilip::{Bounds, ImageStep, Real, Rng};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::conv::{ConvBiLipNet, ConvConfig};
use crate::error::{Error, Result};
use crate::normalized::{Groups, NormalizedConv, NormalizedConvConfig};
use crate::ops;
use crate::portable::framed;
use crate::predict::Predict;

/// Settings of [`ConvFeatures`]: the paper's image network.
#[derive(Clone, Debug)]
pub struct ConvFeaturesConfig {
    /// The side of the images, a multiple of 4.
    pub size: usize,
    /// Channels are 16 times this in the first block, 32 and 64 in the others; the paper has 10.
    pub width: usize,
    /// The bounds of every block.
    pub bounds: Bounds,
    /// Numbers that the head sees.
    pub outputs: usize,
    /// Weight of the squares of plain convolutions and batch normalization in the loss.
    pub decay: f64,
    /// Seed of the initial parameters.
    pub seed: u64,
}

impl ConvFeaturesConfig {
    /// The network for images of 32 × 32 with blocks of bounds `((1 − c)⁴, (1 + c)⁴)`.
    ///
    /// # Errors
    /// Unless `0 < c < 1`.
    pub fn new(c: f64, width: usize) -> Result<Self> {
        if !(c > 0.0 && c < 1.0) {
            return Err(Error::setting("c", c, "must lie between 0 and 1"));
        }
        Ok(ConvFeaturesConfig {
            size: 32,
            width,
            bounds: Bounds::new((1.0 - c).powi(4), (1.0 + c).powi(4))?,
            outputs: 128,
            decay: 3e-4,
            seed: 0,
        })
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
            NormalizedConvConfig {
                channels,
                size,
                kernel: 3,
                stride,
                bound,
                seed: seed(part),
                dtype: DType::F32,
            }
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
            let config = ConvConfig {
                seed: seed(4 + k as u64),
                ..ConvConfig::new(channels, size, &[channels / 8; 8], self.bounds)
            };
            blocks.push(ConvBiLipNet::new(&config, device)?);
        }
        Ok(ConvFeatures {
            convolutions,
            blocks,
            norm: BatchNormConfig::new(channels).init(device),
            projection: projection(channels, self.outputs, seed(7), device),
            config: Arc::new(self.clone()),
        })
    }
}

/// The feature map of the paper's image network: convolutions of bounded norm, each before a bi-Lipschitz block; then batch normalization, ReLU, the mean over the
/// image and a fixed random projection.
#[derive(Module, Debug)]
pub struct ConvFeatures<B: Backend> {
    convolutions: Vec<NormalizedConv<B>>,
    blocks: Vec<ConvBiLipNet<B>>,
    norm: BatchNorm<B>,
    /// `[channels, outputs]`, not trained.
    projection: Param<Tensor<B, 2>>,
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
        Groups::of(x).map(|x| self.until_block(x, k)).images()
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

    /// The certified explicit feature map: every block with its bounds, every convolution with the norm that is proved.
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
        let numbers = |t: Tensor<B, 1>| t.to_data().iter::<f64>().collect::<Vec<_>>();
        let (gamma, beta) = (numbers(self.norm.gamma.val()), numbers(self.norm.beta.val()));
        let (mean, variance) = (
            numbers(self.norm.running_mean.value_sync()),
            numbers(self.norm.running_var.value_sync()),
        );
        let scale: Vec<f64> = (gamma.iter().zip(&variance))
            .map(|(g, v)| g / (v + self.norm.epsilon).sqrt())
            .collect();
        let shift = (beta.iter().zip(&scale).zip(&mean)).map(|((b, s), m)| T::round_from(b - s * m));
        let [channels, outputs] = self.projection.val().dims();
        let projection: Vec<f64> = self.projection.val().to_data().iter::<f64>().collect();
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
        let x = self.blocks[last].on_groups(self.until_block(Groups::of(x).0, last));
        pooled(self.norm.forward(x), &self.projection)
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

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        let size = self.config.size;
        (Some(3 * size * size), 0, Some(self.config.outputs))
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
        let mut sum = square_of_norm(&self.norm);
        for convolution in &self.convolutions {
            sum = sum + convolution.square();
        }
        Some(sum.mul_scalar(self.config.decay))
    }
}

/// Settings of a [`WideResNet`]: the feature map of SNGP on images (Liu et al. 2020).
#[derive(Clone, Debug)]
pub struct WideResNetConfig {
    /// The side of the images, a multiple of 4.
    pub size: usize,
    /// Residual blocks of each of the three stages; four make 28 layers.
    pub blocks: usize,
    /// Channels are 16 times this in the first stage, 32 and 64 in the others.
    pub width: usize,
    /// The bound on every residual branch: that on the norm of its second convolution, where its first and the shortcut have 1.
    pub bound: f64,
    /// Whether there is batch normalization before every activation of the branches, too: better, and without any guarantee.
    pub batch_norm: bool,
    /// Numbers that the head sees.
    pub outputs: usize,
    /// Weight of the squares of convolutions and batch normalization in the loss.
    pub decay: f64,
    /// Seed of the initial parameters.
    pub seed: u64,
}

impl WideResNetConfig {
    /// 28 layers for images of 32 × 32.
    pub fn new(bound: f64, width: usize) -> Self {
        WideResNetConfig {
            size: 32,
            blocks: 4,
            width,
            bound,
            batch_norm: false,
            outputs: 128,
            decay: 3e-4,
            seed: 0,
        }
    }

    /// The network.
    ///
    /// # Errors
    /// On sizes of zero, a bound that is not positive, and images whose side is no multiple of 4.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<WideResNet<B>> {
        if self.size == 0 || !self.size.is_multiple_of(4) {
            return Err(Error::setting("size", self.size, "must be a multiple of 4"));
        }
        for (name, value) in [
            ("width", self.width),
            ("outputs", self.outputs),
            ("blocks", self.blocks),
        ] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let mut part = 0;
        let mut convolution = |channels, size, kernel, stride, bound| {
            part += 1;
            NormalizedConvConfig {
                channels,
                size,
                kernel,
                stride,
                bound,
                seed: self.seed ^ (part << 40),
                dtype: DType::F32,
            }
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
            norm: BatchNormConfig::new(channels).init(device),
            projection: projection(channels, self.outputs, self.seed ^ (1 << 60), device),
            config: Arc::new(self.clone()),
        })
    }
}

/// `shortcut(x) + W₂∗relu(W₁∗relu(x) + b₁) + b₂`, with batch normalization before the activations or without. (A bias of the shortcut would be one with `b₂`.)
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

impl<B: Backend> ResidualBlock<B> {
    fn forward(&self, x: Tensor<B, 5>) -> Tensor<B, 5> {
        let h = relu(normalized(&self.first_norm, x.clone()));
        let h = shifted(self.first.on_groups(h), &self.first_bias);
        let h = relu(normalized(&self.second_norm, h));
        let h = shifted(self.second.on_groups(h), &self.second_bias);
        match &self.shortcut {
            Some(shortcut) => shortcut.on_groups(x) + h,
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

/// The feature map of SNGP on images: a wide residual network whose convolutions have bounded norm; then batch normalization, ReLU, the mean over the image and a
/// fixed random projection, as in [`ConvFeatures`].
#[derive(Module, Debug)]
pub struct WideResNet<B: Backend> {
    first: NormalizedConv<B>,
    blocks: Vec<ResidualBlock<B>>,
    norm: BatchNorm<B>,
    /// `[channels, outputs]`, not trained.
    projection: Param<Tensor<B, 2>>,
    #[module(skip)]
    config: Arc<WideResNetConfig>,
}

impl<B: Backend> WideResNet<B> {
    /// The features.
    ///
    /// # Shapes
    /// `[batch, 3, size, size] → [batch, outputs]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let mut x = self.first.on_groups(Groups::of(x).0);
        for block in &self.blocks {
            x = block.forward(x);
        }
        pooled(self.norm.forward(x), &self.projection)
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

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        let size = self.config.size;
        (Some(3 * size * size), 0, Some(self.config.outputs))
    }

    fn settle(self) -> Self {
        WideResNet {
            first: self.first.settle(),
            blocks: self.blocks.into_iter().map(ResidualBlock::settle).collect(),
            ..self
        }
    }

    fn penalty(&self) -> Option<Tensor<B, 1>> {
        let mut sum = self.first.square() + square_of_norm(&self.norm);
        for block in &self.blocks {
            sum = sum + block.square();
        }
        Some(sum.mul_scalar(self.config.decay))
    }
}

fn square_of_norm<B: Backend>(norm: &BatchNorm<B>) -> Tensor<B, 1> {
    let (gamma, beta) = (norm.gamma.val(), norm.beta.val());
    (gamma.clone() * gamma).sum() + (beta.clone() * beta).sum()
}

/// A fixed matrix of normal numbers with deviation 0.05, as published.
fn projection<B: Backend>(
    channels: usize,
    outputs: usize,
    seed: u64,
    device: &B::Device,
) -> Param<Tensor<B, 2>> {
    let values = Rng::new(seed).normals(channels * outputs);
    let values: Vec<f64> = values.iter().map(|v| 0.05 * v).collect();
    let data = TensorData::new(values, [channels, outputs]).convert_dtype(DType::F32);
    Param::from_tensor(Tensor::from_data(data, (device, DType::F32))).set_require_grad(false)
}

/// ReLU, the mean over the image, and the projection.
fn pooled<B: Backend>(x: Tensor<B, 5>, projection: &Param<Tensor<B, 2>>) -> Tensor<B, 2> {
    let [groups, channels, images, size, _] = x.dims();
    let mean = relu(x)
        .reshape([groups, channels, images, size * size])
        .mean_dim(3)
        .reshape([groups, channels, images])
        .swap_dims(1, 2)
        .reshape([groups * images, channels]);
    ops::matmul(mean, projection.val())
}

/// Images moved and mirrored at random while training: zeros around them, a window of the old size, and left for right in half of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    /// Channels of an image.
    pub channels: usize,
    /// Its side.
    pub size: usize,
    /// Zeros on each side.
    pub pad: usize,
}

impl Augment {
    /// The rows of a batch, `[batch, channels·size²]`, changed; the changes are drawn from `rng`.
    pub(crate) fn apply<B: Backend>(&self, x: Tensor<B, 2>, rng: &mut Rng) -> Tensor<B, 2> {
        let [batch, numbers] = x.dims();
        let Augment { channels, size, pad } = *self;
        let wide = size + 2 * pad;
        let device = x.device();
        let mut draw = |count: usize| -> Vec<i32> {
            (0..batch)
                .map(|_| (rng.uniform() * count as f64) as i32)
                .collect()
        };
        let (down, right, mirror) = (draw(2 * pad + 1), draw(2 * pad + 1), draw(2));
        let column = |v: Vec<i32>| Tensor::<B, 2, Int>::from_data(TensorData::new(v, [batch, 1]), &device);
        let steps: Vec<i32> = (0..size as i32).collect();
        let steps = Tensor::<B, 2, Int>::from_data(TensorData::new(steps, [1, size]), &device);
        let rows = steps.clone() + column(down);
        // q, or size − 1 − q.
        let sign = column(mirror.iter().map(|m| 1 - 2 * m).collect());
        let start = column(mirror.iter().map(|m| m * (size as i32 - 1)).collect());
        let columns = steps * sign + start + column(right);
        let places =
            rows.mul_scalar(wide as i32).reshape([batch, size, 1]) + columns.reshape([batch, 1, size]);
        let places = places.reshape([batch, 1, size * size]).repeat_dim(1, channels);
        framed(x.reshape([batch, channels, size, size]), [pad; 2], [pad; 2])
            .reshape([batch, channels, wide * wide])
            .gather(2, places)
            .reshape([batch, numbers])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    fn numbers<const D: usize>(t: Tensor<Flex, D>) -> Vec<f64> {
        t.to_data().iter::<f64>().collect()
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        assert!(ConvFeaturesConfig::new(1.0, 1).is_err());
        let odd = ConvFeaturesConfig {
            size: 6,
            ..ConvFeaturesConfig::new(0.5, 1).unwrap()
        };
        assert!(odd.init::<Flex>(&device).is_err());
    }

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
            // As they start, kernels exceed their bounds and are taken down to them; what is proved is a little more.
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
        // Stages of 16, 32 and 64: two kernels of 3 × 3 a block, one of 1 × 1 where the shape changes.
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
    fn images_are_moved_and_mirrored_and_nothing_else() {
        let augment = Augment {
            channels: 2,
            size: 4,
            pad: 1,
        };
        let device = Default::default();
        let values: Vec<f64> = (1..=2 * 16).map(f64::from).collect();
        let x = Tensor::<Flex, 2>::from_data(
            TensorData::new(values.repeat(50), [50, 32]),
            (&device, DType::F64),
        );
        let y = numbers(augment.apply(x, &mut Rng::new(2)));
        let mut seen = std::collections::BTreeSet::new();
        for row in y.chunks(32) {
            // One of the 3 × 3 × 2 ways, the same for both channels.
            let ways: Vec<(isize, isize, bool)> = (-1..=1)
                .flat_map(|a| (-1..=1).flat_map(move |b| [(a, b, false), (a, b, true)]))
                .filter(|(a, b, mirror)| {
                    (0..32).all(|k| {
                        let (c, p, q) = (k / 16, (k / 4 % 4) as isize, (k % 4) as isize);
                        let q = if *mirror { 3 - q } else { q };
                        let (p, q) = (p + a, q + b);
                        let inside = (0..4).contains(&p) && (0..4).contains(&q);
                        let expected = if inside {
                            values[(c * 16) as usize + (4 * p + q) as usize]
                        } else {
                            0.0
                        };
                        row[k as usize] == expected
                    })
                })
                .collect();
            assert_eq!(ways.len(), 1, "{row:?}");
            seen.insert(ways[0]);
        }
        assert!(seen.len() > 10);
    }
}
