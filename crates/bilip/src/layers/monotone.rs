//! What solvers ask of a monotone layer, whether its linear maps are matrices or convolutions.
//!
//! ```text
//! ẑ = σ̂(Vẑ + √(2γ)Sx + b̂),   F(x) = μx + √(γ/2)Sᵀẑ + b_y,
//! ```
//! with `V` strictly lower triangular by hidden layers. All blocks have one column per row of the
//! batch; those of the hidden state have all hidden layers below each other.

use std::borrow::Cow;

use faer::{Mat, MatMut, MatRef};

use crate::base::bounds::Bounds;
use crate::certify::Norms;
use crate::layers::activation::Activation;
use crate::layers::layer::Evaluate;

/// A monotone layer in f64.
pub(crate) trait Monotone: Evaluate {
    /// The (μ, ν) of the formula.
    fn formula(&self) -> Bounds;

    /// The activation σ.
    fn sigma(&self) -> Activation;

    /// Numbers of each hidden layer.
    fn widths(&self) -> &[usize];

    /// A value for each hidden unit or channel, as one for each number of the hidden state.
    fn per_hidden_number<'a>(&self, values: &'a [f64]) -> Cow<'a, [f64]>;

    /// ψ of each number of the hidden state.
    fn scalings(&self) -> Option<Cow<'_, [f64]>>;

    /// `b_y`, for each number of the output.
    fn output_shift(&self) -> Cow<'_, [f64]>;

    /// Verified norms of the weights.
    fn weight_norms(&self) -> &Norms;

    /// A `θ` with `I − (V+Vᵀ)/2 ⪰ θI` proved, or 0.
    fn strong_convexity(&self) -> f64;

    /// `to += factor·Sx`.
    fn add_s(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>);

    /// `to += factor·Sᵀz`.
    fn add_s_transposed(&self, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>);

    /// `to += factor·V_{k+1}z`, from hidden layer k to the next.
    fn add_v(&self, k: usize, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>);

    /// What a step of a resolvent method needs.
    fn resolvent(&self, alpha: f64) -> Box<dyn Resolvent + '_>;

    /// The step of Douglas–Rachford splitting that suits the layer.
    fn splitting_step(&self) -> f64 {
        1.0
    }
}

/// `(I + α(γ/μ)SᵀW)⁻¹` and `W = K⁻¹S` with `K = (1+α)I − αV`.
pub(crate) trait Resolvent {
    /// `x ← (I + α(γ/μ)SᵀW)⁻¹t`.
    fn solve(&self, t: MatRef<'_, f64>, x: MatMut<'_, f64>);

    /// `to += factor·Wx`.
    fn add_w(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>);
}

/// Where a hidden layer starts in the hidden state.
fn offset(layer: &dyn Monotone, k: usize) -> usize {
    layer.widths()[..k].iter().sum()
}

/// `√(2γ)` and `√(γ/2)`.
pub(crate) fn gains(layer: &dyn Monotone) -> (f64, f64) {
    let gamma = layer.formula().gap();
    ((2.0 * gamma).sqrt(), (0.5 * gamma).sqrt())
}

/// Numbers of the hidden state of a row.
pub(crate) fn hidden(layer: &dyn Monotone) -> usize {
    layer.widths().iter().sum()
}

/// One pass through the hidden layers: `each(j, i, v)` is told the `√(2γ)Sx + Vz` of number `i` of
/// row `j` and returns what it passes on.
pub(crate) fn hidden_pass(
    layer: &dyn Monotone,
    x: MatRef<'_, f64>,
    mut each: impl FnMut(usize, usize, f64) -> f64,
) -> Mat<f64> {
    let mut at = Mat::<f64>::zeros(hidden(layer), x.ncols());
    layer.add_s(gains(layer).0, x, at.as_mut());
    for (k, &width) in layer.widths().iter().enumerate() {
        let start = offset(layer, k);
        for j in 0..x.ncols() {
            for i in start..start + width {
                at[(i, j)] = each(j, i, at[(i, j)]);
            }
        }
        if k + 1 < layer.widths().len() {
            let (head, tail) = at.as_mut().split_at_row_mut(start + width);
            let next = layer.widths()[k + 1];
            layer.add_v(
                k,
                1.0,
                head.as_ref().subrows(start, width),
                tail.subrows_mut(0, next),
            );
        }
    }
    at
}

/// `to += factor·Vz`.
pub(crate) fn add_whole_v(layer: &dyn Monotone, factor: f64, z: MatRef<'_, f64>, mut to: MatMut<'_, f64>) {
    let widths = layer.widths();
    for k in 0..widths.len() - 1 {
        let start = offset(layer, k);
        let next = start + widths[k];
        layer.add_v(
            k,
            factor,
            z.subrows(start, widths[k]),
            to.as_mut().subrows_mut(next, widths[k + 1]),
        );
    }
}

/// `r ← K⁻¹r`, `K = (1+α)I − αV`, by forward substitution down the hidden layers.
pub(crate) fn substitute(layer: &dyn Monotone, alpha: f64, mut r: MatMut<'_, f64>) {
    let share = alpha / (1.0 + alpha);
    let inverse = 1.0 / (1.0 + alpha);
    for j in 0..r.ncols() {
        for v in r.as_mut().col_mut(j).iter_mut() {
            *v *= inverse;
        }
    }
    let widths = layer.widths();
    let mut start = 0;
    for k in 0..widths.len() - 1 {
        let next = start + widths[k];
        let (head, tail) = r.as_mut().split_at_row_mut(next);
        layer.add_v(
            k,
            share,
            head.as_ref().subrows(start, widths[k]),
            tail.subrows_mut(0, widths[k + 1]),
        );
        start = next;
    }
}
