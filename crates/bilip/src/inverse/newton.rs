//! Semismooth Newton on `G(x) = y`, with the exact Jacobian and backtracking on the residual.
//!
//! For a smooth activation the Newton direction is a descent direction of the residual and `‖J⁻¹‖ ≤
//! 1/μ`, so damped Newton converges globally; for a piecewise linear one no global proof is known,
//! and a line search that fails is reported as [`Status::Stalled`], never as an answer. Near the
//! solution the residual is recomputed in double-double arithmetic where rounding would otherwise
//! limit it, which makes the last steps an iterative refinement.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef};

use super::krylov::gmres;
use super::report::{RowReport, Status, TracePoint};
use super::state::{Goal, RowState, certify_row};
use crate::base::error::{Error, Result};
use crate::base::rounding::norm;
use crate::layers::bias::RowBiases;
use crate::layers::evaluate::{EvaluateBuffers, evaluate_block};
use crate::layers::layer::Direction;
use crate::layers::stack::{Stack, Workspace};

/// Settings of semismooth Newton.
///
/// | setting | default | effect |
/// |---|---|---|
/// | `krylov_above` | 256 | inputs wider than this are solved with GMRES instead of a dense LU factorization |
/// | `halvings` | 30 | step halvings of the line search before a row counts as stalled |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Newton {
    /// Largest `n` for which the Jacobian is formed and factored.
    pub krylov_above: usize,
    /// Step halvings before giving up.
    pub halvings: usize,
}

impl Default for Newton {
    fn default() -> Self {
        Newton {
            krylov_above: 256,
            halvings: 30,
        }
    }
}

impl Newton {
    pub(super) fn check(&self) -> Result<()> {
        if self.halvings > 60 {
            return Err(Error::setting("halvings", self.halvings, "must be at most 60"));
        }
        Ok(())
    }
}

/// Accepts a step of length t when the residual falls below `(1 − SUFFICIENT·t)` of itself.
const SUFFICIENT: f64 = 1e-4;

/// Products with the Jacobian that a Krylov solve may take.
const PRODUCTS: usize = 1_000;

struct Row {
    /// Index among the rows of the stack's batch.
    index: usize,
    x: Vec<f64>,
    /// `G(x) − y`, as accurate as is known.
    residual: Vec<f64>,
    size: f64,
    bound: f64,
    /// Residual sizes that rounding still allows to be trusted stop shrinking here.
    floor: f64,
    sharp: bool,
    iterations: usize,
    /// How exactly the next step is solved for where that takes an iteration (Eisenstat and Walker
    /// 1996).
    forcing: f64,
    best: (f64, Vec<f64>, f64),
    without_progress: usize,
    trace: Vec<TracePoint>,
}

/// Solves `G(x) = y` for every row of the stack's batch, from `start`. With a limit of 0 it only
/// certifies.
pub(super) fn solve(
    stack: &Stack<'_, f64>,
    y: &[f64],
    start: &[f64],
    goal: Goal,
    settings: &Newton,
) -> Vec<RowState> {
    let n = stack.n;
    let rows = y.len() / n;
    let mut done: Vec<Option<RowState>> = vec![None; rows];
    let mut buffers = EvaluateBuffers::default();
    let mut workspace = Workspace::default();

    let mut active: Vec<Row> = Vec::with_capacity(rows);
    let all: Vec<usize> = (0..rows).collect();
    for (index, (residual, error)) in residuals(stack, y, start, &all, &mut buffers)
        .into_iter()
        .enumerate()
    {
        let x = start[index * n..(index + 1) * n].to_vec();
        active.push(Row::new(stack, index, x, y, (residual, error), &goal));
    }

    loop {
        // Rows that are done leave; the others take a step together.
        let mut remaining = Vec::with_capacity(active.len());
        for mut row in active {
            if goal.trace {
                row.trace.push(TracePoint {
                    layer: goal.layer,
                    iteration: row.iterations,
                    error: row.size / goal.mu,
                });
            }
            match row.verdict(&goal) {
                Some(status) => {
                    let index = row.index;
                    done[index] = Some(row.finish(status));
                }
                None => remaining.push(row),
            }
        }
        active = remaining;
        if active.is_empty() {
            break;
        }
        let directions = newton_directions(stack, &active, settings, &goal, &mut workspace);

        // Backtracking, all rows in one evaluation a trial.
        let mut open: Vec<usize> = (0..active.len()).collect();
        let mut stalled = vec![false; active.len()];
        let mut length = 1.0;
        for halving in 0..=settings.halvings {
            let trials: Vec<f64> = open
                .iter()
                .flat_map(|&a| {
                    let (x, d) = (&active[a].x, &directions[a]);
                    x.iter().zip(d).map(|(x, d)| x + length * d).collect::<Vec<_>>()
                })
                .collect();
            let indices: Vec<usize> = open.iter().map(|&a| active[a].index).collect();
            // A trial that left the range is evaluated where the row stands, and counts as no
            // descent.
            let usable: Vec<bool> = trials
                .chunks_exact(n)
                .map(|t| t.iter().all(|v| v.is_finite()))
                .collect();
            let mut points = trials.clone();
            for (slot, point) in points.chunks_exact_mut(n).enumerate() {
                if !usable[slot] {
                    point.copy_from_slice(&active[open[slot]].x);
                }
            }
            let evaluated = residuals(stack, y, &points, &indices, &mut buffers);
            let mut still = Vec::new();
            for (slot, (residual, error)) in evaluated.into_iter().enumerate() {
                let a = open[slot];
                let size = norm(&residual);
                let row = &mut active[a];
                // A row whose residual is already rounding cannot be asked for descent in plain
                // arithmetic.
                let descends = size <= (1.0 - SUFFICIENT * length) * row.size;
                if usable[slot] && (descends || (halving == 0 && size <= 4.0 * error)) {
                    let x = trials[slot * n..(slot + 1) * n].to_vec();
                    row.accept(stack, x, y, (residual, error), &goal);
                } else if halving == settings.halvings {
                    stalled[a] = true;
                } else {
                    still.push(a);
                }
            }
            open = still;
            if open.is_empty() {
                break;
            }
            length *= 0.5;
        }
        let mut remaining = Vec::with_capacity(active.len());
        for (row, stalled) in active.into_iter().zip(stalled) {
            if stalled {
                let status = if row.sharp || row.size <= 4.0 * row.floor {
                    Status::PrecisionLimit
                } else {
                    Status::Stalled
                };
                let index = row.index;
                done[index] = Some(row.finish(status));
            } else {
                remaining.push(row);
            }
        }
        active = remaining;
    }
    done.into_iter().flatten().collect()
}

impl Row {
    fn new(
        stack: &Stack<'_, f64>,
        index: usize,
        x: Vec<f64>,
        y: &[f64],
        plain: (Vec<f64>, f64),
        goal: &Goal,
    ) -> Self {
        let mut row = Row {
            index,
            best: (f64::INFINITY, x.clone(), f64::INFINITY),
            x: Vec::new(),
            residual: Vec::new(),
            size: f64::INFINITY,
            bound: f64::INFINITY,
            floor: 0.0,
            sharp: false,
            iterations: 0,
            forcing: 0.1,
            without_progress: 0,
            trace: Vec::new(),
        };
        row.take(stack, x, y, plain, goal);
        row
    }

    fn accept(
        &mut self,
        stack: &Stack<'_, f64>,
        x: Vec<f64>,
        y: &[f64],
        plain: (Vec<f64>, f64),
        goal: &Goal,
    ) {
        self.iterations += 1;
        let (before, size) = (self.best.0, self.size);
        self.take(stack, x, y, plain, goal);
        self.forcing = (0.9 * (self.size / size).powi(2)).clamp(1e-6, 0.1);
        if self.best.0 <= 0.5 * before {
            self.without_progress = 0;
        } else {
            self.without_progress += 1;
        }
    }

    fn take(&mut self, stack: &Stack<'_, f64>, x: Vec<f64>, y: &[f64], plain: (Vec<f64>, f64), goal: &Goal) {
        let n = stack.n;
        self.floor = plain.1;
        let target = &y[self.index * n..(self.index + 1) * n];
        let (residual, size, bound, sharp) =
            certify_row(stack, self.index, &x, target, plain, goal, (1.0, 4.0));
        if bound < self.best.0 {
            self.best = (bound, x.clone(), size);
        }
        self.x = x;
        self.residual = residual;
        self.size = size;
        self.bound = bound;
        self.sharp = sharp;
    }

    fn verdict(&self, goal: &Goal) -> Option<Status> {
        if self.bound <= goal.tolerance {
            Some(Status::Converged)
        } else if !self.size.is_finite() || self.bound.is_infinite() {
            // Squares that leave the range: no further step gets a bound.
            Some(Status::Stalled)
        } else if self.without_progress >= 3 && (self.sharp || self.size <= 4.0 * self.floor) {
            Some(Status::PrecisionLimit)
        } else if self.iterations >= goal.limit {
            Some(Status::MaxIterations)
        } else {
            None
        }
    }

    fn finish(self, status: Status) -> RowState {
        let (bound, x, size) = self.best;
        RowState {
            x,
            report: RowReport {
                status,
                iterations: self.iterations,
                residual: size,
                residual_bound: f64::INFINITY,
                error_bound: bound,
                trace: self.trace,
            },
        }
    }
}

/// `G(x) − y` and its error bound for some rows of the batch.
fn residuals(
    stack: &Stack<'_, f64>,
    y: &[f64],
    x: &[f64],
    indices: &[usize],
    buffers: &mut EvaluateBuffers,
) -> Vec<(Vec<f64>, f64)> {
    let n = stack.n;
    let mut at = x.to_vec();
    let mut errors = vec![0.0; indices.len()];
    evaluate_block(&select(stack, indices), &mut at, &mut errors, buffers);
    indices
        .iter()
        .enumerate()
        .map(|(j, &row)| {
            let r: Vec<f64> = (0..n).map(|i| at[j * n + i] - y[row * n + i]).collect();
            let error = errors[j] + 2.0 * f64::EPSILON * norm(&r);
            (r, error)
        })
        .collect()
}

/// The stack for some rows of its batch, in the order given.
fn select<'a>(stack: &Stack<'a, f64>, indices: &[usize]) -> Stack<'a, f64> {
    let biases = stack.biases.as_ref().map(|b| RowBiases {
        layers: b
            .layers
            .iter()
            .map(|(dim, data)| {
                (
                    *dim,
                    indices
                        .iter()
                        .flat_map(|&r| data[r * dim..(r + 1) * dim].iter().copied())
                        .collect(),
                )
            })
            .collect(),
        errors: b
            .errors
            .iter()
            .map(|e| indices.iter().map(|&r| e[r]).collect())
            .collect(),
    });
    Stack {
        layers: stack.layers.clone(),
        biases,
        n: stack.n,
    }
}

/// `−J⁻¹r` for every active row.
fn newton_directions(
    stack: &Stack<'_, f64>,
    active: &[Row],
    settings: &Newton,
    goal: &Goal,
    workspace: &mut Workspace<f64>,
) -> Vec<Vec<f64>> {
    let n = stack.n;
    if n > settings.krylov_above {
        return active
            .iter()
            .map(|row| {
                let single = stack.rows(row.index..row.index + 1);
                let minus: Vec<f64> = row.residual.iter().map(|r| -r).collect();
                let enough = 0.1 * goal.mu * goal.tolerance / row.size;
                let tolerance = row.forcing.max(enough).min(0.5);
                let limits = (tolerance, PRODUCTS);
                linear_solve(&single, &row.x, &minus, Direction::Forward, settings, limits)
            })
            .collect();
    }
    let mut directions = Vec::with_capacity(active.len());
    // As many Jacobians at once as make a block of columns on which GEMM runs at its rate.
    for group in active.chunks((192 / n).max(1)) {
        let indices: Vec<usize> = group.iter().map(|row| row.index).collect();
        let mut x: Vec<f64> = group.iter().flat_map(|row| row.x.iter().copied()).collect();
        let columns =
            select(stack, &indices).jacobian_rows(&mut x, group.len(), Direction::Forward, workspace);
        for (j, row) in group.iter().enumerate() {
            let jacobian = MatRef::from_column_major_slice(&columns[j * n * n..(j + 1) * n * n], n, n);
            directions.push(dense_solve(jacobian, &row.residual, -1.0));
        }
    }
    directions
}

fn dense_solve(matrix: MatRef<'_, f64>, rhs: &[f64], sign: f64) -> Vec<f64> {
    let n = rhs.len();
    let b = Mat::<f64>::from_fn(n, 1, |i, _| sign * rhs[i]);
    let x = matrix.partial_piv_lu().solve(b);
    (0..n).map(|i| x[(i, 0)]).collect()
}

/// Solves `J(x) v = rhs`, or `J(x)ᵀ v = rhs`, for the single row of the stack's batch: by LU, or by
/// GMRES to a relative tolerance within a number of products.
pub(super) fn linear_solve(
    stack: &Stack<'_, f64>,
    x: &[f64],
    rhs: &[f64],
    direction: Direction,
    settings: &Newton,
    (tolerance, products): (f64, usize),
) -> Vec<f64> {
    let n = stack.n;
    let mut workspace = Workspace::default();
    let mut at = x.to_vec();
    if n <= settings.krylov_above {
        let columns = stack.jacobian_rows(&mut at, 1, direction, &mut workspace);
        return dense_solve(MatRef::from_column_major_slice(&columns, n, n), rhs, 1.0);
    }
    let slopes = stack.linearize(&mut at, 1, &mut workspace);
    gmres(
        |v| {
            let mut w = v.to_vec();
            stack.apply_linear(&slopes, &mut w, 1, direction, &mut workspace);
            w
        },
        rhs,
        tolerance,
        (4 * n + 100).min(products),
    )
}
