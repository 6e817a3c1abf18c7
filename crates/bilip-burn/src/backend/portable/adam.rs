//! Adam by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::spec::AdamStep;

/// One step of Adam on parameters, gradient and both moments.
pub(crate) fn adam_step<B: Backend, const D: usize>(
    [w, g, first, second]: [Tensor<B, D>; 4],
    step: AdamStep,
) -> [Tensor<B, D>; 3] {
    let (b1, b2) = step.beta;
    let correct = |beta: f64| 1.0 / (1.0 - beta.powi(step.time));
    let first = first.mul_scalar(b1) + g.clone().mul_scalar(1.0 - b1);
    let second = second.mul_scalar(b2) + (g.clone() * g).mul_scalar(1.0 - b2);
    let root = second
        .clone()
        .mul_scalar(correct(b2))
        .sqrt()
        .add_scalar(step.epsilon);
    let change = first.clone().mul_scalar(step.rate * correct(b1)) / root;
    let w = w.mul_scalar(1.0 - step.rate * step.decay) - change;
    [w, first, second]
}
