//! Methods of forward steps: the forward step method, forward–backward and forward–backward–forward
//! splitting.

use super::first_order::{HiddenState, InverseMethod, Iteration, LayerProblem, check_step, swap_columns};
use crate::base::error::Result;
use crate::layers::monotone::Monotone;

/// The forward step method `x ← x − s(F(x) − y)` (Ryu and Boyd 2016).
///
/// Requires nothing but monotonicity and Lipschitzness. With the default `s = μ/ν²` the error falls
/// by at least `√(1 − (μ/ν)²)` a step; converges for `0 < s < 2μ/ν²`.
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
        let bounds = problem.layer.proof().proved();
        Box::new(ForwardStepState {
            step: self.step.unwrap_or(bounds.mu() / (bounds.nu() * bounds.nu())),
            n: problem.layer.size(),
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
fn smooth_lipschitz(layer: &dyn Monotone) -> f64 {
    let norms = layer.weight_norms();
    let v = norms.v2.iter().copied().fold(0.0, f64::max);
    1.0 + v + layer.formula().gap() / layer.formula().mu() * norms.s2 * norms.s2
}

/// Forward–backward splitting `z ← prox^α(z − αÂz)` with `Â = A + C` (Ryu and Boyd 2016).
///
/// Requires `Â` strongly monotone, with `θ ≤ λmin(I − (V+Vᵀ)/2)`: converges for `0 < α < 2θ/L²`, `L
/// = ‖Â‖`. The default is `θ/L²`; where no θ > 0 is found it is `1/(2L)`, without a proof of
/// convergence.
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
            match problem.layer.strong_convexity() {
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

/// Tseng's forward–backward–forward splitting (Tseng 2000): `z̄ = prox^α(z − αÂz)`, `z ← z̄ − α(Âz̄
/// − Âz)`.
///
/// Requires only that `Â` is monotone and Lipschitz, which it always is: converges for `0 < α <
/// 1/L`, `L = ‖Â‖`. The default is `0.99/L`.
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
        let HiddenState { u, z, .. } = &mut self.state;
        for i in 0..len {
            u[i] = z[i] - alpha * self.operator[i];
        }
        self.state.prox(active);
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
