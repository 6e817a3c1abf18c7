//! Activations by tensor operations.

use bilip::Activation;
use burn::tensor::Tensor;
use burn::tensor::activation::{leaky_relu, relu, sigmoid};
use burn::tensor::backend::Backend;

/// `σ(v)`.
pub(crate) fn activate<B: Backend>(activation: Activation, v: Tensor<B, 2>) -> Tensor<B, 2> {
    match activation {
        Activation::Relu => relu(v),
        Activation::LeakyRelu(slope) => leaky_relu(v, slope.get()),
        Activation::Tanh => v.tanh(),
        Activation::Sigmoid => sigmoid(v),
        Activation::Arctan => v.atan(),
        Activation::Softplus => relu(v.clone()) + v.abs().neg().exp().log1p(),
        Activation::Elu => relu(v.clone()) + v.clamp_max(0.0).exp().sub_scalar(1.0),
        Activation::Identity => v,
    }
}
