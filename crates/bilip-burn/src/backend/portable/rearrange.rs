//! Linear maps that rearrange numbers, and their adjoints, by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::convolution::{fold, framed, unfold};
use crate::base::{primitive, wrap};
use crate::spec::{Rearrangement, Strips};

/// The map of a tensor.
pub(crate) fn rearrange<B: Backend>(map: Rearrangement, x: FloatTensor<B>) -> FloatTensor<B> {
    match map {
        Rearrangement::Embed => primitive(embed::<B>(wrap(x))),
        Rearrangement::Skew => primitive(skew::<B>(wrap(x), true)),
        Rearrangement::Unfold(window, _) => primitive(unfold::<B>(wrap(x), window)),
        Rearrangement::Fold(window, shape) => primitive(fold::<B>(wrap(x), window, shape)),
        Rearrangement::Strips(s) => primitive(strips::<B>(wrap(x), s)),
        Rearrangement::Exchange(_) => primitive(wrap::<B, 4>(x).swap_dims(1, 2)),
    }
}

/// Its adjoint.
pub(crate) fn rearrange_adjoint<B: Backend>(map: Rearrangement, d: FloatTensor<B>) -> FloatTensor<B> {
    match map {
        Rearrangement::Embed => primitive(fold_embedded::<B>(wrap(d))),
        // ⟨W̄, G − Gᴴ⟩ = ⟨W̄ − W̄ᴴ, G⟩.
        Rearrangement::Skew => primitive(skew::<B>(wrap(d), false)),
        Rearrangement::Unfold(window, shape) => primitive(fold::<B>(wrap(d), window, shape)),
        Rearrangement::Fold(window, _) => primitive(unfold::<B>(wrap(d), window)),
        Rearrangement::Strips(s) => primitive(laid_back::<B>(wrap(d), s)),
        Rearrangement::Exchange(_) => primitive(wrap::<B, 4>(d).swap_dims(1, 2)),
    }
}

/// The upper and the lower half of every matrix.
pub(super) fn halves<B: Backend>(z: Tensor<B, 3>) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let [count, twice, columns] = z.dims();
    let half = |start: usize| z.clone().slice([0..count, start..start + twice / 2, 0..columns]);
    (half(0), half(twice / 2))
}

/// Complex matrices, real parts above imaginary ones, as the real ones of twice the size that
/// multiply as they do: `[[Re, −Im], [Im, Re]]`.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·rows, 2·columns]`
fn embed<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    let (re, im) = halves(z.clone());
    Tensor::cat(vec![z, Tensor::cat(vec![im.neg(), re], 1)], 2)
}

/// The adjoint of [`embed`].
fn fold_embedded<B: Backend>(d: Tensor<B, 3>) -> Tensor<B, 3> {
    let [count, twice, columns] = d.dims();
    let side = |start: usize| d.clone().slice([0..count, 0..twice, start..start + columns / 2]);
    let (re, im) = halves(side(columns / 2));
    side(0) + Tensor::cat(vec![im, re.neg()], 1)
}

/// `G − Gᴴ` of complex matrices, real parts above imaginary ones, and the identity if it is asked
/// for.
fn skew<B: Backend>(g: Tensor<B, 3>, identity: bool) -> Tensor<B, 3> {
    let [_, _, n] = g.dims();
    let place = (&g.device(), g.dtype());
    let w = g.clone() - adjoint(g.clone());
    if !identity {
        return w;
    }
    let eye = Tensor::<B, 2>::eye(n, &g.device()).cast(g.dtype());
    w + Tensor::cat(vec![eye, Tensor::zeros([n, n], place)], 0).unsqueeze::<3>()
}

/// The adjoints of complex matrices, real parts above imaginary ones.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·columns, rows]`
pub(crate) fn adjoint<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    let (re, im) = halves(z);
    Tensor::cat(vec![re.swap_dims(1, 2), im.swap_dims(1, 2).neg()], 1)
}

/// Some rows of complex matrices, every piece a matrix of its own.
fn strips<B: Backend>(z: Tensor<B, 3>, s: Strips) -> Tensor<B, 3> {
    let [count, _, columns] = z.dims();
    z.reshape([count, 2, s.rows, columns])
        .slice([0..count, 0..2, s.first..s.first + s.pieces * s.stride, 0..columns])
        .reshape([count, 2, s.pieces, s.stride, columns])
        .slice([0..count, 0..2, 0..s.pieces, s.from..s.from + s.height, 0..columns])
        .swap_dims(1, 2)
        .reshape([count * s.pieces, 2 * s.height, columns])
}

/// The adjoint of [`strips`]: the pieces where they came from, zeros elsewhere.
fn laid_back<B: Backend>(d: Tensor<B, 3>, s: Strips) -> Tensor<B, 3> {
    let [all, _, columns] = d.dims();
    let count = all / s.pieces;
    let d = d.reshape([count, s.pieces, 2, s.height, columns]).swap_dims(1, 2);
    let d = framed(d, [s.from, s.stride - s.from - s.height], [0; 2]).reshape([
        count,
        2,
        s.pieces * s.stride,
        columns,
    ]);
    framed(d, [s.first, s.rows - s.first - s.pieces * s.stride], [0; 2]).reshape([count, 2 * s.rows, columns])
}
