//! i-ResNet and i-DenseNet.
//!
//! A residual layer is `αx + βg(x)` with `Lip(g) ≤ 1`, `α = (ν + μ)/2` and `β = (ν − μ)/2`:
//! bi-Lipschitz with (μ, ν). What it lacks is tightness, since `Lip(g)` is bounded by a product of
//! norms.

use bilip::{Activation, Bounds};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use bilip_burn::ops::activate;
use bilip_burn::{BoundsMode, Columns, LayerBounds, Predict};
use serde::{Deserialize, Serialize};

use super::linear::{Normalization, NormalizedLinear};
use crate::error::{Error, Result};

/// The shape of the nonlinear branch g of a residual layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Branch {
    /// Layer after layer (i-ResNet, Behrmann et al. 2019).
    Chain,
    /// Every layer sees all before it, concatenated with learned weights `η₁² + η₂² = 1`
    /// (i-DenseNet, Perugachi-Diaz et al. 2021).
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
            return Err(Error::config(
                "residual network",
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
                    Branch::Dense => Some(Param::from_tensor(Tensor::full(
                        [self.hidden.len()],
                        std::f64::consts::FRAC_PI_4,
                        (device, self.dtype),
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

    /// The bounds claimed: what the parameterization is meant to keep. The power iteration sees a
    /// norm from below, so that only [`certified_bounds`](Self::certified_bounds) is a proof.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        Ok(Bounds::product(
            self.layers
                .iter()
                .map(|l| Ok(l.bounds.value()?))
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

    fn columns(&self) -> Columns {
        let n = self.layers[0].linear.last().map_or(0, |l| l.outputs());
        Columns::new(n, n)
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
