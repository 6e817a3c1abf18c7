//! Partial networks: biases that are functions of a parameter p, the weights shared.

use bilip::Real;
use burn::config::Config;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::bilipnet::{BiLipNet, BiLipNetConfig};
use crate::base::{Error, Result};
use crate::layers::{Mlp, MlpConfig};

/// Settings of a [`PartialBiLipNet`] and of the [`PartialPlNet`](crate::PartialPlNet) on top of
/// one.
#[derive(Config, Debug, PartialEq)]
pub struct PartialConfig {
    /// The network whose biases are computed.
    pub net: BiLipNetConfig,
    /// Number of parameters p.
    pub parameters: usize,
    /// Hidden widths of the networks of the orthogonal biases, such as `[64, 128]`.
    pub orthogonal_bias: Vec<usize>,
    /// Hidden widths of the networks of the hidden biases, such as `[64, 128, 256]`.
    pub hidden_bias: Vec<usize>,
}

impl PartialConfig {
    /// The network.
    ///
    /// # Errors
    /// On sizes of zero and bounds out of range.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<PartialBiLipNet<B>> {
        if self.parameters == 0 {
            return Err(Error::setting(
                "parameters",
                self.parameters,
                "must be at least 1",
            ));
        }
        let net = self.net.build(device, false)?;
        let layer = &self.net.layer;
        let hidden: usize = layer.units.iter().sum();
        let build = |widths: &[usize], outputs: usize, part: u64| {
            let mut sizes = widths.to_vec();
            sizes.push(outputs);
            MlpConfig::new(self.parameters, sizes)
                .with_seed(layer.seed ^ (part << 40))
                .with_dtype(layer.dtype)
                .init(device)
        };
        Ok(PartialBiLipNet {
            orthogonal_bias: (0..=self.net.blocks)
                .map(|k| build(&self.orthogonal_bias, layer.n, 2 * k as u64 + 1))
                .collect::<Result<_>>()?,
            hidden_bias: (0..self.net.blocks)
                .map(|k| build(&self.hidden_bias, hidden, 2 * k as u64 + 2))
                .collect::<Result<_>>()?,
            net,
        })
    }
}

/// A network `G(x; p)` whose bounds hold in x for every p, to be trained.
#[derive(Module, Debug)]
pub struct PartialBiLipNet<B: Backend> {
    pub(crate) net: BiLipNet<B>,
    pub(crate) orthogonal_bias: Vec<Mlp<B>>,
    pub(crate) hidden_bias: Vec<Mlp<B>>,
}

impl<B: Backend> PartialBiLipNet<B> {
    /// Number of parameters p.
    pub fn parameters(&self) -> usize {
        self.orthogonal_bias[0].inputs()
    }

    /// The bounds now.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<bilip::Bounds> {
        self.net.bounds()
    }

    /// The certified explicit network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PartialBiLipNet<T>> {
        let mlps = |networks: &[Mlp<B>]| networks.iter().map(|n| n.freeze()).collect::<Result<Vec<_>>>();
        Ok(bilip::PartialBiLipNet::new(
            self.net.freeze()?,
            mlps(&self.orthogonal_bias)?,
            mlps(&self.hidden_bias)?,
        )?)
    }

    /// `G(x; p)`.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, parameters] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>, p: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = x;
        for (k, orthogonal) in self.net.orthogonal.iter().enumerate() {
            x = orthogonal.forward(x) + self.orthogonal_bias[k].forward(p.clone());
            if let Some(layer) = self.net.monotone.get(k) {
                x = layer.forward_with_bias(x, self.hidden_bias[k].forward(p.clone()));
            }
        }
        x
    }
}
