//! What the first-order methods share: their interface, and the hidden state that the splittings
//! iterate on.
//!
//! With `b_z = (√(2γ)/μ)S(y − b_y) + b̂`, the hidden state of `x = F⁻¹(y)` is the zero of `A + B +
//! C` where `A(z) = (I − V)z − b_z`, `B = ∂f` with `prox_f^1 = σ̂`, `C(z) = (γ/μ)SSᵀz`; then `x =
//! (y − b_y − √(γ/2)Sᵀz)/μ`.
//!
//! `b_z` and `C(z)` are both of size τ and nearly cancel, so neither is ever formed: with `x(z)` as
//! above, `b_z − C(z) = √(2γ)S x(z) + b̂`, which is exact algebra, harmless in rounding, and leaves
//! `x(z)` as a by-product.

use std::borrow::Cow;

use faer::{MatMut, MatRef};

use crate::base::error::{Error, Result};
use crate::layers::activation::Activation;
use crate::layers::bias::Bias;
use crate::layers::monotone::{Monotone, add_whole_v, gains, hidden, hidden_pass};

/// A first-order method for inverting one monotone layer.
///
/// Each states in its documentation what it requires of the layer and where it comes from.
pub trait InverseMethod: std::fmt::Debug + Sync {
    /// Checks the settings.
    ///
    /// # Errors
    /// On values out of range.
    fn check(&self) -> Result<()>;

    /// Prepares the iteration for a block of rows, one column per row.
    fn start<'a>(&self, problem: LayerProblem<'a>) -> Box<dyn Iteration + 'a>;
}

/// The state of an iteration over a block of rows; the first `active` columns are those still being
/// solved.
pub trait Iteration {
    /// One step for the first `active` columns. `residual` is `F(x) − y` of the last candidate, `n`
    /// numbers a column, fresh only if [`needs_residual`](Self::needs_residual).
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
    pub(super) layer: &'a dyn Monotone,
    pub(super) bias: Bias<'a, f64>,
    pub(super) y: &'a [f64],
    pub(super) start: &'a [f64],
}

/// The relaxation λ and the step α, checked.
pub(super) fn check_step(name: &'static str, value: Option<f64>) -> Result<()> {
    match value {
        Some(v) if !(v > 0.0 && v.is_finite()) => Err(Error::setting(name, v, "must be positive and finite")),
        _ => Ok(()),
    }
}

/// The hidden bias of a block's columns, which move about as rows finish.
pub(super) enum HiddenBias<'a> {
    Shared(Cow<'a, [f64]>),
    PerRow(Vec<f64>),
}

impl HiddenBias<'_> {
    pub(super) fn view(&self, m: usize) -> Bias<'_, f64> {
        match self {
            HiddenBias::Shared(bias) => Bias::Shared(bias),
            HiddenBias::PerRow(bias) => Bias::PerRow(bias, m),
        }
    }
}

/// What every method in the hidden state shares: `u`, `z` (`m` per column), `x(z)`, and the
/// right-hand side.
pub(super) struct HiddenState<'a> {
    pub(super) layer: &'a dyn Monotone,
    pub(super) n: usize,
    pub(super) m: usize,
    pub(super) alpha: f64,
    pub(super) bias: HiddenBias<'a>,
    psi: Option<Cow<'a, [f64]>>,
    /// `(y − b_y)/μ`, `n` per column.
    pub(super) target: Vec<f64>,
    /// `x(z)` of the last step, `n` per column.
    pub(super) x: Vec<f64>,
    pub(super) u: Vec<f64>,
    pub(super) z: Vec<f64>,
}

impl<'a> HiddenState<'a> {
    pub(super) fn new(problem: LayerProblem<'a>, alpha: f64) -> Self {
        let layer = problem.layer;
        let (n, m) = (layer.size(), hidden(layer));
        let columns = problem.y.len() / n;
        let (mu, sigma) = (layer.formula().mu(), layer.sigma());
        let shift = layer.output_shift();
        let target = problem
            .y
            .chunks_exact(n)
            .flat_map(|y| y.iter().zip(&*shift).map(|(y, b)| (y - b) / mu))
            .collect();
        let bias = match problem.bias {
            Bias::Shared(bias) => HiddenBias::Shared(layer.per_hidden_number(bias)),
            Bias::PerRow(bias, size) => HiddenBias::PerRow(
                bias.chunks_exact(size)
                    .flat_map(|row| layer.per_hidden_number(row).into_owned())
                    .collect(),
            ),
        };
        let psi = layer.scalings();
        // Start from the hidden state of the first guess: z = σ̂(v) and v − z ∈ ∂f(z), so prox^α(z
        // + α(v − z)) = z.
        let mut u = vec![0.0; m * columns];
        let mut z = vec![0.0; m * columns];
        let x = MatRef::from_column_major_slice(problem.start, n, columns);
        let own = bias.view(m);
        hidden_pass(layer, x, |j, i, v| {
            let v = v + own.column(j)[i];
            let psi = psi.as_ref().map_or(1.0, |psi| psi[i]);
            let value = psi * sigma.value(v / psi);
            z[j * m + i] = value;
            u[j * m + i] = value + alpha * (v - value);
            value
        });
        HiddenState {
            layer,
            n,
            m,
            alpha,
            bias,
            psi,
            target,
            x: problem.start.to_vec(),
            u,
            z,
        }
    }

    /// `z ← prox^α(u)`.
    pub(super) fn prox(&mut self, active: usize) {
        let (len, alpha) = (self.m * active, self.alpha);
        let (z, u) = (&mut self.z[..len], &self.u[..len]);
        match (self.layer.sigma(), &self.psi) {
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

    /// `out ← 2z − u + αb̂`, what the resolvents are applied to.
    pub(super) fn reflected(&self, active: usize, out: &mut [f64]) {
        let (m, alpha) = (self.m, self.alpha);
        let bias = self.bias.view(m);
        pulp::Arch::new().dispatch(|| {
            for (j, out) in out[..m * active].chunks_exact_mut(m).enumerate() {
                let (z, u) = (&self.z[j * m..(j + 1) * m], &self.u[j * m..(j + 1) * m]);
                let b = bias.column(j);
                for i in 0..m {
                    out[i] = 2.0 * z[i] - u[i] + alpha * b[i];
                }
            }
        });
    }

    /// `u ← u + λ(w − z)`.
    pub(super) fn relax(&mut self, active: usize, relaxation: f64, w: &[f64]) {
        let len = self.m * active;
        let (z, u) = (&self.z[..len], &mut self.u[..len]);
        pulp::Arch::new().dispatch(|| {
            for i in 0..len {
                u[i] += relaxation * (w[i] - z[i]);
            }
        });
    }

    /// `x ← x(z) = (y − b_y − √(γ/2)Sᵀz)/μ`.
    pub(super) fn update_x(&mut self, active: usize) {
        let (n, m) = (self.n, self.m);
        self.x[..n * active].copy_from_slice(&self.target[..n * active]);
        let (_, gain_out) = gains(self.layer);
        self.layer.add_s_transposed(
            -gain_out / self.layer.formula().mu(),
            MatRef::from_column_major_slice(&self.z[..m * active], m, active),
            MatMut::from_column_major_slice_mut(&mut self.x[..n * active], n, active),
        );
    }

    pub(super) fn last_x(&self, active: usize, x: &mut [f64]) {
        x[..self.n * active].copy_from_slice(&self.x[..self.n * active]);
    }

    pub(super) fn swap(&mut self, a: usize, b: usize) {
        swap_columns(&mut self.u, self.m, a, b);
        swap_columns(&mut self.z, self.m, a, b);
        swap_columns(&mut self.x, self.n, a, b);
        swap_columns(&mut self.target, self.n, a, b);
        if let HiddenBias::PerRow(bias) = &mut self.bias {
            swap_columns(bias, self.m, a, b);
        }
    }

    /// `out ← Âz = z − Vz − b̂ − √(2γ)S x(z)`, the single-valued operator of the two-operator
    /// splittings; updates x.
    pub(super) fn smooth_operator(&mut self, active: usize, out: &mut [f64]) {
        self.update_x(active);
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
        self.layer.add_s(-gains(self.layer).0, x, out.as_mut());
        add_whole_v(self.layer, -1.0, z, out);
    }
}

pub(super) fn swap_columns(data: &mut [f64], size: usize, a: usize, b: usize) {
    if a != b {
        let (low, high) = (a.min(b), a.max(b));
        let (head, tail) = data.split_at_mut(high * size);
        head[low * size..(low + 1) * size].swap_with_slice(&mut tail[..size]);
    }
}
