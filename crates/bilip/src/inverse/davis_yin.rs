//! Davis–Yin splitting, the paper's own method.

use faer::{MatMut, MatRef};

use super::first_order::{HiddenState, InverseMethod, Iteration, LayerProblem, check_step};
use crate::base::error::Result;
use crate::layers::monlip::MonLip;
use crate::layers::monotone::{Monotone, gains, substitute};

/// Davis–Yin three-operator splitting (Davis and Yin 2017; the paper's equation (9)).
///
/// `z½ = prox^α(u)`, `z = R_A(2z½ − u − αCz½)` by forward substitution down the layers, `u ← u +
/// λ(z − z½)`. Converges for `0 < α < 2μ/(γ‖S‖²)` and `0 < λ < 2 − αγ‖S‖²/(2μ)`; the paper's range
/// `α < μ/γ` is inside.
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
        self.step(layer)
    }

    fn step(&self, layer: &dyn Monotone) -> f64 {
        self.alpha.unwrap_or_else(|| {
            let s = layer.weight_norms().s2.max(1e-3);
            0.99 * 2.0 * layer.formula().mu() / (layer.formula().gap() * s * s)
        })
    }
}

impl InverseMethod for DavisYin {
    fn check(&self) -> Result<()> {
        check_step("alpha", self.alpha)?;
        check_step("relaxation", Some(self.relaxation))
    }

    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a> {
        let alpha = self.step(problem.layer);
        let state = HiddenState::new(problem, alpha);
        Box::new(DavisYinState {
            relaxation: self.relaxation,
            resolved: vec![0.0; state.z.len()],
            state,
        })
    }
}

struct DavisYinState<'a> {
    relaxation: f64,
    resolved: Vec<f64>,
    state: HiddenState<'a>,
}

impl Iteration for DavisYinState<'_> {
    fn step(&mut self, active: usize, _residual: &[f64]) {
        let state = &mut self.state;
        let (n, m, alpha) = (state.n, state.m, state.alpha);
        // z½ = prox(u) and x(z½), which is the candidate.
        state.prox(active);
        state.update_x(active);
        // z = R_A(2z½ − u − αCz½) = K⁻¹(2z½ − u + α(b̂ + √(2γ)S x(z½))), K = (1+α)I − αV.
        state.reflected(active, &mut self.resolved);
        let x = MatRef::from_column_major_slice(&state.x[..n * active], n, active);
        let mut z = MatMut::from_column_major_slice_mut(&mut self.resolved[..m * active], m, active);
        state.layer.add_s(alpha * gains(state.layer).0, x, z.as_mut());
        substitute(state.layer, alpha, z);
        state.relax(active, self.relaxation, &self.resolved);
    }

    fn candidate(&mut self, active: usize, x: &mut [f64]) {
        self.state.last_x(active, x);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.state.swap(a, b);
    }
}
