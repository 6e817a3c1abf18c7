//! The inverse of a network, every answer with a certified error.
//!
//! With `‖G(x) − G(x')‖ ≥ μ‖x − x'‖` proved, any candidate x̂ satisfies `‖x̂ − G⁻¹(y)‖ ≤ ‖G(x̂) − y‖/μ`. That is the
//! stopping test of every method here and the bound in every answer, with the rounding error of `G(x̂)` itself added
//! (see the module `rounding`), so that it is a bound and not a measurement.
//!
//! A network is inverted layer by layer from the output; the bound is that of the whole network.

mod davis_yin;
mod drive;
mod first_order;
mod forward;
mod krylov;
mod newton;
mod path;
mod resolvent;

use serde::{Deserialize, Serialize};

pub use davis_yin::DavisYin;
pub use first_order::{InverseMethod, Iteration, LayerProblem};
pub use forward::{ForwardBackward, ForwardBackwardForward, ForwardStep};
pub(crate) use krylov::gmres;
pub use newton::Newton;
pub use resolvent::{DouglasRachford, PeacemanRachford};

use crate::certificate::{Proved, out_of_range};
use crate::error::{Error, Result, check_batch, check_rows};
use crate::map::{BiLipschitz, Direction, LayerRef, Stack, Workspace};
use crate::monlip::MonLip;
use crate::orthogonal::Orthogonal;
use crate::parallel;
use crate::rounding::{self, norm};
use crate::scaling::Scaling;

/// Which algorithm inverts the monotone layers.
///
/// Convergence is that of layers whose condition is proved, see [`LayerCertificate`](crate::LayerCertificate).
///
/// | method | works on | converges | cost of a step |
/// |---|---|---|---|
/// | `Auto` | | always: behind Newton stands a method that does | |
/// | `Newton` | `F(x) = y` | in every case met so far; no global proof | `n` forward passes |
/// | `DavisYin` | hidden state | for `α < 2μ/(γ‖S‖²)` | 1 forward pass |
/// | `ForwardStep` | `F(x) = y` | always, rate `1 − (μ/ν)²` | 1 forward pass |
/// | `ForwardBackward` | hidden state | when `I − (V+Vᵀ)/2` is positive definite | 1 forward pass |
/// | `ForwardBackwardForward` | hidden state | always | 2 forward passes |
/// | `PeacemanRachford` | hidden state | often; no proof without strong monotonicity | 1 forward pass |
/// | `DouglasRachford` | hidden state | always | 1 forward pass |
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// Semismooth Newton. Rows on which its line search fails go on with a method that cannot fail: for a piecewise
    /// linear activation the path through the pieces, which ends after finitely many of them; else Douglas–Rachford.
    Auto,
    /// Semismooth Newton.
    Newton(Newton),
    /// Davis–Yin three-operator splitting.
    DavisYin(DavisYin),
    /// The forward step method `x ← x − s(F(x) − y)`.
    ForwardStep(ForwardStep),
    /// Forward–backward splitting.
    ForwardBackward(ForwardBackward),
    /// Tseng's forward–backward–forward splitting.
    ForwardBackwardForward(ForwardBackwardForward),
    /// Peaceman–Rachford splitting.
    PeacemanRachford(PeacemanRachford),
    /// Douglas–Rachford splitting.
    DouglasRachford(DouglasRachford),
}

impl Method {
    /// Every method with its default settings.
    pub fn all() -> [Method; 8] {
        [
            Method::Auto,
            Method::Newton(Default::default()),
            Method::DavisYin(Default::default()),
            Method::ForwardStep(Default::default()),
            Method::ForwardBackward(Default::default()),
            Method::ForwardBackwardForward(Default::default()),
            Method::PeacemanRachford(Default::default()),
            Method::DouglasRachford(Default::default()),
        ]
    }

    /// The method's short name: `auto`, `newton`, `dys`, `fsm`, `fbs`, `fbfs`, `prs` or `drs`.
    pub fn name(&self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::Newton(_) => "newton",
            Method::DavisYin(_) => "dys",
            Method::ForwardStep(_) => "fsm",
            Method::ForwardBackward(_) => "fbs",
            Method::ForwardBackwardForward(_) => "fbfs",
            Method::PeacemanRachford(_) => "prs",
            Method::DouglasRachford(_) => "drs",
        }
    }

    /// The settings as the one trait all first-order methods share; Newton and Auto work differently.
    fn first_order(&self) -> Option<&dyn InverseMethod> {
        Some(match self {
            Method::Auto | Method::Newton(_) => return None,
            Method::DavisYin(m) => m,
            Method::ForwardStep(m) => m,
            Method::ForwardBackward(m) => m,
            Method::ForwardBackwardForward(m) => m,
            Method::PeacemanRachford(m) => m,
            Method::DouglasRachford(m) => m,
        })
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lower = text.trim().to_ascii_lowercase();
        Method::all()
            .into_iter()
            .find(|m| m.name() == lower)
            .ok_or_else(|| {
                Error::setting(
                    "method",
                    text.chars().take(40).collect::<String>(),
                    "choose one of auto, newton, dys, fsm, fbs, fbfs, prs, drs",
                )
            })
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of an inverse.
///
/// | setting | default | range | effect |
/// |---|---|---|---|
/// | `method` | `Auto` | | see [`Method`] |
/// | `tolerance` | 1e-8 | ≥ 0 | certified error at which a row is done |
/// | `max_iterations` | 100 for Newton, 100,000 else | ≥ 1 | per layer and row, whatever the method tries |
/// | `start` | none | `[batch, n]` | first guess of x |
/// | `trace` | false | | records the error at every iteration (slower) |
#[derive(Clone, Debug)]
pub struct InverseOptions {
    /// The algorithm.
    pub method: Method,
    /// Certified error `‖x̂ − x*‖` at which a row is done.
    pub tolerance: f64,
    /// Limit on iterations per layer and row; `None` takes the method's own.
    pub max_iterations: Option<usize>,
    /// First guess of x, `[batch, n]`: a warm start.
    pub start: Option<Vec<f64>>,
    /// Whether to record the error at every iteration.
    pub trace: bool,
}

impl Default for InverseOptions {
    fn default() -> Self {
        InverseOptions {
            method: Method::Auto,
            tolerance: 1e-8,
            max_iterations: None,
            start: None,
            trace: false,
        }
    }
}

impl InverseOptions {
    /// Default settings with another method.
    pub fn with_method(method: Method) -> Self {
        InverseOptions {
            method,
            ..Default::default()
        }
    }

    pub(crate) fn check(&self, rows: usize, n: usize) -> Result<()> {
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return Err(Error::setting(
                "tolerance",
                self.tolerance,
                "must be a finite number, at least 0",
            ));
        }
        if self.max_iterations == Some(0) {
            return Err(Error::setting("max_iterations", 0, "must be at least 1"));
        }
        if let Some(start) = &self.start {
            check_rows("start", start, rows, n)?;
        }
        match &self.method {
            Method::Newton(newton) => newton.check(),
            method => method.first_order().map_or(Ok(()), |m| m.check()),
        }
    }

    fn limit(&self) -> usize {
        self.max_iterations.unwrap_or(match self.method {
            Method::Newton(_) => NEWTON_LIMIT,
            _ => 100_000,
        })
    }
}

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The certified error is within the tolerance.
    Converged,
    /// The iteration limit came first; the bound says how far it got.
    MaxIterations,
    /// The error cannot be certified any smaller in f64: it is dominated by rounding. The bound is still valid.
    PrecisionLimit,
    /// No progress: Newton's line search found no smaller residual, or a step size outside its range made the
    /// iteration grow. The bound is still valid.
    Stalled,
    /// The numbers of this row leave the range of f64 on the way: there is no answer, x is NaN and the bound infinite.
    OutOfRange,
}

impl Status {
    /// The name as in JSON: `converged`, `max_iterations`, `precision_limit`, `stalled` or `out_of_range`.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Converged => "converged",
            Status::MaxIterations => "max_iterations",
            Status::PrecisionLimit => "precision_limit",
            Status::Stalled => "stalled",
            Status::OutOfRange => "out_of_range",
        }
    }
}

/// One recorded iteration of one row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracePoint {
    /// Index of the layer being inverted.
    pub layer: usize,
    /// Iterations done in that layer.
    pub iteration: usize,
    /// `‖F(x̂) − y‖/μ` of that layer: a bound on the error of the layer's own input, rounding not included.
    #[serde(with = "crate::json_number")]
    pub error: f64,
}

/// How one row of an inverse went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowReport {
    /// How it ended.
    pub status: Status,
    /// Iterations, summed over the layers.
    pub iterations: usize,
    /// `‖G(x̂) − y‖` as computed.
    #[serde(with = "crate::json_number")]
    pub residual: f64,
    /// A proved bound on `‖G(x̂) − y‖`, rounding included.
    #[serde(with = "crate::json_number")]
    pub residual_bound: f64,
    /// A proved bound on `‖x̂ − G⁻¹(y)‖`, rounding included.
    #[serde(with = "crate::json_number")]
    pub error_bound: f64,
    /// Error against iteration, where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<TracePoint>,
}

/// The answer of an inverse: x for every row, and how each row went.
#[derive(Clone, Debug)]
pub struct Inverse {
    /// x, `[batch, n]`.
    pub x: Vec<f64>,
    /// One report a row.
    pub rows: Vec<RowReport>,
}

impl Inverse {
    /// Whether every row reached the tolerance.
    pub fn converged(&self) -> bool {
        self.rows.iter().all(|row| row.status == Status::Converged)
    }

    /// The largest error bound of any row; 0 for an empty batch.
    pub fn max_error_bound(&self) -> f64 {
        self.rows.iter().map(|row| row.error_bound).fold(0.0, f64::max)
    }

    /// The largest number of iterations any row took; 0 for an empty batch.
    pub fn max_iterations(&self) -> usize {
        self.rows.iter().map(|row| row.iterations).max().unwrap_or(0)
    }
}

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
        let bound = ((rounding::norm_up(residual) + error) / self.mu).next_up();
        if bound.is_nan() { f64::INFINITY } else { bound }
    }
}

/// Rows a block of a first-order method holds.
///
/// A block re-reads the weights once an iteration, so larger blocks spare memory traffic until their state (24 bytes
/// a hidden unit and row) leaves the cache.
const BLOCK_ROWS: usize = 64;

/// Inverts every row of `y`.
///
/// Changes of variables at the ends are undone one by one: the proof is then that of the network between them, and
/// columns of very different units cost it nothing.
pub(crate) fn invert(stack: &Stack<'_, f64>, y: &[f64], options: &InverseOptions) -> Result<Inverse> {
    let n = stack.n;
    let rows = check_batch("y", y, n)?;
    options.check(rows, n)?;
    stack.prepare();
    for layer in &stack.layers {
        layer.layer_certificate().need_positive()?;
    }
    if Proved::product(stack.layers.iter().map(|l| l.bounds()))
        .bounds()
        .is_none()
    {
        return Err(out_of_range());
    }
    let (input, inner, output) = without_scalings(stack);
    if (input.is_none() && output.is_none()) || inner.layers.is_empty() {
        return Ok(invert_network(stack, y, options));
    }
    // y' = (y − b)/d, rounded once: an error of at most u‖y'‖.
    let undo = |s: Option<&Scaling<f64>>, values: &[f64]| -> Vec<f64> {
        match s {
            None => values.to_vec(),
            Some(s) => (values.iter().enumerate())
                .map(|(k, v)| (v - s.shift()[k % n]) / s.scale()[k % n])
                .collect(),
        }
    };
    let target = undo(output, y);
    let spread = |s: Option<&Scaling<f64>>| s.map_or((1.0, 1.0), |s| (s.bounds().mu(), s.bounds().nu()));
    let ((input_low, input_high), (_, output_high)) = (spread(input), spread(output));
    let bounds = Proved::product(inner.layers.iter().map(|l| l.bounds()));
    let inner_options = InverseOptions {
        // A little less than the tolerance leaves room for the roundings of the changes of variables.
        tolerance: 0.9 * options.tolerance * input_low,
        start: options.start.as_ref().map(|x| {
            let s = input.map(|s| (s.scale(), s.shift()));
            (x.iter().enumerate())
                .map(|(k, v)| s.map_or(*v, |(d, b)| d[k % n] * v + b[k % n]))
                .collect()
        }),
        ..options.clone()
    };
    let mut inverse = invert_network(&inner, &target, &inner_options);
    inverse.x = undo(input, &inverse.x);
    const U: f64 = crate::real::UNIT_ROUNDOFF;
    let or_infinite = |bound: f64| if bound.is_nan() { f64::INFINITY } else { bound };
    for (k, row) in inverse.rows.iter_mut().enumerate() {
        let range = k * n..(k + 1) * n;
        if row.status == Status::OutOfRange || inverse.x[range.clone()].iter().any(|v| !v.is_finite()) {
            *row = RowReport {
                iterations: row.iterations,
                trace: std::mem::take(&mut row.trace),
                ..RowReport::out_of_range()
            };
            inverse.x[range].fill(f64::NAN);
            continue;
        }
        let moved = 1.01 * U * rounding::norm_up(&target[range.clone()]);
        let rounded = 1.01 * U * rounding::norm_up(&inverse.x[range]);
        row.residual *= output_high;
        row.residual_bound = or_infinite(
            (row.residual_bound + moved + bounds.nu() * input_high * rounded)
                * output_high
                * rounding::SAFETY,
        );
        row.error_bound =
            or_infinite(((row.error_bound + moved / bounds.mu()) / input_low + rounded) * rounding::SAFETY);
        for point in &mut row.trace {
            point.error /= input_low;
        }
        row.status = match row.status {
            _ if row.error_bound <= options.tolerance => Status::Converged,
            Status::Converged => Status::PrecisionLimit,
            other => other,
        };
    }
    Ok(inverse)
}

/// The changes of variables at the ends of a stack, and the network between them.
fn without_scalings<'a>(
    stack: &Stack<'a, f64>,
) -> (Option<&'a Scaling<f64>>, Stack<'a, f64>, Option<&'a Scaling<f64>>) {
    let scaling = |layer: Option<&LayerRef<'a, f64>>| match layer {
        Some(LayerRef::Scaling(s)) => Some(*s),
        _ => None,
    };
    let input = scaling(stack.layers.first());
    let output = scaling(stack.layers.last()).filter(|_| stack.layers.len() > 1);
    let range = usize::from(input.is_some())..stack.layers.len() - usize::from(output.is_some());
    let biases = stack.biases.as_ref().map(|b| crate::bias::RowBiases {
        layers: b.layers[range.clone()].to_vec(),
        errors: b.errors[range.clone()].to_vec(),
    });
    (input, Stack::new(stack.layers[range].to_vec(), biases), output)
}

/// Inverts every row of `y` through all layers.
fn invert_network(stack: &Stack<'_, f64>, y: &[f64], options: &InverseOptions) -> Inverse {
    let n = stack.n;
    let rows = y.len() / n;
    let bounds = Proved::product(stack.layers.iter().map(|l| l.bounds()));
    let block = match &options.method {
        // A Newton block is worked through in sub-blocks of Jacobians; it only has to feed the threads.
        Method::Auto | Method::Newton(_) => BLOCK_ROWS.min(rows.div_ceil(4 * parallel::threads()).max(1)),
        _ => BLOCK_ROWS,
    };
    let parts = parallel::map_chunks(rows, block, |range| {
        let slice = range.start * n..range.end * n;
        let start = options.start.as_ref().map(|x| &x[slice.clone()]);
        invert_block(&stack.rows(range), &y[slice], start, bounds, options)
    });
    let mut x = Vec::with_capacity(y.len());
    let mut reports = Vec::with_capacity(rows);
    for (row, y) in parts.into_iter().flatten().zip(y.chunks_exact(n)) {
        // A solver that met infinities has nothing to say: its last point is no better than any other.
        if row.x.iter().chain(y).any(|v| !v.is_finite()) || row.report.error_bound.is_infinite() {
            x.extend(std::iter::repeat_n(f64::NAN, n));
            reports.push(RowReport {
                iterations: row.report.iterations,
                trace: row.report.trace,
                ..RowReport::out_of_range()
            });
            continue;
        }
        x.extend_from_slice(&row.x);
        let mut report = row.report;
        // The error bound is the residual, with its rounding, over μ.
        report.residual_bound = (report.error_bound * bounds.mu() * (1.0 + 1e-15)).next_up();
        reports.push(report);
    }
    Inverse { x, rows: reports }
}

impl RowReport {
    fn out_of_range() -> Self {
        RowReport {
            status: Status::OutOfRange,
            iterations: 0,
            residual: f64::INFINITY,
            residual_bound: f64::INFINITY,
            error_bound: f64::INFINITY,
            trace: Vec::new(),
        }
    }
}

fn invert_block(
    stack: &Stack<'_, f64>,
    y: &[f64],
    start: Option<&[f64]>,
    bounds: Proved,
    options: &InverseOptions,
) -> Vec<RowState> {
    let n = stack.n;
    let rows = y.len() / n;
    if let [LayerRef::MonLip(layer)] = stack.layers[..] {
        // A single layer's certificate is the whole certificate.
        let goal = Goal {
            mu: bounds.mu(),
            tolerance: options.tolerance,
            limit: options.limit(),
            trace: options.trace,
            layer: 0,
        };
        return solve_layer(layer, stack, y, start, goal, options);
    }
    let starts = start.map(|start| layer_inputs(stack, start));
    let mut target = y.to_vec();
    let mut iterations = vec![0; rows];
    let mut traces: Vec<Vec<TracePoint>> = vec![Vec::new(); rows];
    let mut statuses = vec![Status::Converged; rows];
    let monotone = stack
        .layers
        .iter()
        .filter(|l| matches!(l, LayerRef::MonLip(_)))
        .count()
        .max(1);
    // Residual ρ_k at layer k reaches the output enlarged by the later ν's at most: share the tolerance out so that
    // the whole network's ‖G(x̂) − y‖/μ meets it.
    let mut later_nu = 1.0;
    for (k, layer) in stack.layers.iter().enumerate().rev() {
        match layer {
            LayerRef::Orthogonal(l) => {
                let bias = stack.bias(k);
                for j in 0..rows {
                    invert_orthogonal(l, &mut target[j * n..(j + 1) * n], bias.column(j));
                }
            }
            LayerRef::Scaling(l) => {
                let bias = stack.bias(k);
                for j in 0..rows {
                    let row = &mut target[j * n..(j + 1) * n];
                    for (i, (value, shift)) in row.iter_mut().zip(bias.column(j)).enumerate() {
                        *value = (*value - shift) / l.scale()[i];
                    }
                }
            }
            LayerRef::MonLip(l) => {
                let single = single_layer(stack, k);
                let mu = l.bounds().mu();
                let tolerance = 0.5 * options.tolerance * bounds.mu() / (monotone as f64 * later_nu) / mu;
                let goal = Goal {
                    mu,
                    tolerance,
                    limit: options.limit(),
                    trace: options.trace,
                    layer: k,
                };
                let start = starts.as_ref().map(|s| s[k].as_slice());
                let solved = solve_layer(l, &single, &target, start, goal, options);
                for (j, row) in solved.into_iter().enumerate() {
                    target[j * n..(j + 1) * n].copy_from_slice(&row.x);
                    iterations[j] += row.report.iterations;
                    statuses[j] = worse(statuses[j], row.report.status);
                    traces[j].extend(row.report.trace);
                }
            }
        }
        later_nu *= layer.bounds().nu();
    }

    // The whole network's bound, with Newton steps on the whole network where the method is Newton's and rounding in
    // the layers left something to do.
    let goal = Goal {
        mu: bounds.mu(),
        tolerance: options.tolerance,
        limit: match options.method {
            Method::Auto | Method::Newton(_) => 10,
            _ => 0,
        },
        trace: false,
        layer: 0,
    };
    let newton = match &options.method {
        Method::Newton(newton) => *newton,
        _ => Newton::default(),
    };
    let mut solved = newton::solve(stack, y, &target, goal, &newton);
    for (j, row) in solved.iter_mut().enumerate() {
        row.report.iterations += iterations[j];
        row.report.trace = std::mem::take(&mut traces[j]);
        if row.report.status != Status::Converged {
            row.report.status = match statuses[j] {
                Status::Converged => Status::PrecisionLimit,
                other => other,
            };
        }
    }
    solved
}

/// The less favourable of two endings.
fn worse(a: Status, b: Status) -> Status {
    let rank = |s| match s {
        Status::Converged => 0,
        Status::PrecisionLimit => 1,
        Status::MaxIterations => 2,
        Status::Stalled => 3,
        Status::OutOfRange => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// One layer of a stack as a stack of its own.
fn single_layer<'a>(stack: &Stack<'a, f64>, k: usize) -> Stack<'a, f64> {
    let biases = stack.biases.as_ref().map(|b| crate::bias::RowBiases {
        layers: vec![b.layers[k].clone()],
        errors: vec![b.errors[k].clone()],
    });
    Stack::new(vec![stack.layers[k]], biases)
}

/// Inputs of every layer when the network is evaluated at `x`.
fn layer_inputs(stack: &Stack<'_, f64>, x: &[f64]) -> Vec<Vec<f64>> {
    let rows = x.len() / stack.n;
    let mut inputs = Vec::with_capacity(stack.layers.len());
    let mut at = x.to_vec();
    for k in 0..stack.layers.len() {
        inputs.push(at.clone());
        single_layer(stack, k).forward_block(&mut at, rows, &mut Workspace::default());
    }
    inputs
}

/// `x = P⁻¹(y − q)` in place: the transpose, refined for what rounding left of orthogonality.
fn invert_orthogonal(layer: &Orthogonal<f64>, y: &mut [f64], bias: &[f64]) {
    let n = y.len();
    let p = layer.matrix();
    let w = faer::Col::<f64>::from_fn(n, |i| y[i] - bias[i]);
    let mut x = p.transpose() * &w;
    // Each round multiplies the error by ‖PᵀP − I‖: two rounds for a rounded orthogonal matrix, more for a poor one.
    let mut last = f64::INFINITY;
    for _ in 0..60 {
        let residual = &w - p * &x;
        let size = residual.norm_l2();
        if size >= 0.5 * last && size <= 1e-12 * w.norm_l2() || size == 0.0 {
            break;
        }
        last = size;
        x += p.transpose() * residual;
    }
    for i in 0..n {
        y[i] = x[i];
    }
}

fn solve_layer(
    layer: &MonLip<f64>,
    single: &Stack<'_, f64>,
    y: &[f64],
    start: Option<&[f64]>,
    goal: Goal,
    options: &InverseOptions,
) -> Vec<RowState> {
    let guess = match start {
        Some(start) => start.to_vec(),
        None => first_guess(layer, single, y),
    };
    match &options.method {
        Method::Newton(newton) => newton::solve(single, y, &guess, goal, newton),
        Method::Auto => auto(layer, single, y, &guess, goal, &Newton::default()),
        method => match method.first_order() {
            Some(method) => drive::solve(method, layer, single, y, &guess, goal),
            None => Vec::new(),
        },
    }
}

/// Newton, and for the rows it gave up on a spell of another method from where it stopped, in turns, within the limit
/// on iterations of all of them together: the path through the linear pieces where the activation has a kink, else,
/// and where that gained nothing, Douglas–Rachford.
///
/// Every turn has to gain something: [`FRUITLESS`] turns without end it. Numbers out of range end it at once.
fn auto(
    layer: &MonLip<f64>,
    single: &Stack<'_, f64>,
    y: &[f64],
    guess: &[f64],
    goal: Goal,
    newton: &Newton,
) -> Vec<RowState> {
    let n = single.n;
    let newton_goal = |left: usize| Goal {
        limit: NEWTON_LIMIT.min(left),
        ..goal
    };
    let mut solved = newton::solve(single, y, guess, newton_goal(goal.limit), newton);
    for (j, state) in solved.iter_mut().enumerate() {
        let row = single.rows(j..j + 1);
        let target = &y[j * n..(j + 1) * n];
        let (mut spell, mut fruitless) = (500, 0);
        while matches!(state.report.status, Status::Stalled | Status::MaxIterations) {
            let (before, bound) = (state.report.iterations, state.report.error_bound);
            if bound.is_infinite() {
                // Out of range, which no other method changes.
                break;
            }
            let left = goal.limit.saturating_sub(before);
            if left == 0 {
                state.report.status = Status::MaxIterations;
                break;
            }
            // A piece costs as much as n steps of a splitting method.
            let kinked = layer.activation().is_homogeneous() && fruitless == 0 && n <= newton.krylov_above;
            let next = if kinked {
                let spelled = Goal {
                    limit: left.min(spell / 5),
                    ..goal
                };
                path::follow(layer, &row, target, &state.x, spelled)
            } else {
                let spelled = Goal {
                    limit: left.min(spell),
                    ..goal
                };
                let method = DouglasRachford::default();
                drive::solve(&method, layer, &row, target, &state.x, spelled).remove(0)
            };
            state.go_on(next);
            let left = goal.limit.saturating_sub(state.report.iterations);
            if state.report.status != Status::Converged && left > 0 {
                let next = newton::solve(&row, target, &state.x, newton_goal(left), newton).remove(0);
                state.go_on(next);
            }
            let gained = state.report.error_bound < 0.9 * bound;
            fruitless = if gained { 0 } else { fruitless + 1 };
            if state.report.iterations == before || fruitless == FRUITLESS {
                break;
            }
            spell *= 4;
        }
    }
    solved
}

/// Turns of `Auto` that may go by without a tenth of the error gained.
const FRUITLESS: usize = 3;

/// Newton steps before `Auto` tries something else.
const NEWTON_LIMIT: usize = 100;

impl RowState {
    /// Takes over what a further solve from this state came to, unless it is worse.
    fn go_on(&mut self, next: RowState) {
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

/// `x = (y − F(0))·2/(μ+ν)`: exact for the middle slope.
fn first_guess(layer: &MonLip<f64>, single: &Stack<'_, f64>, y: &[f64]) -> Vec<f64> {
    let rows = y.len() / single.n;
    let mut at = vec![0.0; y.len()];
    single.forward_block(&mut at, rows, &mut Workspace::default());
    let slope = 0.5 * (layer.design().mu() + layer.design().nu());
    y.iter().zip(&at).map(|(y, f)| (y - f) / slope).collect()
}

/// Certifies one row as well as it can be: the plain evaluation's numbers are given, the accurate one is made if
/// rounding is all that stands in the way. `reach` says how near the tolerance that has to be: a factor of the
/// tolerance, and one of the rounding error itself. Returns the residual to go on with, its norm, the bound, and
/// whether the residual is the accurate one.
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
    let (sharp, sharp_error) = rounding::accurate_residual(&stack.rows(row..row + 1), x, y);
    let sharp_size = norm(&sharp);
    let sharp_bound = goal.bound(&sharp, sharp_error);
    (sharp, sharp_size, sharp_bound.min(bound), true)
}

/// `J(x)⁻ᵀ w` for every row.
pub(crate) fn inverse_vjp(stack: &Stack<'_, f64>, x: &[f64], w: &[f64]) -> Result<Vec<f64>> {
    let n = stack.n;
    let rows = check_batch("x", x, n)?;
    check_rows("cotangent", w, rows, n)?;
    let parts = parallel::map_chunks(rows, 16, |range| {
        let mut out = Vec::with_capacity(range.len() * n);
        for j in range {
            let row = stack.rows(j..j + 1);
            let x = &x[j * n..(j + 1) * n];
            let w = &w[j * n..(j + 1) * n];
            out.extend(newton::linear_solve(
                &row,
                x,
                w,
                Direction::Reverse,
                &Newton::default(),
                1e-12,
            ));
        }
        out
    });
    Ok(parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::bounds::Bounds;
    use crate::monlip::MonLipFree;
    use crate::random::Rng;

    #[test]
    fn auto_still_arrives_when_newton_gives_up_at_once() {
        for distortion in [5.0, 1e3, 1e6] {
            let bounds = Bounds::from_parts(None, None, Some(distortion)).unwrap();
            let mut rng = Rng::new(21);
            let free = MonLipFree::random(5, &[16, 12, 16], bounds, Activation::Relu, 0.5, &mut rng).unwrap();
            let layer = MonLip::<f64>::from_free(&free).unwrap();
            let single = Stack::of(&layer);
            let x = rng.normals(5 * 4);
            let y = layer.forward(&x).unwrap();
            // A line search that may not halve, from far away: most is left to the method behind it.
            let goal = Goal {
                mu: layer.bounds().mu(),
                tolerance: 1e-8,
                limit: 100_000,
                trace: false,
                layer: 0,
            };
            let guess = vec![1e3; y.len()];
            let newton = Newton {
                halvings: 0,
                ..Default::default()
            };
            for row in auto(&layer, &single, &y, &guess, goal, &newton) {
                assert_eq!(
                    row.report.status,
                    Status::Converged,
                    "distortion {distortion}: {:?}",
                    row.report
                );
                assert!(row.report.iterations > 0);
            }
        }
    }

    #[test]
    fn krylov_and_dense_newton_agree() {
        let mut rng = Rng::new(22);
        let bounds = Bounds::new(0.1, 10.0).unwrap();
        let free = MonLipFree::random(30, &[40, 40], bounds, Activation::Tanh, 0.5, &mut rng).unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let y = rng.normals(30 * 3);
        let dense = layer
            .inverse(
                &y,
                &InverseOptions::with_method(Method::Newton(Newton::default())),
            )
            .unwrap();
        let krylov = Newton {
            krylov_above: 0,
            ..Default::default()
        };
        let krylov = layer
            .inverse(&y, &InverseOptions::with_method(Method::Newton(krylov)))
            .unwrap();
        assert!(dense.converged() && krylov.converged());
        let difference: Vec<f64> = dense.x.iter().zip(&krylov.x).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) <= dense.max_error_bound() * 3.0 + krylov.max_error_bound() * 3.0);
    }

    #[test]
    fn a_step_size_out_of_range_is_reported_and_bounded_not_hidden() {
        let mut rng = Rng::new(23);
        let bounds = Bounds::new(0.1, 10.0).unwrap();
        let free = MonLipFree::random(4, &[16, 16], bounds, Activation::Relu, 0.5, &mut rng).unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let x = rng.normals(4);
        let y = layer.forward(&x).unwrap();
        // The published default, α = 1, is a hundred times too long here.
        let method = Method::DavisYin(DavisYin {
            alpha: Some(1.0),
            relaxation: 1.0,
        });
        let options = InverseOptions {
            max_iterations: Some(2_000),
            ..InverseOptions::with_method(method)
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        assert_ne!(inverse.rows[0].status, Status::Converged);
        let distance = norm(&inverse.x.iter().zip(&x).map(|(a, b)| a - b).collect::<Vec<_>>());
        assert!(distance <= inverse.rows[0].error_bound);
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let mut rng = Rng::new(24);
        let bounds = Bounds::new(0.5, 2.0).unwrap();
        let free = MonLipFree::random(2, &[4], bounds, Activation::Relu, 0.5, &mut rng).unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let options = InverseOptions::default;
        for bad in [
            InverseOptions {
                tolerance: f64::NAN,
                ..options()
            },
            InverseOptions {
                tolerance: -1.0,
                ..options()
            },
            InverseOptions {
                max_iterations: Some(0),
                ..options()
            },
            InverseOptions {
                start: Some(vec![0.0; 3]),
                ..options()
            },
            InverseOptions::with_method(Method::DavisYin(DavisYin {
                alpha: Some(0.0),
                relaxation: 1.0,
            })),
            InverseOptions::with_method(Method::DouglasRachford(DouglasRachford { alpha: f64::NAN })),
            InverseOptions::with_method(Method::ForwardStep(ForwardStep { step: Some(-1.0) })),
        ] {
            assert!(layer.inverse(&[0.0, 0.0], &bad).is_err(), "{bad:?}");
        }
        assert!(layer.inverse(&[0.0, f64::NAN], &options()).is_err());
        assert!(layer.inverse(&[0.0; 3], &options()).is_err());
        assert!(layer.inverse(&[], &options()).unwrap().rows.is_empty());
    }
}
