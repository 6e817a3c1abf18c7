//! Evaluation with a proved bound on its own rounding error, at two prices.
//!
//! *Plain*: the ordinary f64 forward pass, with an a-priori bound from the norms of the weights and
//! the size of the hidden state (Higham's γ_k; any order of summation, fused or not). *Accurate*:
//! the same pass in double-double arithmetic (error-free products and sums), at several times the
//! cost, for the rows whose plain bound is not good enough; its error is quadratic in the unit
//! roundoff for piecewise linear activations and a few roundings of the activation otherwise.
//!
//! Inside a monotone layer a perturbation `e` of the pre-activations moves the hidden state by `w =
//! D(Vw + e)` with slopes `0 ⪯ D ⪯ I`. Then `⟨w, Vw + e − w⟩ ≥ 0`, so `‖Sᵀw‖² ≤ wᵀ(I − (V+Vᵀ)/2)w ≤
//! ⟨w, e⟩ ≤ a‖e‖²` with `‖w‖ ≤ a‖e‖` by recursion over the layers: the output feels only the square
//! root of the amplification `a`. Between layers an error grows by the certified ν.
//!
//! The elementary functions of the platform's libm are taken to be accurate to 4 units in the last
//! place, which the common ones (glibc, musl, Apple, MSVC) meet with room to spare.

use crate::base::double::Pair;
use crate::base::real::UNIT_ROUNDOFF;
use crate::base::rounding::{SAFETY, norm};
use crate::layers::layer::{Buffers, EvaluatedRow};
use crate::layers::stack::Stack;

/// Reusable buffers of [`evaluate_block`].
#[derive(Default)]
pub(crate) struct EvaluateBuffers {
    hidden: Buffers<f64>,
    scratch: Vec<f64>,
}

/// `G(x)` and a bound on the Euclidean error of each row.
pub(crate) fn evaluate(stack: &Stack<'_, f64>, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut y = x.to_vec();
    let mut errors = vec![0.0; x.len() / stack.n];
    evaluate_block(stack, &mut y, &mut errors, &mut EvaluateBuffers::default());
    (y, errors)
}

/// As [`evaluate`], in place and without allocating when the buffers have been used before.
///
/// The columns are those of the stack's batch, in order.
pub(crate) fn evaluate_block(
    stack: &Stack<'_, f64>,
    x: &mut [f64],
    errors: &mut [f64],
    buffers: &mut EvaluateBuffers,
) {
    let n = stack.n;
    errors.fill(0.0);
    let EvaluateBuffers { hidden, scratch } = buffers;
    scratch.resize(x.len(), 0.0);
    hidden.hidden_norm2.resize(errors.len(), 0.0);
    for (k, layer) in stack.layers.iter().enumerate() {
        let (bias, layer) = (stack.bias(k), layer.evaluate());
        layer.forward_cols(x, scratch, bias, hidden, None);
        let nu = layer.proof().proved().nu();
        for (j, error) in errors.iter_mut().enumerate() {
            let local = layer.rounding_error(EvaluatedRow {
                x: &x[j * n..(j + 1) * n],
                y: &scratch[j * n..(j + 1) * n],
                bias: bias.column(j),
                bias_error: stack.biases.as_ref().map_or(0.0, |b| b.errors[k][j]),
                hidden_norm2: hidden.hidden_norm2[j],
            });
            *error = SAFETY * (nu * *error + local);
        }
        x.copy_from_slice(scratch);
    }
}

/// `G(x) − y` for the single row of the stack's batch, with a bound on its Euclidean error.
pub(crate) fn accurate_residual(stack: &Stack<'_, f64>, x: &[f64], y: &[f64]) -> (Vec<f64>, f64) {
    let n = stack.n;
    let mut at = Pair {
        hi: x.to_vec(),
        lo: vec![0.0; n],
    };
    let mut error = 0.0;
    for (k, layer) in stack.layers.iter().enumerate() {
        let bias_error = stack.biases.as_ref().map_or(0.0, |b| b.errors[k][0]);
        let bias = stack.bias(k);
        let (next, local) = layer
            .evaluate()
            .evaluate_accurately(&at, bias.column(0), bias_error);
        error = (layer.bounds().nu() * error + local) * SAFETY;
        at = next;
    }
    let residual: Vec<f64> = (0..n).map(|i| (at.hi[i] - y[i]) + at.lo[i]).collect();
    let error = error + 4.0 * UNIT_ROUNDOFF * norm(&residual);
    (residual, error * SAFETY)
}
