//! A Gaussian process at the end of a feature map, and SNGP, the residual network that it is compared with.
//!
//! The weights on the random features are trained like those of any last layer; the posterior is computed afterwards, in f64, from one more pass
//! through the data ([`GpNet::posterior`]). The mathematics is in [`bilip::GpHead`].

use bilip::faer::Mat;
use bilip::{GpHead, PosteriorPrecision, RandomFeatures, Rng};
use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::vector;
use crate::data::Table;
use crate::error::{Error, Result};
use crate::ops;
use crate::predict::Predict;
use crate::spectral::{Normalization, NormalizedLinear};
use crate::train::Loss;

/// Settings of a [`RandomFeatureGp`].
///
/// | setting | default | effect |
/// |---|---|---|
/// | `features` | 1024 | number of random features |
/// | `length_scale` | 1 | of the kernel `exp(−‖h − h'‖²/2ℓ²)` |
/// | `orthogonal` | false | frequencies in perpendicular blocks |
/// | `normalize` | false | rows to mean 0 and variance 1 first |
/// | `seed` | 0 | of frequencies, phases and first weights |
#[derive(Clone, Debug)]
pub struct GpConfig {
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs: classes, or targets.
    pub outputs: usize,
    /// Number of random features.
    pub features: usize,
    /// The kernel's length scale.
    pub length_scale: f64,
    /// Whether frequencies come in perpendicular blocks.
    pub orthogonal: bool,
    /// Whether rows are normalized first.
    pub normalize: bool,
    /// The seed.
    pub seed: u64,
}

impl GpConfig {
    /// The defaults.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        GpConfig {
            inputs,
            outputs,
            features: 1024,
            length_scale: 1.0,
            orthogonal: false,
            normalize: false,
            seed: 0,
        }
    }

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

fn matrix<B: Backend>(values: &[f64], shape: [usize; 2], device: &B::Device) -> Tensor<B, 2> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

fn in_blocks<B: Backend>(
    x: &[f64],
    columns: usize,
    device: &B::Device,
    f: impl Fn(Tensor<B, 2>) -> Tensor<B, 2>,
) -> Vec<f64> {
    // Images are large rows, and grow on their way. Even numbers of rows suit GPUs.
    let most = ((1 << 22) / columns.max(1)).clamp(1, 2_048);
    let rows = if most > 64 { most / 64 * 64 } else { most };
    let mut found = Vec::new();
    // A device works on one block while the next one is made ready.
    let mut before = None;
    for block in x.chunks(rows * columns) {
        let this = f(matrix::<B>(block, [block.len() / columns, columns], device));
        if let Some(done) = before.replace(this) {
            found.extend(numbers(done));
        }
    }
    found.extend(before.map(numbers).unwrap_or_default());
    found
}

/// A parameter that is stored but not trained.
fn fixed<B: Backend>(tensor: Tensor<B, 2>) -> Param<Tensor<B, 2>> {
    Param::from_tensor(tensor).set_require_grad(false)
}

fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
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
}

impl<B: Backend> RandomFeatureGp<B> {
    /// The head with its posterior given rows of its inputs: for classes, Laplace's approximation with weights p(1 − p) of the most probable class; for numbers, that
    /// of Gaussian noise of variance `ridge`.
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
pub enum Accumulation {
    /// Every row once: exact.
    Exact,
    /// A moving average over batches, `Λ ← mΛ + (1 − m)Σ` with `Σ` the batch's part scaled up to the whole table, as for data too many to sum up.
    Momentum {
        /// The momentum m, between 0 and 1.
        momentum: f64,
        /// Rows of a batch.
        batch: usize,
    },
}

/// A feature map with a Gaussian process at its end: `GP(G(Ax))` with a fixed matrix A, or without.
#[derive(Module, Debug)]
pub struct GpNet<B: Backend, M: Module<B>> {
    /// `[inputs, width]`, not trained.
    lift: Option<Param<Tensor<B, 2>>>,
    net: M,
    head: RandomFeatureGp<B>,
}

impl<B: Backend, M: Module<B> + Predict<B>> GpNet<B, M> {
    /// A head on a network.
    pub fn new(net: M, head: RandomFeatureGp<B>) -> Self {
        GpNet {
            lift: None,
            net,
            head,
        }
    }

    /// The same, inputs first multiplied by a fixed matrix of independent normal numbers of variance `2/(inputs + width)`: `[inputs, width]`,
    /// close to a multiple of an isometry when it is wide.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn with_random_lift(
        self,
        inputs: usize,
        width: usize,
        seed: u64,
        device: &B::Device,
    ) -> Result<Self> {
        for (name, value) in [("inputs", inputs), ("width", width)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        let deviation = (2.0 / (inputs + width) as f64).sqrt();
        let values: Vec<f64> = Rng::new(seed)
            .normals(inputs * width)
            .iter()
            .map(|v| deviation * v)
            .collect();
        Ok(GpNet {
            lift: Some(fixed(matrix(&values, [inputs, width], device))),
            ..self
        })
    }

    /// The fixed matrix in f64, `inputs × width`, where there is one.
    pub fn lift(&self) -> Option<Mat<f64>> {
        let lift = self.lift.as_ref()?.val();
        let [inputs, width] = lift.dims();
        let values = numbers(lift);
        Some(Mat::from_fn(inputs, width, |i, j| values[i * width + j]))
    }

    /// The feature map without lift and head.
    pub fn net(&self) -> &M {
        &self.net
    }

    /// What the head sees.
    ///
    /// # Shapes
    /// `[batch, inputs] → [batch, width]`
    pub fn hidden(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = match &self.lift {
            Some(lift) => ops::matmul(x, lift.val()),
            None => x,
        };
        self.net.predict(x, None)
    }

    /// What the head sees of rows, in blocks, as numbers.
    pub fn hidden_rows(&self, x: &[f64], columns: usize, device: &B::Device) -> Vec<f64> {
        in_blocks(x, columns, device, |x| self.hidden(x))
    }

    /// The feature map alone, of rows of its own inputs, in blocks, as numbers.
    pub fn mapped_rows(&self, h: &[f64], columns: usize, device: &B::Device) -> Vec<f64> {
        in_blocks(h, columns, device, |h| self.net.predict(h, None))
    }

    /// The head with its posterior given a table, as [`RandomFeatureGp::posterior`].
    ///
    /// # Errors
    /// On a ridge or momentum out of range, and when a number is not finite.
    pub fn posterior(
        &self,
        table: &Table,
        loss: Loss,
        ridge: f64,
        accumulation: Accumulation,
        device: &B::Device,
    ) -> Result<GpHead> {
        let h = self.hidden_rows(table.inputs(), table.columns().0, device);
        self.head.posterior(&h, loss, ridge, accumulation)
    }

    /// The head.
    pub fn head(&self) -> &RandomFeatureGp<B> {
        &self.head
    }
}

impl<B: Backend, M: Module<B> + Predict<B>> Predict<B> for GpNet<B, M> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.head.forward(self.hidden(x))
    }

    fn current_bounds(&self) -> Option<bilip::Bounds> {
        self.net.current_bounds()
    }

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        let inputs = match &self.lift {
            Some(lift) => Some(lift.val().dims()[0]),
            None => self.net.columns().0,
        };
        (inputs, 0, Some(self.head.bias.val().dims()[0]))
    }

    fn settle(self) -> Self {
        GpNet {
            net: self.net.settle(),
            ..self
        }
    }

    fn penalty(&self) -> Option<Tensor<B, 1>> {
        self.net.penalty()
    }
}

/// The feature map of SNGP (Liu et al. 2020): residual layers `x + c·relu(Wx + b)` with `‖W‖ ≤ 1`, dropout on the branch while training.
#[derive(Module, Debug)]
pub struct Sngp<B: Backend> {
    layers: Vec<NormalizedLinear<B>>,
    dropout: Dropout,
    #[module(skip)]
    bound: f64,
}

impl<B: Backend> Sngp<B> {
    /// `depth` layers of `n` numbers, branches with Lipschitz bound `0 < c < 1`.
    ///
    /// # Errors
    /// On sizes of zero, a bound outside (0, 1) and a share of dropout outside [0, 1).
    pub fn new(n: usize, depth: usize, c: f64, dropout: f64, seed: u64, device: &B::Device) -> Result<Self> {
        if depth == 0 {
            return Err(Error::setting("depth", depth, "must be at least 1"));
        }
        if !(c > 0.0 && c < 1.0) {
            return Err(Error::setting("c", c, "must lie between 0 and 1"));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Err(Error::setting(
                "dropout",
                dropout,
                "must be at least 0 and below 1",
            ));
        }
        let layers = (0..depth)
            .map(|k| {
                NormalizedLinear::new(
                    [n, n],
                    Normalization::Spectral,
                    seed.wrapping_mul(1_000).wrapping_add(k as u64),
                    device,
                    DType::F32,
                )
            })
            .collect::<Result<_>>()?;
        Ok(Sngp {
            layers,
            dropout: DropoutConfig::new(dropout).init(),
            bound: c,
        })
    }

    /// The bounds that it claims, `((1 − c)^L, (1 + c)^L)`.
    ///
    /// # Errors
    /// Never for a network that could be built.
    pub fn bounds(&self) -> Result<bilip::Bounds> {
        let depth = self.layers.len() as i32;
        Ok(bilip::Bounds::new(
            (1.0 - self.bound).powi(depth),
            (1.0 + self.bound).powi(depth),
        )?)
    }

    /// Bounds proved for the weights as they are: the power iteration may not have caught up with them.
    ///
    /// # Errors
    /// When a layer's branch is proved no better than 1-Lipschitz, so that nothing is left of the lower bound.
    pub fn certified_bounds(&self) -> Result<bilip::Bounds> {
        let (mut mu, mut nu) = (1.0, 1.0);
        for layer in &self.layers {
            let c = self.bound * layer.certified_norm() * (1.0 + 1e-12);
            mu *= (1.0 - c) * (1.0 - 1e-12);
            nu *= (1.0 + c) * (1.0 + 1e-12);
        }
        Ok(bilip::Bounds::new(mu, nu)?)
    }
}

impl<B: Backend> Predict<B> for Sngp<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.layers.iter().fold(x, |x, layer| {
            let branch = relu(layer.forward(x.clone())).mul_scalar(self.bound);
            x + self.dropout.forward(branch)
        })
    }

    fn current_bounds(&self) -> Option<bilip::Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        (None, 0, None)
    }

    fn settle(self) -> Self {
        Sngp {
            layers: self.layers.into_iter().map(NormalizedLinear::settle).collect(),
            ..self
        }
    }
}
