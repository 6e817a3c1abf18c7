//! Cayley transforms by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::inverse::inverse;

/// `J = [2X − I; −2HX]` of a tall free matrix with its gain: orthonormal columns.
pub(crate) fn cayley<B: Backend>(free: Tensor<B, 2>, gain: Tensor<B, 1>) -> Tensor<B, 2> {
    let [rows, cols] = free.dims();
    // The tiny number keeps a zero matrix, whose transform is the identity, from dividing by zero.
    let norm = (free.clone() * free.clone()).sum().add_scalar(1e-30).sqrt();
    let scaled = free * (gain / norm).unsqueeze();
    let g = scaled.clone().slice([0..cols, 0..cols]);
    let eye = Tensor::<B, 2>::eye(cols, &g.device()).cast(g.dtype());
    let mut w = g.clone() - g.transpose() + eye.clone();
    if rows == cols {
        return inverse(w).mul_scalar(2.0) - eye;
    }
    let h = scaled.slice([cols..rows, 0..cols]);
    w = w + h.clone().transpose().matmul(h.clone());
    let x = inverse(w);
    let bottom = h.matmul(x.clone()).mul_scalar(-2.0);
    Tensor::cat(vec![x.mul_scalar(2.0) - eye, bottom], 0)
}
