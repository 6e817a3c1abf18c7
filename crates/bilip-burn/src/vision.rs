//! Networks on images: convolutions of bounded norm, and the feature map of the paper's image classifier.

use std::sync::Arc;

use bilip::faer::Mat;
use bilip::{Bounds, Kernels, Rng, spectral_norm_bound};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::module::{conv_transpose2d, conv2d};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::conv::{ConvBiLipNet, ConvConfig};
use crate::error::{Error, Result};
use crate::ops;
use crate::predict::Predict;

/// Settings of a [`NormalizedConv`].
#[derive(Clone, Copy, Debug)]
pub struct NormalizedConvConfig {
    /// Channels that go in and come out.
    pub channels: [usize; 2],
    /// The side of the images that go in.
    pub size: usize,
    /// The odd side of the kernels.
    pub kernel: usize,
    /// 1, or 2 for half as many pixels each way.
    pub stride: usize,
    /// The bound on the norm.
    pub bound: f64,
    /// Seed of the initial kernels.
    pub seed: u64,
    /// Precision of the parameters.
    pub dtype: DType,
}

/// A convolution with zeros around the image and no bias, scaled down where its norm would exceed a bound.
///
/// The norm is that of the whole map from images to images, stride included, by a power iteration on images that is carried from step to step; not that of the
/// kernels as a flat matrix, which can be smaller by a factor of up to 3.
#[derive(Module, Debug)]
pub struct NormalizedConv<B: Backend> {
    /// `[outputs, inputs, kernel, kernel]`.
    weight: Param<Tensor<B, 4>>,
    /// The image that is stretched most as known so far, `[1, inputs, size, size]`; not trained.
    image: Param<Tensor<B, 4>>,
    stride: usize,
    #[module(skip)]
    bound: f64,
}

impl NormalizedConvConfig {
    /// The convolution, He-normal.
    ///
    /// # Errors
    /// On sizes of zero, even kernels, strides other than 1 and 2, odd images with stride 2, and a bound that is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<NormalizedConv<B>> {
        let NormalizedConvConfig {
            channels: [inputs, outputs],
            size,
            kernel,
            stride,
            bound,
            seed,
            dtype,
        } = *self;
        for (name, value) in [("inputs", inputs), ("outputs", outputs), ("size", size)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        if kernel.is_multiple_of(2) {
            return Err(Error::setting("kernel", kernel, "must be odd"));
        }
        if !(stride == 1 || (stride == 2 && size.is_multiple_of(2))) {
            return Err(Error::setting(
                "stride",
                stride,
                "must be 1, or 2 for images of even side",
            ));
        }
        if !(bound > 0.0 && bound.is_finite()) {
            return Err(Error::setting("bound", bound, "must be positive"));
        }
        let mut rng = Rng::new(seed);
        let deviation = (2.0 / (inputs * kernel * kernel) as f64).sqrt();
        let tensor = |values: Vec<f64>, shape: [usize; 4]| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Tensor::<B, 4>::from_data(data, (device, dtype))
        };
        let values = rng.normals(outputs * inputs * kernel * kernel);
        let values = values.iter().map(|v| deviation * v).collect();
        let start = tensor(rng.normals(inputs * size * size), [1, inputs, size, size]);
        let mut layer = NormalizedConv {
            weight: Param::from_tensor(tensor(values, [outputs, inputs, kernel, kernel])),
            image: Param::from_tensor(start).set_require_grad(false),
            stride,
            bound,
        };
        for _ in 0..30 {
            layer = layer.settle();
        }
        Ok(layer)
    }
}

impl<B: Backend> NormalizedConv<B> {
    /// The side of the kernels.
    fn kernel(&self) -> usize {
        self.weight.val().dims()[2]
    }

    /// Zeros on each side.
    fn pad(&self) -> usize {
        (self.kernel() - 1) / 2
    }

    /// The side of the images.
    fn size(&self) -> usize {
        self.image.val().dims()[2]
    }

    fn convolved(&self, x: Tensor<B, 4>, weight: Tensor<B, 4>) -> Tensor<B, 4> {
        let options = ConvOptions::new([self.stride; 2], [self.pad(); 2], [1, 1], 1);
        conv2d(x, weight, None, options)
    }

    /// The layer after one more step of the power iteration.
    pub(crate) fn settle(self) -> Self {
        let weight = self.weight.val().detach();
        let y = self.convolved(self.image.val(), weight.clone());
        let options =
            ConvTransposeOptions::new([self.stride; 2], [self.pad(); 2], [self.stride - 1; 2], [1, 1], 1);
        let back = conv_transpose2d(y, weight, None, options);
        let norm = (back.clone() * back.clone()).sum().add_scalar(1e-30).sqrt();
        let next = (back / norm.unsqueeze()).detach();
        NormalizedConv {
            image: self.image.map(|_| next),
            ..self
        }
    }

    /// The norm as known so far, differentiable in the weights.
    fn norm(&self) -> Tensor<B, 1> {
        let y = self.convolved(self.image.val(), self.weight.val());
        (y.clone() * y).sum().add_scalar(1e-30).sqrt()
    }

    /// `x ↦ W∗x·min(1, bound/‖W‖)`.
    ///
    /// # Shapes
    /// `[batch, inputs, size, size] → [batch, outputs, size/stride, size/stride]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, inputs, size, _] = x.dims();
        let outputs = self.weight.val().dims()[0];
        let out = size / self.stride;
        let scale = self.norm().div_scalar(self.bound).clamp_min(1.0).recip();
        let weight = self.weight.val() * scale.unsqueeze();
        // As one product: all shifted images beside each other.
        let kernel = self.kernel();
        let padded = framed(x, self.pad());
        let columns: Vec<Tensor<B, 4>> = (0..kernel * kernel)
            .map(|d| {
                let (a, b) = (d / kernel, d % kernel);
                let shifted = padded
                    .clone()
                    .slice([0..batch, 0..inputs, a..a + size, b..b + size]);
                self.thinned(shifted).permute([0, 2, 3, 1])
            })
            .collect();
        let columns = Tensor::cat(columns, 3).reshape([batch * out * out, kernel * kernel * inputs]);
        let weight = weight
            .permute([2, 3, 1, 0])
            .reshape([kernel * kernel * inputs, outputs]);
        ops::matmul(columns, weight)
            .reshape([batch, out, out, outputs])
            .permute([0, 3, 1, 2])
    }

    /// Every second row and column with stride 2.
    fn thinned(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        if self.stride == 1 {
            return x;
        }
        let [batch, channels, size, _] = x.dims();
        let half = size / 2;
        x.reshape([batch * channels * half, 2 * size])
            .slice([0..batch * channels * half, 0..size])
            .reshape([batch * channels * half * half, 2])
            .slice([0..batch * channels * half * half, 0..1])
            .reshape([batch, channels, half, half])
    }

    /// The sum of the squared weights.
    fn square(&self) -> Tensor<B, 1> {
        let weight = self.weight.val();
        (weight.clone() * weight).sum()
    }

    /// A proved bound on the norm of the scaled convolution, computed from the parameters in f64: that of the circular one on images with room for the zeros,
    /// frequency by frequency.
    ///
    /// With stride 2, the four frequencies that fall together after thinning make one matrix of half their norm.
    ///
    /// # Errors
    /// When a weight is not a finite number.
    pub fn certified_norm(&self) -> Result<f64> {
        let [outputs, inputs, _, _] = self.weight.val().dims();
        let numbers = |t: Tensor<B, 1>| t.to_data().iter::<f64>().next().unwrap_or(f64::NAN);
        let norm = numbers(self.norm());
        let factor = 1.0 / (norm / self.bound).max(1.0);
        let values: Vec<f64> = self
            .weight
            .val()
            .to_data()
            .iter::<f64>()
            .map(|v| v * factor)
            .collect();
        // The convolution is a correlation, with the kernel turned round: the norm is the same.
        let kernels = Kernels::new(outputs, inputs, self.kernel(), values)?;
        let torus = (self.size() + self.kernel() - 1).next_multiple_of(self.stride);
        let coarse = torus / self.stride;
        let mut largest = 0.0f64;
        // Conjugate frequencies have the same norm.
        for i in 0..=coarse / 2 {
            for j in 0..coarse {
                let parts: Vec<Mat<f64>> = (0..self.stride * self.stride)
                    .map(|k| {
                        let (a, b) = (k / self.stride, k % self.stride);
                        kernels.embedded_at((i + a * coarse, j + b * coarse), torus)
                    })
                    .collect();
                let width = 2 * inputs;
                let share = 1.0 / self.stride as f64;
                let joined = Mat::from_fn(2 * outputs, width * parts.len(), |r, c| {
                    share * parts[c / width][(r, c % width)]
                });
                largest = largest.max(spectral_norm_bound(joined.as_ref()));
            }
        }
        // Entries of the transform are off by a few units in the last place.
        Ok(largest * (1.0 + 1e-9))
    }
}

/// Images with zeros around them, in their own precision.
fn framed<B: Backend>(x: Tensor<B, 4>, pad: usize) -> Tensor<B, 4> {
    let [batch, channels, height, width] = x.dims();
    let zeros = |shape: [usize; 4]| Tensor::<B, 4>::zeros(shape, (&x.device(), x.dtype()));
    let (above, beside) = (
        zeros([batch, channels, pad, width]),
        zeros([batch, channels, height + 2 * pad, pad]),
    );
    let tall = Tensor::cat(vec![above.clone(), x, above], 2);
    Tensor::cat(vec![beside.clone(), tall, beside], 3)
}

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
    /// The published skip connection, which moves the bounds.
    pub published: bool,
    /// Weight of the squares of plain convolutions and batch normalisation in the loss.
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
            published: false,
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
                published: self.published,
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

/// The feature map of the paper's image network: convolutions of bounded norm, each before a bi-Lipschitz block; then batch normalisation, ReLU, the mean over the
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
        let mut x = self.convolutions[0].forward(x);
        for block in 0..=k {
            x = self.convolutions[block + 1].forward(x);
            if block < k {
                x = self.blocks[block].forward(x);
            }
        }
        x
    }

    /// The features.
    ///
    /// # Shapes
    /// `[batch, 3, size, size] → [batch, outputs]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let last = self.blocks.len() - 1;
        let x = self.blocks[last].forward(self.before_block(x, last));
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
    /// The bound on the norm of every convolution.
    pub bound: f64,
    /// Whether there is batch normalisation before every activation: better, and without any guarantee.
    pub batch_norm: bool,
    /// Numbers that the head sees.
    pub outputs: usize,
    /// Weight of the squares of convolutions and batch normalisation in the loss.
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
        let mut convolution = |channels, size, kernel, stride| {
            part += 1;
            NormalizedConvConfig {
                channels,
                size,
                kernel,
                stride,
                bound: self.bound,
                seed: self.seed ^ (part << 40),
                dtype: DType::F32,
            }
            .init::<B>(device)
        };
        let norm = |channels: usize| {
            self.batch_norm
                .then(|| BatchNormConfig::new(channels).init(device))
        };
        let first = convolution([3, 16], self.size, 3, 1)?;
        let (mut channels, mut size) = (16, self.size);
        let mut blocks = Vec::new();
        for stage in 0..3 {
            let next = (16 * self.width) << stage;
            for block in 0..self.blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(ResidualBlock {
                    first_norm: norm(channels),
                    first: convolution([channels, next], size, 3, stride)?,
                    second_norm: norm(next),
                    second: convolution([next, next], size / stride, 3, 1)?,
                    shortcut: match channels == next && stride == 1 {
                        true => None,
                        false => Some(convolution([channels, next], size, 1, stride)?),
                    },
                });
                (channels, size) = (next, size / stride);
            }
        }
        Ok(WideResNet {
            first,
            blocks,
            norm: norm(channels),
            projection: projection(channels, self.outputs, self.seed ^ (1 << 60), device),
            config: Arc::new(self.clone()),
        })
    }
}

/// `shortcut(x) + W₂∗relu(W₁∗relu(x))`, with batch normalisation before the activations or without.
#[derive(Module, Debug)]
struct ResidualBlock<B: Backend> {
    first_norm: Option<BatchNorm<B>>,
    first: NormalizedConv<B>,
    second_norm: Option<BatchNorm<B>>,
    second: NormalizedConv<B>,
    /// Where the shape changes.
    shortcut: Option<NormalizedConv<B>>,
}

fn normalized<B: Backend>(norm: &Option<BatchNorm<B>>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

impl<B: Backend> ResidualBlock<B> {
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let h = self.first.forward(relu(normalized(&self.first_norm, x.clone())));
        let h = self.second.forward(relu(normalized(&self.second_norm, h)));
        match &self.shortcut {
            Some(shortcut) => shortcut.forward(x) + h,
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

/// The feature map of SNGP on images: a wide residual network whose convolutions have bounded norm.
#[derive(Module, Debug)]
pub struct WideResNet<B: Backend> {
    first: NormalizedConv<B>,
    blocks: Vec<ResidualBlock<B>>,
    norm: Option<BatchNorm<B>>,
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
        let mut x = self.first.forward(x);
        for block in &self.blocks {
            x = block.forward(x);
        }
        pooled(normalized(&self.norm, x), &self.projection)
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
        let mut sum = self.first.square();
        for block in &self.blocks {
            sum = sum + block.square();
        }
        if let Some(norm) = &self.norm {
            sum = sum + square_of_norm(norm);
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
fn pooled<B: Backend>(x: Tensor<B, 4>, projection: &Param<Tensor<B, 2>>) -> Tensor<B, 2> {
    let [batch, channels, size, _] = x.dims();
    let mean = relu(x)
        .reshape([batch, channels, size * size])
        .mean_dim(2)
        .reshape([batch, channels]);
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
        framed(x.reshape([batch, channels, size, size]), pad)
            .reshape([batch, channels, wide * wide])
            .gather(2, places)
            .reshape([batch, numbers])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    fn images(shape: [usize; 4], seed: u64) -> Tensor<Flex, 4> {
        let values = Rng::new(seed).normals(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), (&Default::default(), DType::F64))
    }

    fn numbers<const D: usize>(t: Tensor<Flex, D>) -> Vec<f64> {
        t.to_data().iter::<f64>().collect()
    }

    #[test]
    fn convolutions_are_those_of_burn_and_keep_their_bound() -> Result<()> {
        for (kernel, stride, bound) in [(3, 1, 0.7), (3, 2, 1.0), (3, 1, 100.0), (1, 2, 0.5), (5, 1, 1.0)] {
            let device = Default::default();
            let mut layer = NormalizedConvConfig {
                channels: [3, 4],
                size: 6,
                kernel,
                stride,
                bound,
                seed: 3,
                dtype: DType::F64,
            }
            .init::<Flex>(&device)?;
            for _ in 0..300 {
                layer = layer.settle();
            }
            let x = images([2, 3, 6, 6], 1);
            let norm = numbers(layer.norm())[0];
            let factor = (bound / norm).min(1.0);
            let expected = layer.convolved(x.clone(), layer.weight.val()).mul_scalar(factor);
            let found = layer.forward(x.clone());
            assert_eq!(found.dims(), [2, 4, 6 / stride, 6 / stride]);
            for (a, b) in numbers(found.clone()).iter().zip(numbers(expected)) {
                assert!((a - b).abs() < 1e-12);
            }
            let certified = layer.certified_norm()?;
            // The torus knows nothing of the border, which takes a little off.
            assert!(
                certified >= norm * factor - 1e-9 && certified < 1.5 * norm * factor,
                "{certified} {norm}"
            );
            let size = |t: Tensor<Flex, 4>| numbers(t).iter().map(|v| v * v).sum::<f64>().sqrt();
            for seed in 0..20 {
                let x = images([1, 3, 6, 6], 10 + seed);
                assert!(size(layer.forward(x.clone())) <= certified * size(x));
            }
        }
        Ok(())
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        let good = NormalizedConvConfig {
            channels: [1, 1],
            size: 4,
            kernel: 3,
            stride: 1,
            bound: 1.0,
            seed: 0,
            dtype: DType::F32,
        };
        assert!(good.init::<Flex>(&device).is_ok());
        for bad in [
            NormalizedConvConfig {
                channels: [0, 1],
                ..good
            },
            NormalizedConvConfig {
                size: 5,
                stride: 2,
                ..good
            },
            NormalizedConvConfig { stride: 3, ..good },
            NormalizedConvConfig { kernel: 2, ..good },
            NormalizedConvConfig { bound: 0.0, ..good },
        ] {
            assert!(bad.init::<Flex>(&device).is_err(), "{bad:?}");
        }
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
                size: 8,
                blocks: 1,
                batch_norm,
                outputs: 7,
                ..WideResNetConfig::new(0.65, 1)
            };
            let net = config.init::<Flex>(&device)?;
            let x = Tensor::<Flex, 2>::ones([2, 3 * 64], (&device, DType::F32));
            assert_eq!(net.predict(x, None).dims(), [2, 7]);
            assert!(net.penalty().is_some());
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
            .map(|c| c.weight.val().dims().iter().product::<usize>())
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
