//! A Gaussian process on random features.
//!
//! The weights on the random features are trained like those of any last layer; the posterior is
//! computed afterwards, in f64, from one more pass through the data
//! ([`RandomFeatureGp::posterior`]). The mathematics is in [`bilip::GpHead`].

use bilip::faer::Mat;
use bilip::{GpHead, PosteriorPrecision, RandomFeatures, Rng};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::base::{Error, Loss, Result, numbers, vector};
use crate::ops;

/// Settings of a [`RandomFeatureGp`].
///
/// | setting | default | effect |
/// |---|---|---|
/// | `features` | 1024 | number of random features |
/// | `length_scale` | 1 | of the kernel `exp(−‖h − h'‖²/2ℓ²)` |
/// | `orthogonal` | false | frequencies in perpendicular blocks |
/// | `normalize` | false | rows to mean 0 and variance 1 first |
/// | `seed` | 0 | of frequencies, phases and first weights |
#[derive(Config, Debug, PartialEq)]
pub struct GpConfig {
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs: classes, or targets.
    pub outputs: usize,
    /// Number of random features.
    #[config(default = 1024)]
    pub features: usize,
    /// The kernel's length scale.
    #[config(default = 1.0)]
    pub length_scale: f64,
    /// Whether frequencies come in perpendicular blocks.
    #[config(default = false)]
    pub orthogonal: bool,
    /// Whether rows are normalized first.
    #[config(default = false)]
    pub normalize: bool,
    /// The seed.
    #[config(default = 0)]
    pub seed: u64,
}

impl GpConfig {
    /// The head, in single precision, with normal weights of variance `1/features` and zero bias.
    ///
    /// # Errors
    /// On sizes of zero and a length scale that is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<RandomFeatureGp<B>> {
        if self.outputs == 0 {
            return Err(Error::setting("outputs", self.outputs, "must be at least 1"));
        }
        let mut rng = Rng::new(self.seed);
        let drawn = RandomFeatures::draw(
            self.inputs,
            self.features,
            self.length_scale,
            self.orthogonal,
            &mut rng,
        )?;
        let frequencies = drawn.frequencies();
        let values: Vec<f64> = (0..self.inputs * self.features)
            .map(|k| frequencies[(k % self.features, k / self.features)])
            .collect();
        let deviation = (1.0 / self.features as f64).sqrt();
        let weights: Vec<f64> = rng
            .normals(self.features * self.outputs)
            .iter()
            .map(|v| deviation * v)
            .collect();
        Ok(RandomFeatureGp {
            frequencies: fixed(matrix(&values, [self.inputs, self.features], device)),
            phases: Param::from_tensor(vector(drawn.phases().to_vec(), device, DType::F32))
                .set_require_grad(false),
            weights: Param::from_tensor(matrix(&weights, [self.features, self.outputs], device)),
            bias: Param::from_tensor(vector(vec![0.0; self.outputs], device, DType::F32)),
            normalize: self.normalize,
        })
    }
}

pub(crate) fn matrix<B: Backend>(values: &[f64], shape: [usize; 2], device: &B::Device) -> Tensor<B, 2> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// A parameter that is stored but not trained.
pub(crate) fn fixed<B: Backend>(tensor: Tensor<B, 2>) -> Param<Tensor<B, 2>> {
    Param::from_tensor(tensor).set_require_grad(false)
}

/// Random features with weights to be trained.
#[derive(Module, Debug)]
pub struct RandomFeatureGp<B: Backend> {
    /// `[inputs, features]`, not trained.
    frequencies: Param<Tensor<B, 2>>,
    /// `[features]`, not trained.
    phases: Param<Tensor<B, 1>>,
    /// `[features, outputs]`.
    weights: Param<Tensor<B, 2>>,
    /// `[outputs]`.
    bias: Param<Tensor<B, 1>>,
    #[module(skip)]
    normalize: bool,
}

impl<B: Backend> RandomFeatureGp<B> {
    /// The means of the outputs.
    ///
    /// # Shapes
    /// `[batch, inputs] → [batch, outputs]`
    pub fn forward(&self, h: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut h = h;
        if self.normalize {
            let centered = h.clone() - h.mean_dim(1);
            let variance = (centered.clone() * centered.clone()).mean_dim(1);
            h = centered / variance.add_scalar(RandomFeatures::TINY).sqrt();
        }
        let [_, count] = self.frequencies.val().dims();
        let angle = ops::matmul(h, self.frequencies.val()) + self.phases.val().unsqueeze();
        let features = angle.cos().mul_scalar((2.0 / count as f64).sqrt());
        ops::matmul(features, self.weights.val()) + self.bias.val().unsqueeze()
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.bias.val().dims()[0]
    }

    /// The features of the stored numbers, in f64.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn features(&self) -> Result<RandomFeatures> {
        let [inputs, count] = self.frequencies.val().dims();
        let values = numbers(self.frequencies.val());
        let frequencies = Mat::from_fn(count, inputs, |i, j| values[j * count + i]);
        let features = RandomFeatures::new(frequencies, numbers(self.phases.val()))?;
        Ok(if self.normalize {
            features.with_normalized_inputs()
        } else {
            features
        })
    }

    /// The head with a posterior, in f64.
    ///
    /// # Errors
    /// When sizes do not fit, a number is not finite, or the precision is not positive definite.
    pub fn freeze(&self, precision: &PosteriorPrecision) -> Result<GpHead> {
        let [count, outputs] = self.weights.val().dims();
        let values = numbers(self.weights.val());
        let weights = Mat::from_fn(count, outputs, |i, j| values[i * outputs + j]);
        Ok(GpHead::new(
            self.features()?,
            weights,
            numbers(self.bias.val()),
            precision,
        )?)
    }

    /// The head with its posterior given rows of its inputs: for classes, Laplace's approximation
    /// with weights p(1 − p) of the most probable class; for numbers, that of Gaussian noise of
    /// variance `ridge`.
    ///
    /// # Errors
    /// On a ridge or momentum out of range, and when a number is not finite.
    pub fn posterior(&self, h: &[f64], loss: Loss, ridge: f64, accumulation: Accumulation) -> Result<GpHead> {
        let features = self.features()?;
        let prior = PosteriorPrecision::new(features.count(), ridge)?;
        // Before any data the head is good for its means alone.
        let head = self.freeze(&prior)?;
        let width = features.inputs();
        let all = h.len() as f64 / width as f64;
        let (batch, momentum) = match accumulation {
            Accumulation::Exact => (2_048, None),
            Accumulation::Momentum { momentum, batch } => {
                if !(0.0..1.0).contains(&momentum) {
                    return Err(Error::setting(
                        "momentum",
                        momentum,
                        "must be at least 0 and below 1",
                    ));
                }
                if batch == 0 {
                    return Err(Error::setting("batch", batch, "must be at least 1"));
                }
                (batch, Some(momentum))
            }
        };
        let mut precision = prior;
        for block in h.chunks(batch * width) {
            let rows = block.len() / width;
            let mut weights = match loss {
                Loss::HalfMse => vec![1.0; rows],
                Loss::CrossEntropy => head
                    .probabilities(block, 0.0)?
                    .chunks_exact(head.outputs())
                    .map(|row| row.iter().copied().fold(0.0, f64::max))
                    .map(|p| p * (1.0 - p))
                    .collect(),
            };
            if let Some(momentum) = momentum {
                precision.fade(momentum)?;
                let share = (1.0 - momentum) * all / rows as f64;
                weights.iter_mut().for_each(|w| *w *= share);
            }
            precision.add(&features.features(block)?, &weights)?;
        }
        self.freeze(&precision)
    }
}

/// How the precision of a posterior is summed up over the batches of a pass through the data.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Accumulation {
    /// Every row once: exact.
    Exact,
    /// A moving average over batches, `Λ ← mΛ + (1 − m)Σ` with `Σ` the batch's part scaled up to
    /// the whole table, as for data too many to sum up.
    Momentum {
        /// The momentum m, between 0 and 1.
        momentum: f64,
        /// Rows of a batch.
        batch: usize,
    },
}
