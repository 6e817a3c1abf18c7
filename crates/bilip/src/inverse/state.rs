//! A row while it is being solved: what is asked of it, what is known of it, and how that is
//! certified.

use super::report::RowReport;
use crate::base::rounding::{norm, norm_up};
use crate::layers::evaluate::accurate_residual;
use crate::layers::stack::Stack;

/// What is known of one row of one layer (or network) while it is being solved.
#[derive(Clone, Debug)]
pub(crate) struct RowState {
    pub(crate) x: Vec<f64>,
    pub(crate) report: RowReport,
}

/// The goal of a solve.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    pub(crate) mu: f64,
    pub(crate) tolerance: f64,
    pub(crate) limit: usize,
    pub(crate) trace: bool,
    /// Which layer the trace speaks of.
    pub(crate) layer: usize,
}

impl Goal {
    /// `(‖residual‖ + error)/μ`, rounded up; infinite where the numbers left the range.
    pub(crate) fn bound(&self, residual: &[f64], error: f64) -> f64 {
        let bound = ((norm_up(residual) + error) / self.mu).next_up();
        if bound.is_nan() { f64::INFINITY } else { bound }
    }
}

impl RowState {
    /// Takes over what a further solve from this state came to, unless it is worse.
    pub(super) fn go_on(&mut self, next: RowState) {
        let before = std::mem::replace(self, next);
        self.report.iterations += before.report.iterations;
        let mut trace = before.report.trace;
        trace.append(&mut self.report.trace);
        self.report.trace = trace;
        if before.report.error_bound < self.report.error_bound {
            self.x = before.x;
            self.report.residual = before.report.residual;
            self.report.error_bound = before.report.error_bound;
        }
    }
}

/// Certifies one row as well as it can be: the plain evaluation's numbers are given, the accurate
/// one is made if rounding is all that stands in the way. `reach` says how near the tolerance that
/// has to be: a factor of the tolerance, and one of the rounding error itself. Returns the residual
/// to go on with, its norm, the bound, and whether the residual is the accurate one.
pub(crate) fn certify_row(
    stack: &Stack<'_, f64>,
    row: usize,
    x: &[f64],
    y: &[f64],
    plain: (Vec<f64>, f64),
    goal: &Goal,
    reach: (f64, f64),
) -> (Vec<f64>, f64, f64, bool) {
    let (residual, error) = plain;
    let size = norm(&residual);
    let bound = goal.bound(&residual, error);
    let near = size <= reach.0 * goal.mu * goal.tolerance || size <= reach.1 * error;
    if bound <= goal.tolerance || !near || !size.is_finite() {
        return (residual, size, bound, false);
    }
    let (sharp, sharp_error) = accurate_residual(&stack.rows(row..row + 1), x, y);
    let sharp_size = norm(&sharp);
    let sharp_bound = goal.bound(&sharp, sharp_error);
    (sharp, sharp_size, sharp_bound.min(bound), true)
}
