//! Peaceman–Rachford and Douglas–Rachford splitting, with the resolvent of the dense operator made cheap.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, Par};

use super::first_order::{HiddenState, InverseMethod, Iteration, LayerProblem, check_step, prox_columns};
use crate::error::Result;
use crate::monlip::MonLip;

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
