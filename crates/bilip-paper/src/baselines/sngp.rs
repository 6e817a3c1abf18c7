//! SNGP on vectors: the residual network that the paper compares with.

use bilip::Bounds;
use bilip_burn::{Columns, Predict};
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use super::linear::{Normalization, NormalizedLinear};
use crate::error::{Error, Result};

/// Settings of an [`Sngp`].
#[derive(Config, Debug, PartialEq)]
pub struct SngpConfig {
    /// Number of inputs and outputs.
    pub n: usize,
    /// Number of residual layers.
    pub depth: usize,
    /// The Lipschitz bound of their branches, between 0 and 1.
    pub c: f64,
    /// Share of a branch that is left out at random while training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
}

impl SngpConfig {
    /// The network.
    ///
    /// # Errors
    /// On sizes of zero, a bound outside (0, 1) and a share of dropout outside [0, 1).
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<Sngp<B>> {
        let (c, dropout) = (self.c, self.dropout);
        if self.depth == 0 {
            return Err(Error::config("depth", "must be at least 1"));
        }
        if !(c > 0.0 && c < 1.0) {
            return Err(Error::config("c", "must be between 0 and 1"));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Err(Error::config("dropout", "must be at least 0 and below 1"));
        }
        let layers = (0..self.depth)
            .map(|k| {
                NormalizedLinear::new(
                    [self.n, self.n],
                    Normalization::Spectral,
                    self.seed.wrapping_mul(1_000).wrapping_add(k as u64),
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
}

/// The feature map of SNGP (Liu et al. 2020): residual layers `x + c·relu(Wx + b)` with `‖W‖ ≤ 1`,
/// dropout on the branch while training.
#[derive(Module, Debug)]
pub struct Sngp<B: Backend> {
    layers: Vec<NormalizedLinear<B>>,
    dropout: Dropout,
    #[module(skip)]
    bound: f64,
}

impl<B: Backend> Sngp<B> {
    /// The bounds that it claims, `((1 − c)^L, (1 + c)^L)`.
    ///
    /// # Errors
    /// Never for a network that could be built.
    pub fn bounds(&self) -> Result<Bounds> {
        let depth = self.layers.len() as i32;
        Ok(Bounds::new(
            (1.0 - self.bound).powi(depth),
            (1.0 + self.bound).powi(depth),
        )?)
    }

    /// Bounds proved for the weights as they are: the power iteration may not have caught up with
    /// them.
    ///
    /// # Errors
    /// When a layer's branch is proved no better than 1-Lipschitz, so that nothing is left of the
    /// lower bound.
    pub fn certified_bounds(&self) -> Result<Bounds> {
        let (mut mu, mut nu) = (1.0, 1.0);
        for layer in &self.layers {
            let c = self.bound * layer.certified_norm() * (1.0 + 1e-12);
            mu *= (1.0 - c) * (1.0 - 1e-12);
            nu *= (1.0 + c) * (1.0 + 1e-12);
        }
        Ok(Bounds::new(mu, nu)?)
    }
}

impl<B: Backend> Predict<B> for Sngp<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.layers.iter().fold(x, |x, layer| {
            let branch = relu(layer.forward(x.clone())).mul_scalar(self.bound);
            x + self.dropout.forward(branch)
        })
    }

    fn current_bounds(&self) -> Option<Bounds> {
        self.bounds().ok()
    }

    fn columns(&self) -> Columns {
        let n = self.layers[0].outputs();
        Columns::new(n, n)
    }

    fn settle(self) -> Self {
        Sngp {
            layers: self.layers.into_iter().map(NormalizedLinear::settle).collect(),
            ..self
        }
    }
}
