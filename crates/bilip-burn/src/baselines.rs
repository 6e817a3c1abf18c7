//! The networks that the paper compares with, under the same interface: i-ResNet, i-DenseNet and the input-convex
//! network. (The perceptron is [`crate::Mlp`].)
//!
//! A residual layer is `αx + βg(x)` with `Lip(g) ≤ 1`, `α = (ν + μ)/2` and `β = (ν − μ)/2`: bi-Lipschitz with (μ, ν). What it
//! lacks is tightness, since `Lip(g)` is bounded by a product of norms.

use bilip::{Activation, Bounds};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::{BoundsMode, LayerBounds, vector};
use crate::error::{Error, Result};
use crate::ops;
use crate::portable::activate;
use crate::predict::Predict;
use crate::spectral::{Normalization, NormalizedLinear};

/// The shape of the nonlinear branch g of a residual layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// Layer after layer (i-ResNet, Behrmann et al. 2019).
    Chain,
    /// Every layer sees all before it, concatenated with learned weights `η₁² + η₂² = 1` (i-DenseNet, Perugachi-Diaz et
    /// al. 2021).
    Dense,
}

/// Settings of a [`ResidualNet`].
#[derive(Clone, Debug)]
pub struct ResidualConfig {
    /// Number of inputs and outputs.
    pub n: usize,
    /// Hidden widths of every branch.
    pub hidden: Vec<usize>,
    /// Number of residual layers.
    pub depth: usize,
    /// The bounds of the whole network.
    pub bounds: BoundsMode,
    /// The activation, of slope at most 1.
    pub activation: Activation,
    /// The shape of the branches.
    pub branch: Branch,
    /// How their weights are kept within norm one.
    pub normalization: Normalization,
    /// Seed of the initial parameters.
    pub seed: u64,
    /// Precision of the parameters.
    pub dtype: DType,
}

impl ResidualConfig {
    /// An i-ResNet with ReLU and spectral normalization by power iteration.
    pub fn i_resnet(n: usize, hidden: &[usize], depth: usize, bounds: BoundsMode) -> Self {
        ResidualConfig {
            n,
            hidden: hidden.to_vec(),
            depth,
            bounds,
            activation: Activation::Relu,
            branch: Branch::Chain,
            normalization: Normalization::Spectral,
            seed: 0,
            dtype: DType::F32,
        }
    }

    /// An i-DenseNet with ReLU, spectral normalization by power iteration and real concatenation.
    pub fn i_densenet(n: usize, hidden: &[usize], depth: usize, bounds: BoundsMode) -> Self {
        ResidualConfig {
            branch: Branch::Dense,
            ..Self::i_resnet(n, hidden, depth, bounds)
        }
    }

    /// The same as the published code of the paper has it: Frobenius norms, and no concatenation.
    pub fn published(self) -> Self {
        ResidualConfig {
            branch: Branch::Chain,
            normalization: Normalization::Frobenius,
            ..self
        }
    }

    /// The network.
    ///
    /// # Errors
    /// On sizes of zero and bounds out of range.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<ResidualNet<B>> {
        if self.n == 0 || self.depth == 0 || self.hidden.is_empty() {
            return Err(Error::setting(
                "residual network",
                (self.n, self.depth, &self.hidden),
                "needs inputs, layers and hidden widths",
            ));
        }
        self.bounds.check()?;
        let share = self.bounds.share(self.depth)?;
        let layers = (0..self.depth)
            .map(|k| {
                let mut before = self.n;
                let mut linear = Vec::with_capacity(self.hidden.len() + 1);
                for (i, &width) in self.hidden.iter().chain([&self.n]).enumerate() {
                    let seed = self.seed ^ ((k as u64 + 1) << 48) ^ ((i as u64 + 1) << 32);
                    let shape = [before, width];
                    linear.push(NormalizedLinear::new(
                        shape,
                        self.normalization,
                        seed,
                        device,
                        self.dtype,
                    )?);
                    before = match self.branch {
                        Branch::Chain => width,
                        Branch::Dense => before + width,
                    };
                }
                let mixing = match self.branch {
                    Branch::Chain => None,
                    Branch::Dense => Some(Param::from_tensor(vector(
                        vec![std::f64::consts::FRAC_PI_4; self.hidden.len()],
                        device,
                        self.dtype,
                    ))),
                };
                Ok(ResidualLayer {
                    linear,
                    mixing,
                    bounds: LayerBounds::new(share, device, self.dtype),
                    activation: self.activation,
                })
            })
            .collect::<Result<_>>()?;
        Ok(ResidualNet { layers })
    }
}

/// One residual layer `αx + βg(x)`.
#[derive(Module, Debug)]
pub struct ResidualLayer<B: Backend> {
    linear: Vec<NormalizedLinear<B>>,
    /// An angle for every concatenation: η = (cos, sin).
    mixing: Option<Param<Tensor<B, 1>>>,
    bounds: LayerBounds<B>,
    #[module(skip)]
    activation: Activation,
}

impl<B: Backend> ResidualLayer<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let last = self.linear.len() - 1;
        let mut h = x.clone();
        for (k, linear) in self.linear.iter().enumerate() {
            let out = linear.forward(h.clone());
            if k == last {
                h = out;
                break;
            }
            let z = activate(self.activation, out);
            h = match &self.mixing {
                None => z,
                Some(angles) => {
                    let angle = angles.val().slice(k..k + 1).unsqueeze::<2>();
                    Tensor::cat(vec![h * angle.clone().cos(), z * angle.sin()], 1)
                }
            };
        }
        let bounds = self.bounds.tensor(&x.device(), x.dtype());
        let (mu, gamma) = (bounds.clone().slice(0..1), bounds.slice(1..2));
        let half = gamma.div_scalar(2.0);
        x * (mu + half.clone()).unsqueeze() + h * half.unsqueeze()
    }

    /// Proved bounds, of norms proved.
    fn certified_bounds(&self) -> Result<Bounds> {
        let claimed = self.bounds.value()?;
        let angles: Option<Vec<f64>> = self
            .mixing
            .as_ref()
            .map(|a| a.val().to_data().iter::<f64>().collect());
        let last = self.linear.len() - 1;
        let mut lipschitz: f64 = 1.0;
        for (k, linear) in self.linear.iter().enumerate() {
            let out = linear.certified_norm() * lipschitz;
            lipschitz = match &angles {
                Some(angles) if k < last => {
                    let (sin, cos) = angles[k].sin_cos();
                    (cos * lipschitz).hypot(sin * out)
                }
                _ => out,
            };
        }
        let half = claimed.gap() / 2.0;
        let slack = half * lipschitz * (1.0 + 1e-12);
        let center = claimed.mu() + half;
        Ok(Bounds::new(center - slack, center + slack)?)
    }
}

/// An i-ResNet or i-DenseNet to be trained: the composition of residual layers.
#[derive(Module, Debug)]
pub struct ResidualNet<B: Backend> {
    layers: Vec<ResidualLayer<B>>,
}

impl<B: Backend> ResidualNet<B> {
    /// `G(x)`.
    ///
    /// # Shapes
    /// `[batch, n] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }

    /// The bounds claimed: what the parameterization is meant to keep. The power iteration sees a norm from below, so
    /// that only [`certified_bounds`](Self::certified_bounds) is a proof.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        Ok(Bounds::product(
            self.layers
                .iter()
                .map(|l| l.bounds.value())
                .collect::<Result<Vec<_>>>()?,
        )?)
    }

    /// Bounds proved for the parameters as they are, with every norm bounded in f64.
    ///
    /// # Errors
    /// When no positive lower bound can be proved.
    pub fn certified_bounds(&self) -> Result<Bounds> {
        Ok(Bounds::product(
            self.layers
                .iter()
                .map(|l| l.certified_bounds())
                .collect::<Result<Vec<_>>>()?,
        )?)
    }
}

impl<B: Backend> Predict<B> for ResidualNet<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        let n = self.layers[0].linear.last().map(|l| l.outputs());
        (n, 0, n)
    }

    fn settle(self) -> Self {
        let settle = |layer: ResidualLayer<B>| ResidualLayer {
            linear: layer.linear.into_iter().map(|l| l.settle()).collect(),
            ..layer
        };
        ResidualNet {
            layers: self.layers.into_iter().map(settle).collect(),
        }
    }
}

/// An input-convex network (Amos et al. 2017): `z ← elu(z softplus(W) + x U + b)`, a scalar that is convex in x because
/// every weight on z is positive and ELU is convex and nondecreasing.
#[derive(Module, Debug)]
pub struct Icnn<B: Backend> {
    /// `ln(eʷ − 1)` of the positive weights w, `[before, width]`, of all layers but the first.
    positive: Vec<Param<Tensor<B, 2>>>,
    /// U, `[n, width]`.
    skip: Vec<Param<Tensor<B, 2>>>,
    bias: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Icnn<B> {
    /// A network of the given hidden widths. The positive weights start around `1/width`, so that the signal keeps its
    /// size through the layers.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn new(n: usize, hidden: &[usize], seed: u64, device: &B::Device, dtype: DType) -> Result<Self> {
        if n == 0 || hidden.is_empty() || hidden.contains(&0) {
            return Err(Error::setting(
                "convex network",
                (n, hidden),
                "needs inputs and hidden layers, all of width at least 1",
            ));
        }
        let mut rng = bilip::Rng::new(seed);
        let matrix = |values: Vec<f64>, shape: [usize; 2]| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Param::from_tensor(Tensor::<B, 2>::from_data(data, (device, dtype)))
        };
        let (mut positive, mut skip, mut bias) = (Vec::new(), Vec::new(), Vec::new());
        let mut before = None;
        for &width in hidden.iter().chain([&1]) {
            let u = rng.glorot(n, width);
            let values = (0..n * width).map(|k| u[(k / width, k % width)]).collect();
            skip.push(matrix(values, [n, width]));
            bias.push(Param::from_tensor(vector(vec![0.0; width], device, dtype)));
            if let Some(before) = before {
                let values = rng
                    .normals(before * width)
                    .into_iter()
                    .map(|r| ((0.5 * r).exp() / before as f64).exp_m1().ln())
                    .collect();
                positive.push(matrix(values, [before, width]));
            }
            before = Some(width);
        }
        Ok(Icnn { positive, skip, bias })
    }

    /// The convex function.
    ///
    /// # Shapes
    /// `[batch, n] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let mut z: Option<Tensor<B, 2>> = None;
        for (k, (skip, bias)) in self.skip.iter().zip(&self.bias).enumerate() {
            let mut v = ops::matmul(x.clone(), skip.val()) + bias.val().unsqueeze();
            if let Some(z) = z {
                // ELU before each use, so that the output itself is linear in the last layer.
                let weight = activate(Activation::Softplus, self.positive[k - 1].val());
                v = v + ops::matmul(activate(Activation::Elu, z), weight);
            }
            z = Some(v);
        }
        // There is always a last layer.
        z.unwrap_or(x).squeeze_dim::<1>(1)
    }
}

impl<B: Backend> Predict<B> for Icnn<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x).unsqueeze_dim(1)
    }

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        (Some(self.skip[0].val().dims()[0]), 0, Some(1))
    }
}
