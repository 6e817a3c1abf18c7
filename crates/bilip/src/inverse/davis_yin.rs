//! Davis–Yin splitting, the paper's own method.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use super::first_order::{HiddenState, InverseMethod, Iteration, LayerProblem, check_step, prox_columns};
use crate::bias::Bias;
use crate::error::Result;
use crate::monlip::MonLip;

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
