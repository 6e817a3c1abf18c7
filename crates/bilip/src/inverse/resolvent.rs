//! Peaceman–Rachford and Douglas–Rachford splitting, with the resolvent of the dense operator made
//! cheap.

use faer::{MatMut, MatRef};

use super::first_order::{HiddenState, InverseMethod, Iteration, LayerProblem, check_step};
use crate::base::error::Result;
use crate::layers::monotone::{Resolvent, gains, substitute};

/// Peaceman–Rachford splitting `u ← C_Â C_B u` (Ryu and Boyd 2016), twice the step of
/// [`DouglasRachford`].
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
/// Converges for every `α > 0`, whatever the distortion. The resolvent `w` of `Â = I − V +
/// (γ/μ)SSᵀ` is dense, but with `x` as a second unknown it is a block-bidiagonal solve and an `n×n`
/// one: with `K = (1+α)I − αV`, `q = K⁻¹(v + αb̂)` and `W = K⁻¹S`, `(μI + αγSᵀW)x = y − b_y −
/// √(γ/2)Sᵀq` and `w = q + α√(2γ)Wx`. A step costs no more than Davis–Yin's.
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
    resolvent: Box<dyn Resolvent + 'a>,
    small: Vec<f64>,
    resolved: Vec<f64>,
}

impl<'a> ResolventState<'a> {
    fn new(problem: LayerProblem<'a>, alpha: f64, relaxation: f64) -> Self {
        let state = HiddenState::new(problem, alpha);
        ResolventState {
            relaxation,
            resolvent: state.layer.resolvent(alpha),
            small: vec![0.0; state.target.len()],
            resolved: vec![0.0; state.z.len()],
            state,
        }
    }
}

impl Iteration for ResolventState<'_> {
    fn step(&mut self, active: usize, _residual: &[f64]) {
        let state = &mut self.state;
        let (n, m, alpha, layer) = (state.n, state.m, state.alpha, state.layer);
        let (gain_in, gain_out) = gains(layer);
        state.prox(active);
        state.reflected(active, &mut self.resolved);
        let mut r = MatMut::from_column_major_slice_mut(&mut self.resolved[..m * active], m, active);
        substitute(layer, alpha, r.as_mut());
        let small = &mut self.small[..n * active];
        small.copy_from_slice(&state.target[..n * active]);
        let mut t = MatMut::from_column_major_slice_mut(small, n, active);
        layer.add_s_transposed(-gain_out / layer.formula().mu(), r.as_ref(), t.as_mut());
        let x = &mut state.x[..n * active];
        self.resolvent
            .solve(t.as_ref(), MatMut::from_column_major_slice_mut(x, n, active));
        self.resolvent
            .add_w(alpha * gain_in, MatRef::from_column_major_slice(x, n, active), r);
        state.relax(active, self.relaxation, &self.resolved);
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        self.state.last_x(active, x);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.state.swap(a, b);
    }
}
