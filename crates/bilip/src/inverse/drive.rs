//! The loop that drives a first-order method over a block of rows, which shrinks as rows finish.

use super::first_order::{InverseMethod, LayerProblem, swap_columns};
use super::report::{RowReport, Status, TracePoint};
use super::state::{Goal, RowState, certify_row};
use crate::base::rounding::norm;
use crate::layers::evaluate::{EvaluateBuffers, evaluate_block};
use crate::layers::monotone::Monotone;
use crate::layers::stack::Stack;

/// A residual this many times its start is divergence: a step size outside its range.
const GROWTH: f64 = 1e6;

/// Runs a first-order method on every row of the single-layer stack's batch, from `start`.
///
/// A certified error costs as much as a step, so it is computed only when the observed rate says
/// that a row may be done; rows that are done leave the block and cost nothing from then on.
pub(super) fn solve(
    method: &dyn InverseMethod,
    layer: &dyn Monotone,
    single: &Stack<'_, f64>,
    y: &[f64],
    start: &[f64],
    goal: Goal,
) -> Vec<RowState> {
    let n = single.n;
    let rows = y.len() / n;
    let mut iteration = method.start(LayerProblem {
        layer,
        bias: single.bias(0),
        y,
        start,
    });
    // order[c] is the row that column c holds; columns from `active` on are done.
    let mut order: Vec<usize> = (0..rows).collect();
    let mut active = rows;
    let mut block = Stack {
        layers: single.layers.clone(),
        biases: single.biases.clone(),
        n,
    };
    let mut targets = y.to_vec();
    let mut x = vec![0.0; n * rows];
    let mut residual = vec![0.0; n * rows];
    let mut errors = vec![0.0; rows];
    let mut buffers = EvaluateBuffers::default();
    let mut done: Vec<Option<RowState>> = vec![None; rows];
    let mut progress: Vec<RowProgress> = vec![RowProgress::default(); rows];
    let every = iteration.needs_residual() || goal.trace;
    let (mut count, mut next_check) = (0usize, 0usize);
    loop {
        if count >= next_check || count >= goal.limit {
            iteration.candidate(active, &mut x);
            residual[..n * active].copy_from_slice(&x[..n * active]);
            evaluate_block(
                &block,
                &mut residual[..n * active],
                &mut errors[..active],
                &mut buffers,
            );
            for (r, y) in residual[..n * active].iter_mut().zip(&targets) {
                *r -= y;
            }
            let mut wait = usize::MAX;
            let mut ended = Vec::new();
            for column in 0..active {
                let slice = column * n..(column + 1) * n;
                let r = residual[slice.clone()].to_vec();
                let floor = errors[column] + 2.0 * f64::EPSILON * norm(&r);
                let (x, y) = (&x[slice.clone()], &targets[slice]);
                let (_, size, bound, sharp) =
                    certify_row(&block, column, x, y, (r, floor), &goal, (1.5, 0.0));
                let seen = Seen {
                    count,
                    size,
                    bound,
                    at_rounding: sharp || size <= 4.0 * floor,
                };
                match progress[order[column]].update(&seen, x, &goal) {
                    Verdict::Continue(steps) => wait = wait.min(steps),
                    Verdict::End(status) => ended.push((column, status)),
                }
            }
            // From the back, so that the columns still to be removed stay where they are.
            for (column, status) in ended.into_iter().rev() {
                let row = order[column];
                done[row] = Some(std::mem::take(&mut progress[row]).finish(status, count));
                active -= 1;
                iteration.swap(column, active);
                order.swap(column, active);
                for data in [&mut residual, &mut targets] {
                    swap_columns(data, n, column, active);
                }
                if let Some(biases) = &mut block.biases {
                    biases.swap(column, active);
                }
            }
            if active == 0 {
                break;
            }
            next_check = if every { count + 1 } else { count + wait };
        }
        iteration.step(active, &residual);
        count += 1;
    }
    done.into_iter().flatten().collect()
}

/// What a check found out about a row.
struct Seen {
    count: usize,
    size: f64,
    bound: f64,
    /// Whether the residual is down to its own rounding error.
    at_rounding: bool,
}

enum Verdict {
    /// Check again after this many steps.
    Continue(usize),
    End(Status),
}

/// The history of one row.
#[derive(Clone, Default)]
struct RowProgress {
    first: Option<f64>,
    last: Option<(usize, f64)>,
    best: Option<(f64, f64, Vec<f64>)>,
    /// When the residual last became smaller by 2 %, and to what.
    gained: Option<(usize, f64)>,
    trace: Vec<TracePoint>,
}

impl RowProgress {
    fn update(&mut self, seen: &Seen, x: &[f64], goal: &Goal) -> Verdict {
        let Seen {
            count, size, bound, ..
        } = *seen;
        if goal.trace {
            self.trace.push(TracePoint {
                layer: goal.layer,
                iteration: count,
                error: size / goal.mu,
            });
        }
        // The first candidate is kept whatever it is worth, so that there always is one.
        if self.best.as_ref().is_none_or(|(best, _, _)| bound < *best) {
            let bound = if bound.is_nan() { f64::INFINITY } else { bound };
            self.best = Some((bound, size, x.to_vec()));
        }
        let first = *self.first.get_or_insert(size.max(bound * goal.mu));
        if bound <= goal.tolerance {
            return Verdict::End(Status::Converged);
        }
        if !size.is_finite() || bound.is_infinite() || size > GROWTH * first {
            return Verdict::End(Status::Stalled);
        }
        let last = self.last.replace((count, size));
        // Down to rounding, and for a long while nothing gained: this is as far as f64 goes.
        if self.gained.is_none_or(|(_, gained)| size < 0.98 * gained) {
            self.gained = Some((count, size));
        }
        let idle = self.gained.map_or(0, |(at, _)| count - at);
        if seen.at_rounding && idle > 100.max(count / 4) {
            return Verdict::End(Status::PrecisionLimit);
        }
        if count >= goal.limit {
            return Verdict::End(Status::MaxIterations);
        }
        // 70 % of the way the observed linear rate predicts, at least 5 % and at most all of the
        // steps done so far.
        let (least, most) = (1.0 + (count / 20) as f64, count.max(4) as f64);
        let predicted = match last {
            Some((at, before)) if size < before => {
                let rate = (size / before).ln() / (count - at) as f64;
                // A tolerance of zero is never reached: as long as can be.
                (goal.mu * goal.tolerance / size).ln() / rate
            }
            _ => 4.0,
        };
        let steps = (0.7 * predicted).clamp(least, most.max(least));
        Verdict::Continue((steps as usize).min(goal.limit.saturating_sub(count)).max(1))
    }

    fn finish(self, status: Status, count: usize) -> RowState {
        let (bound, size, x) = self.best.unwrap_or((f64::INFINITY, f64::INFINITY, Vec::new()));
        RowState {
            x,
            report: RowReport {
                status,
                iterations: count,
                residual: size,
                residual_bound: f64::INFINITY,
                error_bound: bound,
                trace: self.trace,
            },
        }
    }
}
