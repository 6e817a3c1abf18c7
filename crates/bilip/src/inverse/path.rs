//! Following the line from `F(x₀)` to `y` through the linear pieces of a layer with a kinked
//! activation.
//!
//! On every piece `F` is affine with a Jacobian `J`, `zᵀJz ≥ μ‖z‖²`. The inverse image of the line
//! is a broken line: from `x` it goes along `d = −J⁻¹(F(x) − y)` until a hidden unit changes sign,
//! where the next piece begins. All the determinants are positive, so the unit goes on to its other
//! side and no piece is met twice: the end is reached in finitely many pieces (Katzenelson 1965;
//! Fujisawa and Kuh 1972). The residual only ever shrinks on the way.
//!
//! Newton's line search jumps over pieces and is far faster where it works. This is for the rows
//! where it does not, which also are the rows on which first-order methods take very long.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef};

use super::report::{RowReport, Status, TracePoint};
use super::state::{Goal, RowState, certify_row};
use crate::base::rounding::norm;
use crate::layers::evaluate::{EvaluateBuffers, evaluate_block};
use crate::layers::layer::{Buffers, Direction};
use crate::layers::monotone::{Monotone, hidden_pass};
use crate::layers::stack::Stack;

/// Pieces of no length in a row that count as a corner that rounding does not resolve.
const CORNER: usize = 40;

/// Follows the line for the single row of the stack's batch, over at most `goal.limit` pieces.
///
/// The activation has to be piecewise linear with its kink at zero.
pub(super) fn follow(
    layer: &dyn Monotone,
    single: &Stack<'_, f64>,
    y: &[f64],
    start: &[f64],
    goal: Goal,
) -> RowState {
    let n = single.n;
    let bias = single.bias(0);
    let bias = layer.per_hidden_number(bias.column(0));
    let activation = layer.sigma();
    let slope = |positive: bool| activation.derivative(if positive { 1.0 } else { -1.0 });
    let mut buffers = (EvaluateBuffers::default(), Buffers::default());
    let mut x = start.to_vec();
    let preactivations = |x: &[f64]| {
        let mut kept = vec![0.0; bias.len()];
        hidden_pass(layer, column(x), |_, i, v| {
            kept[i] = v + bias[i];
            activation.value(kept[i])
        });
        kept
    };
    let mut pre = preactivations(&x);
    let mut positive: Vec<bool> = pre.iter().map(|v| *v > 0.0).collect();
    let mut best: Option<(f64, f64, Vec<f64>)> = None;
    let mut trace = Vec::new();
    let (mut pieces, mut corner) = (0, 0);
    let status = loop {
        let mut residual = x.clone();
        let mut error = [0.0];
        evaluate_block(single, &mut residual, &mut error, &mut buffers.0);
        for (r, y) in residual.iter_mut().zip(y) {
            *r -= y;
        }
        let floor = error[0] + 2.0 * f64::EPSILON * norm(&residual);
        let (residual, size, bound, sharp) =
            certify_row(single, 0, &x, y, (residual, floor), &goal, (1.5, 4.0));
        if goal.trace {
            trace.push(TracePoint {
                layer: goal.layer,
                iteration: pieces,
                error: size / goal.mu,
            });
        }
        if best.as_ref().is_none_or(|(least, _, _)| bound < *least) {
            best = Some((bound, size, x.clone()));
        }
        if bound <= goal.tolerance {
            break Status::Converged;
        }
        if !size.is_finite() || bound.is_infinite() || corner > CORNER {
            break Status::Stalled;
        }
        if sharp || size <= 4.0 * floor {
            break Status::PrecisionLimit;
        }
        if pieces >= goal.limit {
            break Status::MaxIterations;
        }

        // The piece's Jacobian, column by column, and the way through it.
        let slopes = Mat::from_fn(positive.len(), 1, |i, _| slope(positive[i]));
        let identity: Vec<f64> = (0..n * n).map(|i| f64::from(i % (n + 1) == 0)).collect();
        let mut jacobian = vec![0.0; n * n];
        layer.linear_cols(
            slopes.as_ref(),
            &identity,
            &mut jacobian,
            n,
            Direction::Forward,
            &mut buffers.1,
        );
        let step = MatRef::from_column_major_slice(&jacobian, n, n)
            .partial_piv_lu()
            .solve(Mat::from_fn(n, 1, |i, _| -residual[i]));
        let step: Vec<f64> = (0..n).map(|i| step[(i, 0)]).collect();
        let mut change = vec![0.0; bias.len()];
        hidden_pass(layer, column(&step), |_, i, v| {
            change[i] = v;
            slope(positive[i]) * v
        });
        let (mut length, mut crossing) = (1.0, None);
        for i in 0..positive.len() {
            let leaves = if positive[i] {
                change[i] < 0.0
            } else {
                change[i] > 0.0
            };
            if leaves {
                // On the wrong side by rounding counts as on the kink.
                let distance = if positive[i] {
                    pre[i].max(0.0)
                } else {
                    (-pre[i]).max(0.0)
                };
                let until = distance / change[i].abs();
                if until < length {
                    (length, crossing) = (until, Some(i));
                }
            }
        }
        if step.iter().any(|v| !v.is_finite()) {
            break Status::Stalled;
        }
        corner = if length > 0.0 { 0 } else { corner + 1 };
        for (x, d) in x.iter_mut().zip(&step) {
            *x += length * d;
        }
        for (v, d) in pre.iter_mut().zip(&change) {
            *v += length * d;
        }
        match crossing {
            Some(i) => {
                positive[i] = !positive[i];
                pre[i] = 0.0;
            }
            // The end of the line: what is left is rounding. Signs are taken from where x really
            // is.
            None => {
                pre = preactivations(&x);
                positive = pre.iter().map(|v| *v > 0.0).collect();
            }
        }
        pieces += 1;
    };
    let (bound, size, x) = best.unwrap_or((f64::INFINITY, f64::INFINITY, x));
    RowState {
        x,
        report: RowReport {
            status,
            iterations: pieces,
            residual: size,
            residual_bound: f64::INFINITY,
            error_bound: bound,
            trace,
        },
    }
}

fn column(x: &[f64]) -> MatRef<'_, f64> {
    MatRef::from_column_major_slice(x, x.len(), 1)
}
