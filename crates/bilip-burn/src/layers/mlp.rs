//! Multilayer perceptrons: the biases of partial networks, and the baseline without a guarantee.

use bilip::Real;
use bilip::faer::Mat;
use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::base::{Error, Result, numbers, vector};
use crate::ops;

/// Settings of an [`Mlp`].
#[derive(Config, Debug, PartialEq)]
pub struct MlpConfig {
    /// Number of inputs.
    pub inputs: usize,
    /// The widths after the input, that of the output last.
    pub sizes: Vec<usize>,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

impl MlpConfig {
    /// A perceptron with Glorot-normal weights and zero biases.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<Mlp<B>> {
        let MlpConfig {
            inputs, sizes, dtype, ..
        } = self;
        let (inputs, dtype) = (*inputs, *dtype);
        if inputs == 0 || sizes.is_empty() || sizes.contains(&0) {
            return Err(Error::setting(
                "perceptron",
                (inputs, sizes),
                "needs at least one layer, all of width at least 1",
            ));
        }
        let mut rng = bilip::Rng::new(self.seed);
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
        Ok(Mlp { layers })
    }
}

/// A multilayer perceptron: ReLU between its layers, none after the last. Nothing is guaranteed of
/// it.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    pub(crate) layers: Vec<Linear<B>>,
}

impl<B: Backend> Mlp<B> {
    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.layers[0].weight.val().dims()[0]
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].weight.val().dims()[1]
    }

    /// The perceptron's output.
    ///
    /// # Shapes
    /// `[batch, inputs] → [batch, outputs]`
    pub fn forward(&self, p: Tensor<B, 2>) -> Tensor<B, 2> {
        let last = self.layers.len().saturating_sub(1);
        self.layers.iter().enumerate().fold(p, |h, (k, layer)| {
            let mut h = ops::matmul(h, layer.weight.val());
            if let Some(bias) = &layer.bias {
                h = h + bias.val().unsqueeze();
            }
            if k < last { relu(h) } else { h }
        })
    }

    pub(crate) fn freeze<T: Real>(&self) -> Result<bilip::Mlp<T>> {
        let layers = self
            .layers
            .iter()
            .map(|layer| {
                let [inputs, outputs] = layer.weight.val().dims();
                let w = numbers(layer.weight.val());
                let bias: Vec<f64> = match &layer.bias {
                    Some(bias) => numbers(bias.val()),
                    None => vec![0.0; outputs],
                };
                (Mat::from_fn(outputs, inputs, |i, j| w[j * outputs + i]), bias)
            })
            .collect();
        Ok(bilip::Mlp::new(layers)?.convert())
    }
}
