//! First-order methods: forward step and operator splittings, over blocks of rows that shrink as rows finish.
//!
//! With `b_z = (√(2γ)/μ)S(y − b_y) + b̂`, the hidden state of `x = F⁻¹(y)` is the zero of `A + B + C` where
//! `A(z) = (I − V)z − b_z`, `B = ∂f` with `prox_f^1 = σ̂`, `C(z) = (γ/μ)SSᵀz`; then `x = (y − b_y − √(γ/2)Sᵀz)/μ`.
//!
//! `b_z` and `C(z)` are both of size τ and nearly cancel, so neither is ever formed: with `x(z)` as above,
//! `b_z − C(z) = √(2γ)S x(z) + b̂`, which is exact algebra, harmless in rounding, and leaves `x(z)` as a by-product.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use super::{Goal, RowReport, RowState, Status, TracePoint, certify_row};
use crate::activation::Activation;
use crate::bias::Bias;
use crate::error::{Error, Result};
use crate::map::{BiLipschitz, Stack};
use crate::monlip::MonLip;
use crate::rounding::{EvaluateBuffers, evaluate_block, norm};

/// A first-order method for inverting one monotone layer.
///
/// Each states in its documentation what it requires of the layer and where it comes from.
pub trait InverseMethod: std::fmt::Debug + Sync {
    /// Checks the settings.
    ///
    /// # Errors
    /// On values out of range.
    fn check(&self) -> Result<()>;

    /// Prepares the iteration for a block of rows, one column a row.
    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a>;
}

/// The state of an iteration over a block of rows; the first `active` columns are those still being solved.
pub trait Iteration {
    /// One step for the first `active` columns. `residual` is `F(x) − y` of the last candidate, `n` numbers a column,
    /// fresh only if [`needs_residual`](Self::needs_residual).
    fn step(&mut self, active: usize, residual: &[f64]);

    /// The x of the current state for the first `active` columns, `n` numbers a column.
    fn candidate(&mut self, active: usize, x: &mut [f64]);

    /// Exchanges two columns.
    fn swap(&mut self, a: usize, b: usize);

    /// Whether [`step`](Self::step) uses the residual.
    fn needs_residual(&self) -> bool {
        false
    }
}

/// One monotone layer, the right-hand sides of a block of rows, and where to start.
pub struct LayerProblem<'a> {
    layer: &'a MonLip<f64>,
    bias: Bias<'a, f64>,
    y: &'a [f64],
    start: &'a [f64],
}

/// The relaxation λ and the step α, checked.
fn check_step(name: &'static str, value: Option<f64>) -> Result<()> {
    match value {
        Some(v) if !(v > 0.0 && v.is_finite()) => Err(Error::setting(name, v, "must be positive and finite")),
        _ => Ok(()),
    }
}

/// Davis–Yin three-operator splitting (Davis and Yin 2017; the paper's equation (9)).
///
/// `z½ = prox^α(u)`, `z = R_A(2z½ − u − αCz½)` by forward substitution down the layers, `u ← u + λ(z − z½)`.
/// Converges for `0 < α < 2μ/(γ‖S‖²)` and `0 < λ < 2 − αγ‖S‖²/(2μ)`; the paper's range `α < μ/γ` lies inside.
///
/// | setting | default |
/// |---|---|
/// | `alpha` | 0.99 of the largest that is proved to converge, from a proved bound on ‖S‖ |
/// | `relaxation` | 1 |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DavisYin {
    /// The step α; `None` chooses it from the layer.
    pub alpha: Option<f64>,
    /// The relaxation λ.
    pub relaxation: f64,
}

impl Default for DavisYin {
    fn default() -> Self {
        DavisYin {
            alpha: None,
            relaxation: 1.0,
        }
    }
}

impl DavisYin {
    /// The step used for a layer.
    pub fn step_for(&self, layer: &MonLip<f64>) -> f64 {
        self.alpha.unwrap_or_else(|| {
            let s = layer.norms().s2.max(1e-3);
            0.99 * 2.0 * layer.design().mu() / (layer.design().gap() * s * s)
        })
    }
}

impl InverseMethod for DavisYin {
    fn check(&self) -> Result<()> {
        check_step("alpha", self.alpha)?;
        check_step("relaxation", Some(self.relaxation))
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        let alpha = self.step_for(problem.layer);
        let state = HiddenState::new(problem, alpha);
        Box::new(DavisYinState {
            relaxation: self.relaxation,
            state,
        })
    }
}

struct DavisYinState<'a> {
    relaxation: f64,
    state: HiddenState<'a>,
}

impl Iteration for DavisYinState<'_> {
    fn step(&mut self, active: usize, _residual: &[f64]) {
        let relaxation = self.relaxation;
        let len = self.state.m * active;
        let alpha = self.state.alpha;
        // z½ = prox(u) and x(z½), which is the candidate.
        prox_columns(
            self.state.layer,
            alpha,
            &self.state.u[..len],
            &mut self.state.z[..len],
        );
        self.state.update_x(active);
        let HiddenState {
            layer,
            u,
            z,
            x,
            bias,
            work,
            n,
            m,
            ..
        } = &mut self.state;
        let (n, m) = (*n, *m);
        let w = &*layer.weights;
        let share = alpha / (1.0 + alpha);
        let (gain_in, _) = layer.gains();
        let x = MatRef::from_column_major_slice(&x[..n * active], n, active);
        // Down the layers: z_k = (2z½_k − u_k + α(b̂_k + √(2γ)S_k x(z½) + V_k z_{k−1}))/(1+α).
        for (k, &width) in w.units.iter().enumerate() {
            let offset = w.offsets[k];
            let [current, previous] = work;
            let block = &mut current[..width * active];
            combine(block, Rows { width, offset, m }, z, u, bias.view(m), alpha);
            let mut next = MatMut::from_column_major_slice_mut(block, width, active);
            matmul(
                next.as_mut(),
                Accum::Add,
                w.s.as_ref().subrows(offset, width),
                x,
                share * gain_in,
                Par::Seq,
            );
            if k > 0 {
                let before = w.units[k - 1];
                let z_before = MatRef::from_column_major_slice(&previous[..before * active], before, active);
                matmul(
                    next.as_mut(),
                    Accum::Add,
                    w.v[k - 1].as_ref(),
                    z_before,
                    share,
                    Par::Seq,
                );
            }
            relax(
                &current[..width * active],
                Rows { width, offset, m },
                z,
                u,
                relaxation,
            );
            work.swap(0, 1);
        }
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        self.state.last_x(active, x);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.state.swap(a, b);
    }
}

/// The rows of one hidden layer among all `m`.
#[derive(Clone, Copy)]
struct Rows {
    width: usize,
    offset: usize,
    m: usize,
}

/// `block ← (2z − u + αb̂)/(1+α)` on the rows of one hidden layer.
fn combine(block: &mut [f64], rows: Rows, z: &[f64], u: &[f64], bias: Bias<'_, f64>, alpha: f64) {
    let Rows { width, offset, m } = rows;
    let inverse = 1.0 / (1.0 + alpha);
    pulp::Arch::new().dispatch(|| {
        for (j, out) in block.chunks_exact_mut(width).enumerate() {
            let at = j * m + offset;
            let (z, u) = (&z[at..at + width], &u[at..at + width]);
            let b = &bias.column(j)[offset..offset + width];
            for i in 0..width {
                out[i] = (2.0 * z[i] - u[i] + alpha * b[i]) * inverse;
            }
        }
    });
}

/// `u ← u + λ(block − z)` on the rows of one hidden layer.
fn relax(block: &[f64], rows: Rows, z: &[f64], u: &mut [f64], relaxation: f64) {
    let Rows { width, offset, m } = rows;
    pulp::Arch::new().dispatch(|| {
        for (j, block) in block.chunks_exact(width).enumerate() {
            let at = j * m + offset;
            let (z, u) = (&z[at..at + width], &mut u[at..at + width]);
            for i in 0..width {
                u[i] += relaxation * (block[i] - z[i]);
            }
        }
    });
}

/// `z ← prox^α(u)` for whole columns of `m` hidden units.
fn prox_columns(layer: &MonLip<f64>, alpha: f64, u: &[f64], z: &mut [f64]) {
    let w = &*layer.weights;
    match (w.activation, &w.psi) {
        (Activation::Relu, _) => pulp::Arch::new().dispatch(|| {
            for (z, u) in z.iter_mut().zip(u) {
                *z = if *u > 0.0 { *u } else { 0.0 };
            }
        }),
        (activation, None) => {
            for (z, u) in z.iter_mut().zip(u) {
                *z = activation.prox(alpha, *u);
            }
        }
        (activation, Some(psi)) => {
            for (z, u) in z.chunks_exact_mut(psi.len()).zip(u.chunks_exact(psi.len())) {
                for i in 0..psi.len() {
                    z[i] = activation.prox_scaled(alpha, u[i], Some(psi[i]));
                }
            }
        }
    }
}

/// The hidden bias of a block's columns, which move about as rows finish.
enum HiddenBias<'a> {
    Shared(&'a [f64]),
    PerRow(Vec<f64>),
}

impl HiddenBias<'_> {
    fn view(&self, m: usize) -> Bias<'_, f64> {
        match self {
            HiddenBias::Shared(bias) => Bias::Shared(bias),
            HiddenBias::PerRow(bias) => Bias::PerRow(bias, m),
        }
    }
}

/// What every method in the hidden state shares: `u`, `z` (`m` a column), `x(z)`, the right-hand side, and buffers.
struct HiddenState<'a> {
    layer: &'a MonLip<f64>,
    n: usize,
    m: usize,
    alpha: f64,
    bias: HiddenBias<'a>,
    /// `(y − b_y)/μ`, `n` a column.
    target: Vec<f64>,
    /// `x(z)` of the last step, `n` a column.
    x: Vec<f64>,
    u: Vec<f64>,
    z: Vec<f64>,
    work: [Vec<f64>; 2],
}

impl<'a> HiddenState<'a> {
    fn new(problem: LayerProblem<'a>, alpha: f64) -> Self {
        let layer = problem.layer;
        let w = &*layer.weights;
        let (n, m) = (w.n, w.s.nrows());
        let columns = problem.y.len() / n;
        let (mu, (gain_in, _)) = (w.design.mu(), layer.gains());
        let target = problem
            .y
            .chunks_exact(n)
            .flat_map(|y| y.iter().zip(&w.output_bias).map(|(y, b)| (y - b) / mu))
            .collect();
        // Start from the hidden state of the first guess: z = σ̂(v) and v − z ∈ ∂f(z), so prox^α(z + α(v − z)) = z.
        let mut u = vec![0.0; m * columns];
        let mut z = vec![0.0; m * columns];
        let x = MatRef::from_column_major_slice(problem.start, n, columns);
        for (k, &width) in w.units.iter().enumerate() {
            let offset = w.offsets[k];
            let mut pre = Mat::<f64>::zeros(width, columns);
            matmul(
                pre.as_mut(),
                Accum::Replace,
                w.s.as_ref().subrows(offset, width),
                x,
                gain_in,
                Par::Seq,
            );
            if k > 0 {
                let before = w.units[k - 1];
                let previous =
                    MatRef::from_column_major_slice(&z, m, columns).subrows(w.offsets[k - 1], before);
                matmul(
                    pre.as_mut(),
                    Accum::Add,
                    w.v[k - 1].as_ref(),
                    previous,
                    1.0,
                    Par::Seq,
                );
            }
            for j in 0..columns {
                let own = problem.bias.column(j);
                for i in 0..width {
                    let v = pre[(i, j)] + own[offset + i];
                    let psi = w.psi.as_ref().map_or(1.0, |psi| psi[offset + i]);
                    let value = psi * w.activation.value(v / psi);
                    z[j * m + offset + i] = value;
                    u[j * m + offset + i] = value + alpha * (v - value);
                }
            }
        }
        let widest = w.units.iter().copied().max().unwrap_or(0);
        HiddenState {
            layer,
            n,
            m,
            alpha,
            bias: match problem.bias {
                Bias::Shared(bias) => HiddenBias::Shared(bias),
                Bias::PerRow(bias, _) => HiddenBias::PerRow(bias.to_vec()),
            },
            target,
            x: problem.start.to_vec(),
            u,
            z,
            work: [vec![0.0; widest * columns], vec![0.0; widest * columns]],
        }
    }

    /// `x ← x(z) = (y − b_y − √(γ/2)Sᵀz)/μ`.
    fn update_x(&mut self, active: usize) {
        let (n, m) = (self.n, self.m);
        self.x[..n * active].copy_from_slice(&self.target[..n * active]);
        let w = &*self.layer.weights;
        let (_, gain_out) = self.layer.gains();
        matmul(
            MatMut::from_column_major_slice_mut(&mut self.x[..n * active], n, active),
            Accum::Add,
            w.s.transpose(),
            MatRef::from_column_major_slice(&self.z[..m * active], m, active),
            -gain_out / w.design.mu(),
            Par::Seq,
        );
    }

    fn last_x(&self, active: usize, x: &mut [f64]) {
        x[..self.n * active].copy_from_slice(&self.x[..self.n * active]);
    }

    fn swap(&mut self, a: usize, b: usize) {
        swap_columns(&mut self.u, self.m, a, b);
        swap_columns(&mut self.z, self.m, a, b);
        swap_columns(&mut self.x, self.n, a, b);
        swap_columns(&mut self.target, self.n, a, b);
        if let HiddenBias::PerRow(bias) = &mut self.bias {
            swap_columns(bias, self.m, a, b);
        }
    }

    /// `out ← Âz = z − Vz − b̂ − √(2γ)S x(z)`, the single-valued operator of the two-operator splittings; updates x.
    fn smooth_operator(&mut self, active: usize, out: &mut [f64]) {
        self.update_x(active);
        let w = &*self.layer.weights;
        let (n, m) = (self.n, self.m);
        let bias = self.bias.view(m);
        for j in 0..active {
            let b = bias.column(j);
            for i in 0..m {
                out[j * m + i] = self.z[j * m + i] - b[i];
            }
        }
        let z = MatRef::from_column_major_slice(&self.z[..m * active], m, active);
        let x = MatRef::from_column_major_slice(&self.x[..n * active], n, active);
        let mut out = MatMut::from_column_major_slice_mut(&mut out[..m * active], m, active);
        let (gain_in, _) = self.layer.gains();
        matmul(out.as_mut(), Accum::Add, w.s.as_ref(), x, -gain_in, Par::Seq);
        for (k, v) in w.v.iter().enumerate() {
            let (before, after) = (w.units[k], w.units[k + 1]);
            matmul(
                out.as_mut().subrows_mut(w.offsets[k + 1], after),
                Accum::Add,
                v.as_ref(),
                z.subrows(w.offsets[k], before),
                -1.0,
                Par::Seq,
            );
        }
    }
}

fn swap_columns(data: &mut [f64], size: usize, a: usize, b: usize) {
    if a != b {
        let (low, high) = (a.min(b), a.max(b));
        let (head, tail) = data.split_at_mut(high * size);
        head[low * size..(low + 1) * size].swap_with_slice(&mut tail[..size]);
    }
}

/// The forward step method `x ← x − s(F(x) − y)` (Ryu and Boyd 2016).
///
/// Requires nothing but monotonicity and Lipschitzness. With the default `s = μ/ν²` the error falls by at least
/// `√(1 − (μ/ν)²)` a step; converges for `0 < s < 2μ/ν²`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardStep {
    /// The step s; `None` takes `μ/ν²`.
    pub step: Option<f64>,
}

impl InverseMethod for ForwardStep {
    fn check(&self) -> Result<()> {
        check_step("step", self.step)
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        let bounds = problem.layer.bounds();
        Box::new(ForwardStepState {
            step: self.step.unwrap_or(bounds.mu() / (bounds.nu() * bounds.nu())),
            n: problem.layer.dim(),
            x: problem.start.to_vec(),
        })
    }
}

struct ForwardStepState {
    step: f64,
    n: usize,
    x: Vec<f64>,
}

impl Iteration for ForwardStepState {
    fn step(&mut self, active: usize, residual: &[f64]) {
        for (x, r) in self.x[..self.n * active].iter_mut().zip(residual) {
            *x -= self.step * r;
        }
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        x[..self.n * active].copy_from_slice(&self.x[..self.n * active]);
    }

    fn swap(&mut self, a: usize, b: usize) {
        swap_columns(&mut self.x, self.n, a, b);
    }

    fn needs_residual(&self) -> bool {
        true
    }
}

/// `‖I − V + (γ/μ)SSᵀ‖`, bounded from above.
fn smooth_lipschitz(layer: &MonLip<f64>) -> f64 {
    let norms = layer.norms();
    let v = norms.v2.iter().copied().fold(0.0, f64::max);
    1.0 + v + layer.design().gap() / layer.design().mu() * norms.s2 * norms.s2
}

/// Forward–backward splitting `z ← prox^α(z − αÂz)` with `Â = A + C` (Ryu and Boyd 2016).
///
/// Requires `Â` strongly monotone, with `θ ≤ λmin(I − (V+Vᵀ)/2)`: converges for `0 < α < 2θ/L²`, `L = ‖Â‖`. The default
/// is `θ/L²`; where no θ > 0 is found it is `1/(2L)`, without a proof of convergence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardBackward {
    /// The step α; `None` chooses it from the layer.
    pub alpha: Option<f64>,
}

impl InverseMethod for ForwardBackward {
    fn check(&self) -> Result<()> {
        check_step("alpha", self.alpha)
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        let alpha = self.alpha.unwrap_or_else(|| {
            let l = smooth_lipschitz(problem.layer);
            match problem.layer.strong_monotonicity() {
                0.0 => 0.5 / l,
                theta => theta / (l * l),
            }
        });
        let state = HiddenState::new(problem, alpha);
        let operator = vec![0.0; state.z.len()];
        Box::new(ForwardBackwardState {
            state,
            operator,
            second: None,
        })
    }
}

/// Tseng's forward–backward–forward splitting (Tseng 2000): `z̄ = prox^α(z − αÂz)`, `z ← z̄ − α(Âz̄ − Âz)`.
///
/// Requires only that `Â` is monotone and Lipschitz, which it always is: converges for `0 < α < 1/L`, `L = ‖Â‖`.
/// The default is `0.99/L`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardBackwardForward {
    /// The step α; `None` takes `0.99/L`.
    pub alpha: Option<f64>,
}

impl InverseMethod for ForwardBackwardForward {
    fn check(&self) -> Result<()> {
        check_step("alpha", self.alpha)
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        let alpha = self
            .alpha
            .unwrap_or_else(|| 0.99 / smooth_lipschitz(problem.layer));
        let state = HiddenState::new(problem, alpha);
        let operator = vec![0.0; state.z.len()];
        Box::new(ForwardBackwardState {
            second: Some(operator.clone()),
            state,
            operator,
        })
    }
}

struct ForwardBackwardState<'a> {
    state: HiddenState<'a>,
    operator: Vec<f64>,
    /// Room for the second forward step of Tseng's method.
    second: Option<Vec<f64>>,
}

impl Iteration for ForwardBackwardState<'_> {
    fn step(&mut self, active: usize, _residual: &[f64]) {
        let len = self.state.m * active;
        let alpha = self.state.alpha;
        self.state.smooth_operator(active, &mut self.operator);
        let HiddenState { u, z, layer, .. } = &mut self.state;
        for i in 0..len {
            u[i] = z[i] - alpha * self.operator[i];
        }
        prox_columns(layer, alpha, &u[..len], &mut z[..len]);
        if let Some(second) = &mut self.second {
            self.state.smooth_operator(active, second);
            let z = &mut self.state.z;
            for i in 0..len {
                z[i] -= alpha * (second[i] - self.operator[i]);
            }
        }
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        self.state.update_x(active);
        self.state.last_x(active, x);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.state.swap(a, b);
    }
}

/// Peaceman–Rachford splitting `u ← C_Â C_B u` (Ryu and Boyd 2016), twice the step of [`DouglasRachford`].
///
/// Requires strong monotonicity for a proof of convergence; in practice fast where it converges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeacemanRachford {
    /// The step α; default 1, for which the proximal operator is the activation itself.
    pub alpha: f64,
}

impl Default for PeacemanRachford {
    fn default() -> Self {
        PeacemanRachford { alpha: 1.0 }
    }
}

impl InverseMethod for PeacemanRachford {
    fn check(&self) -> Result<()> {
        check_step("alpha", Some(self.alpha))
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        Box::new(ResolventState::new(problem, self.alpha, 2.0))
    }
}

/// Douglas–Rachford splitting `u ← ½u + ½C_Â C_B u` (Ryu and Boyd 2016).
///
/// Converges for every `α > 0`, whatever the distortion. The resolvent `w` of `Â = I − V + (γ/μ)SSᵀ` is dense, but with
/// `x` as a second unknown it is a block-bidiagonal solve and an `n×n` one: with `K = (1+α)I − αV`, `q = K⁻¹(v + αb̂)` and
/// `W = K⁻¹S`, `(μI + αγSᵀW)x = y − b_y − √(γ/2)Sᵀq` and `w = q + α√(2γ)Wx`. A step costs no more than Davis–Yin's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DouglasRachford {
    /// The step α; default 1, for which the proximal operator is the activation itself.
    pub alpha: f64,
}

impl Default for DouglasRachford {
    fn default() -> Self {
        DouglasRachford { alpha: 1.0 }
    }
}

impl InverseMethod for DouglasRachford {
    fn check(&self) -> Result<()> {
        check_step("alpha", Some(self.alpha))
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        Box::new(ResolventState::new(problem, self.alpha, 1.0))
    }
}

struct ResolventState<'a> {
    state: HiddenState<'a>,
    relaxation: f64,
    /// `W = K⁻¹S` with `K = (1+α)I − αV`.
    solved: Mat<f64>,
    /// `(I + α(γ/μ)SᵀW)⁻¹`, the `n×n` system divided by μ.
    core: Mat<f64>,
    small: Vec<f64>,
    resolvent: Vec<f64>,
}

impl<'a> ResolventState<'a> {
    fn new(problem: LayerProblem<'a>, alpha: f64, relaxation: f64) -> Self {
        let state = HiddenState::new(problem, alpha);
        let w = &*state.layer.weights;
        let n = state.n;
        let mut solved = w.s.clone();
        substitute(state.layer, alpha, solved.as_mut());
        let mut system = Mat::<f64>::identity(n, n);
        let ratio = w.design.gap() / w.design.mu();
        matmul(
            system.as_mut(),
            Accum::Add,
            w.s.transpose(),
            solved.as_ref(),
            alpha * ratio,
            Par::Seq,
        );
        let core = system.partial_piv_lu().solve(Mat::<f64>::identity(n, n));
        ResolventState {
            relaxation,
            solved,
            core,
            small: vec![0.0; state.target.len()],
            resolvent: vec![0.0; state.z.len()],
            state,
        }
    }
}

/// `r ← K⁻¹r`, `K = (1+α)I − αV`, by forward substitution down the hidden layers.
fn substitute(layer: &MonLip<f64>, alpha: f64, mut r: MatMut<'_, f64>) {
    let w = &*layer.weights;
    let share = alpha / (1.0 + alpha);
    let inverse = 1.0 / (1.0 + alpha);
    for j in 0..r.ncols() {
        for v in r.as_mut().col_mut(j).iter_mut() {
            *v *= inverse;
        }
    }
    for (k, v) in w.v.iter().enumerate() {
        let (head, tail) = r.as_mut().split_at_row_mut(w.offsets[k + 1]);
        let before = head.as_ref().subrows(w.offsets[k], w.units[k]);
        let after = tail.subrows_mut(0, w.units[k + 1]);
        matmul(after, Accum::Add, v.as_ref(), before, share, Par::Seq);
    }
}

impl Iteration for ResolventState<'_> {
    fn step(&mut self, active: usize, _residual: &[f64]) {
        let (n, m, alpha) = (self.state.n, self.state.m, self.state.alpha);
        let len = m * active;
        let HiddenState {
            layer,
            u,
            z,
            x,
            bias,
            target,
            ..
        } = &mut self.state;
        let w = &*layer.weights;
        let (gain_in, gain_out) = layer.gains();
        prox_columns(layer, alpha, &u[..len], &mut z[..len]);
        let bias = bias.view(m);
        let r = &mut self.resolvent[..len];
        pulp::Arch::new().dispatch(|| {
            for (j, r) in r.chunks_exact_mut(m).enumerate() {
                let (z, u, b) = (&z[j * m..(j + 1) * m], &u[j * m..(j + 1) * m], bias.column(j));
                for i in 0..m {
                    r[i] = 2.0 * z[i] - u[i] + alpha * b[i];
                }
            }
        });
        let mut r = MatMut::from_column_major_slice_mut(r, m, active);
        substitute(layer, alpha, r.as_mut());
        let small = &mut self.small[..n * active];
        small.copy_from_slice(&target[..n * active]);
        let mut t = MatMut::from_column_major_slice_mut(small, n, active);
        matmul(
            t.as_mut(),
            Accum::Add,
            w.s.transpose(),
            r.as_ref(),
            -gain_out / w.design.mu(),
            Par::Seq,
        );
        let mut x = MatMut::from_column_major_slice_mut(&mut x[..n * active], n, active);
        matmul(
            x.as_mut(),
            Accum::Replace,
            self.core.as_ref(),
            t.as_ref(),
            1.0,
            Par::Seq,
        );
        matmul(
            r,
            Accum::Add,
            self.solved.as_ref(),
            x.as_ref(),
            alpha * gain_in,
            Par::Seq,
        );
        let (r, relaxation) = (&self.resolvent[..len], self.relaxation);
        pulp::Arch::new().dispatch(|| {
            for i in 0..len {
                u[i] += relaxation * (r[i] - z[i]);
            }
        });
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        self.state.last_x(active, x);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.state.swap(a, b);
    }
}

/// A residual this many times its start is divergence: a step size outside its range.
const GROWTH: f64 = 1e6;

/// Runs a first-order method on every row of the single-layer stack's batch, from `start`.
///
/// A certified error costs as much as a step, so it is computed only when the observed rate says that a row may be
/// done; rows that are done leave the block and cost nothing from then on.
pub(super) fn solve(
    method: &dyn InverseMethod,
    layer: &MonLip<f64>,
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
    let mut progress: Vec<Progress> = vec![Progress::default(); rows];
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
    /// Check again after so many steps.
    Continue(usize),
    End(Status),
}

/// The history of one row.
#[derive(Clone, Default)]
struct Progress {
    first: Option<f64>,
    last: Option<(usize, f64)>,
    best: Option<(f64, f64, Vec<f64>)>,
    /// When the residual last became smaller by 2 %, and to what.
    gained: Option<(usize, f64)>,
    trace: Vec<TracePoint>,
}

impl Progress {
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
        if !size.is_finite() || size > GROWTH * first {
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
        // 70 % of the way the observed linear rate predicts, at least 5 % and at most all of the steps done so far.
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
                error_bound: bound,
                trace: self.trace,
            },
        }
    }
}
