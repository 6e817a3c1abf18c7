//! Multilayer perceptrons: the biases of partial networks, and the baseline without a guarantee.

use bilip::Real;
use bilip::faer::Mat;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::vector;
use crate::error::{Error, Result};
use crate::ops;

/// A multilayer perceptron: ReLU between its layers, none after the last. Nothing is guaranteed of it.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    pub(crate) layers: Vec<Linear<B>>,
}

impl<B: Backend> Mlp<B> {
    /// A perceptron with Glorot-normal weights and zero biases; `sizes` are the widths after the input.
    ///
    /// # Errors
    /// On sizes of zero.
    pub fn new(inputs: usize, sizes: &[usize], seed: u64, device: &B::Device, dtype: DType) -> Result<Self> {
        if inputs == 0 || sizes.is_empty() || sizes.contains(&0) {
            return Err(Error::setting(
                "perceptron",
                (inputs, sizes),
                "needs at least one layer, all of width at least 1",
            ));
        }
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
        Ok(Mlp { layers })
    }

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
