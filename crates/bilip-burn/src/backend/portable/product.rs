//! Products by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::spec::Transposed;

/// A product with one of its factors transposed, or none.
pub(crate) fn product<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    order: Transposed,
) -> Tensor<B, D> {
    match order {
        Transposed::Neither => a.matmul(b),
        Transposed::Left => a.transpose().matmul(b),
        Transposed::Right => a.matmul(b.transpose()),
    }
}
