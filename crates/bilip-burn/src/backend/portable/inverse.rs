//! Inverses by an iteration of products.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, ElementConversion, Tensor};

use super::rearrange::halves;

/// `W⁻¹` for a matrix whose symmetric part is ⪰ I, so that its singular values are at least 1.
pub(super) fn inverse<B: Backend>(w: Tensor<B, 2>) -> Tensor<B, 2> {
    let fixed = w.clone().detach();
    let [n, _] = fixed.dims();
    let eye = Tensor::<B, 2>::eye(n, &fixed.device()).cast(fixed.dtype());
    let epsilon = if fixed.dtype() == DType::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    // Newton–Schulz from Wᵀ/(‖W‖₁‖W‖∞), from where it always converges (Ben-Israel and Cohen 1966):
    // with κ the condition, 2·log₂κ steps and then quadratically.
    let rows = fixed.clone().abs().sum_dim(1).max();
    let columns = fixed.clone().abs().sum_dim(0).max();
    let mut x = fixed.clone().transpose() / (rows * columns).unsqueeze();
    let mut best = f64::INFINITY;
    for _ in 0..128 {
        let product = fixed.clone().matmul(x.clone());
        let defect = eye.clone() - product;
        let residual: f64 = (defect.clone() * defect.clone())
            .sum()
            .sqrt()
            .into_scalar()
            .elem();
        // The closing step would square the residual of the value, but not that of the derivative.
        if residual < n as f64 * epsilon || (residual < 0.1 && residual >= best) || !residual.is_finite() {
            break;
        }
        best = residual;
        x = x.clone() + x.matmul(defect);
    }
    x.clone().mul_scalar(2.0) - x.clone().matmul(w.matmul(x))
}

/// The same for several matrices, `[count, n, n]`.
pub(crate) fn inverses<B: Backend>(w: Tensor<B, 3>) -> Tensor<B, 3> {
    let [count, n, _] = w.dims();
    let each = (0..count)
        .map(|k| inverse(w.clone().slice([k..k + 1, 0..n, 0..n]).reshape([n, n])).reshape([1, n, n]))
        .collect();
    Tensor::cat(each, 0)
}

/// The inverses of complex matrices, real parts above imaginary ones, by real inverses and
/// products.
///
/// `(R + iM)⁻¹ = Z − iTZ` with `T = R⁻¹M` and `Z = (R + MT)⁻¹`. Where the Hermitian part is ⪰ I, so
/// are the symmetric parts of R and of `R + MT`, a Schur complement of the embedded matrix: both
/// inverses are safe without pivots.
pub(crate) fn complex_inverse<B: Backend>(
    w: Tensor<B, 3>,
    inverse: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
    product: impl Fn(Tensor<B, 3>, Tensor<B, 3>) -> Tensor<B, 3>,
) -> Tensor<B, 3> {
    let (re, im) = halves(w);
    let t = product(inverse(re.clone()), im.clone());
    let z = inverse(re + product(im, t.clone()));
    let below = product(t, z.clone()).neg();
    Tensor::cat(vec![z, below], 1)
}
