//! Partial networks: biases that are functions of a parameter p, the weights shared.

use bilip::Real;
use bilip::faer::Mat;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::vector;
use crate::error::{Error, Result};
use crate::modules::{BiLipNet, BiLipNetConfig};

/// A small multilayer perceptron of p: ReLU between its layers, none after the last.
#[derive(Module, Debug)]
pub struct BiasNetwork<B: Backend> {
    pub(crate) layers: Vec<Linear<B>>,
}

impl<B: Backend> BiasNetwork<B> {
    /// A perceptron with Glorot-normal weights and zero biases; `sizes` are the widths after the input.
    fn new(inputs: usize, sizes: &[usize], seed: u64, device: &B::Device, dtype: DType) -> Self {
        let mut rng = bilip::Rng::new(seed);
        let mut before = inputs;
        let layers = sizes
            .iter()
            .map(|&size| {
                let mut layer = LinearConfig::new(before, size).init(device);
                let weight = rng.glorot(before, size);
                let values: Vec<f64> = (0..before * size).map(|k| weight[(k / size, k % size)]).collect();
                let data = TensorData::new(values, [before, size]).convert_dtype(dtype);
                layer.weight = Param::from_tensor(Tensor::from_data(data, (device, dtype)));
                layer.bias = Some(Param::from_tensor(vector(vec![0.0; size], device, dtype)));
                before = size;
                layer
            })
            .collect();
        BiasNetwork { layers }
    }

    fn forward(&self, p: Tensor<B, 2>) -> Tensor<B, 2> {
        let last = self.layers.len().saturating_sub(1);
        self.layers.iter().enumerate().fold(p, |h, (k, layer)| {
            let h = layer.forward(h);
            if k < last { relu(h) } else { h }
        })
    }

    fn freeze<T: Real>(&self) -> Result<bilip::Mlp<T>> {
        let layers = self
            .layers
            .iter()
            .map(|layer| {
                let [inputs, outputs] = layer.weight.val().dims();
                let w: Vec<f64> = layer.weight.val().to_data().iter::<f64>().collect();
                let bias: Vec<f64> = match &layer.bias {
                    Some(bias) => bias.val().to_data().iter::<f64>().collect(),
                    None => vec![0.0; outputs],
                };
                (Mat::from_fn(outputs, inputs, |i, j| w[j * outputs + i]), bias)
            })
            .collect();
        Ok(bilip::Mlp::new(layers)?.convert())
    }
}

/// Settings of a [`PartialBiLipNet`] and of the [`PartialPlNet`] on top of one.
#[derive(Clone, Debug)]
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
        for widths in [&self.orthogonal_bias, &self.hidden_bias] {
            if widths.contains(&0) {
                return Err(Error::setting(
                    "bias network",
                    widths,
                    "every width must be at least 1",
                ));
            }
        }
        let net = self.net.build(device, false)?;
        let layer = &self.net.layer;
        let hidden: usize = layer.units.iter().sum();
        let build = |widths: &[usize], outputs: usize, part: u64| {
            let mut sizes = widths.to_vec();
            sizes.push(outputs);
            BiasNetwork::new(
                self.parameters,
                &sizes,
                layer.seed ^ (part << 40),
                device,
                layer.dtype,
            )
        };
        Ok(PartialBiLipNet {
            orthogonal_bias: (0..=self.net.blocks)
                .map(|k| build(&self.orthogonal_bias, layer.n, 2 * k as u64 + 1))
                .collect(),
            hidden_bias: (0..self.net.blocks)
                .map(|k| build(&self.hidden_bias, hidden, 2 * k as u64 + 2))
                .collect(),
            net,
        })
    }
}

/// A network `G(x; p)` whose bounds hold in x for every p, to be trained.
#[derive(Module, Debug)]
pub struct PartialBiLipNet<B: Backend> {
    pub(crate) net: BiLipNet<B>,
    pub(crate) orthogonal_bias: Vec<BiasNetwork<B>>,
    pub(crate) hidden_bias: Vec<BiasNetwork<B>>,
}

impl<B: Backend> PartialBiLipNet<B> {
    /// Number of parameters p.
    pub fn parameters(&self) -> usize {
        self.orthogonal_bias[0].layers[0].weight.val().dims()[0]
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
        let mlps =
            |networks: &[BiasNetwork<B>]| networks.iter().map(|n| n.freeze()).collect::<Result<Vec<_>>>();
        Ok(bilip::PartialBiLipNet::new(
            self.net.freeze()?,
            mlps(&self.orthogonal_bias)?,
            mlps(&self.hidden_bias)?,
        )?)
    }
}

impl<B: Backend> PartialBiLipNet<B> {
    /// `G(x; p)`.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, parameters] → [batch, n]`
    pub fn forward(&self, x: Tensor<B, 2>, p: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = x;
        for (k, orthogonal) in self.net.orthogonal.iter().enumerate() {
            x = orthogonal.rotate(x) + self.orthogonal_bias[k].forward(p.clone());
            if let Some(layer) = self.net.monotone.get(k) {
                x = layer.forward_with_bias(x, self.hidden_bias[k].forward(p.clone()));
            }
        }
        x
    }
}

/// A partial PL network `½‖G(x; p)‖² + c` to be trained.
#[derive(Module, Debug)]
pub struct PartialPlNet<B: Backend> {
    net: PartialBiLipNet<B>,
    /// c, `[1]`.
    offset: Param<Tensor<B, 1>>,
}

impl<B: Backend> PartialPlNet<B> {
    /// A partial PL network with offset 0 on top of a network.
    pub fn new(net: PartialBiLipNet<B>) -> Self {
        let offset = net.net.zero_offset();
        PartialPlNet {
            net,
            offset: Param::from_tensor(offset),
        }
    }

    /// The network G.
    pub fn net(&self) -> &PartialBiLipNet<B> {
        &self.net
    }

    /// The certified explicit partial PL network.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::PartialPlNet<T>> {
        let offset = self.offset.val().to_data().iter::<f64>().next().unwrap_or(0.0);
        Ok(bilip::PartialPlNet::new(self.net.freeze()?, offset)?)
    }
}

impl<B: Backend> PartialPlNet<B> {
    /// `½‖G(x; p)‖² + c`.
    ///
    /// # Shapes
    /// `[batch, n]` and `[batch, parameters] → [batch]`
    pub fn forward(&self, x: Tensor<B, 2>, p: Tensor<B, 2>) -> Tensor<B, 1> {
        crate::modules::potential(self.net.forward(x, p), self.offset.val())
    }
}
