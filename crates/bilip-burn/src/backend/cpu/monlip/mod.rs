//! The monotone layer from its free parameters, forward and backward in one piece.
//!
//! In the forward pass the `L + 1` Cayley transforms run in parallel, then the weights `V_k =
//! 2J₂ₖᵀJ₁,ₖ₋₁` and `S_k = J_kᵀ[Q_k; −Q_{k−1}]` (with `J_k = [A_kᵀ; B_kᵀ]`), then blocks of the
//! batch. The backward pass goes backward in the same order: blocks of the batch, then `V̄_k` and
//! `S̄_k` of all layers in parallel, then the transforms.

mod backward;
mod forward;

use bilip::Real;
use bilip::faer::{Mat, MatRef};

use super::cayley;

pub(crate) use backward::backward;
pub(crate) use forward::forward;

/// Saved for backward.
#[derive(Debug)]
pub struct Tape<T> {
    q: cayley::Tape<T>,
    /// Whether `F^q` is wide (fewer hidden units than inputs) and was transposed.
    wide: bool,
    hidden: Vec<cayley::Tape<T>>,
    v: Vec<Mat<T>>,
    s: Mat<T>,
    psi: Option<Vec<T>>,
    mu: T,
    gamma: T,
    rows: usize,
    bias_rows: usize,
    x: Vec<T>,
    /// Hidden state and slopes, `m` per row of the batch.
    z: Vec<T>,
    slopes: Vec<T>,
    /// Pre-activations, only where ψ is learned.
    pre: Vec<T>,
}

/// Gradients of everything a layer depends on.
pub(crate) struct Gradients<T> {
    pub(crate) x: Vec<T>,
    pub(crate) phi: Vec<T>,
    /// Of μ and γ.
    pub(crate) bounds: [T; 2],
    pub(crate) bias: Vec<T>,
}

/// `√(2γ)` and `√(γ/2)`.
fn gains<T: Real>(gamma: T) -> (T, T) {
    let two = T::one() + T::one();
    let root = num_traits::Float::sqrt(two * gamma);
    (root, root / two)
}

/// Rows of a block of the batch: at most two blocks per thread, so that the products stay wide.
fn block_rows(rows: usize, flops: usize) -> usize {
    let threads = rayon::current_num_threads();
    if flops < 1 << 20 || threads < 2 {
        return rows.max(1);
    }
    rows.div_ceil(threads).clamp(16, 128).min(rows.max(1))
}

/// The rows of Q that belong to the hidden units, `m × n`.
fn q_rows<T: Real>(tape: &cayley::Tape<T>, wide: bool, extra: usize) -> MatRef<'_, T> {
    let j = tape.j.as_ref();
    if wide {
        j.transpose()
    } else {
        j.subrows(extra, j.nrows() - extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Layout;
    use bilip::Activation;
    use bilip::Rng;

    /// A random layer: φ, hidden bias (one, or one per row), batch.
    fn random(layout: &Layout, rows: usize, bias_rows: usize, seed: u64) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let mut rng = Rng::new(seed);
        let mut phi = rng.normals(layout.len);
        for v in &mut phi {
            *v *= 0.5;
        }
        for k in layout.gain_ab.clone().chain([layout.gain_q]) {
            phi[k] = 1.0 + rng.uniform();
        }
        (
            phi,
            rng.normals(bias_rows * layout.hidden()),
            rng.normals(rows * layout.n),
        )
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn every_gradient_matches_central_differences() {
        // n, widths, activation, general form, bias per row: ragged, wide (fewer units than
        // inputs), with learned ψ.
        let cases = [
            (3, vec![5, 4, 6], Activation::Relu, false, false),
            (3, vec![5, 4, 6], Activation::Tanh, true, true),
            (6, vec![2, 2], Activation::Softplus, false, false),
            (6, vec![2, 1], Activation::Elu, true, true),
            (1, vec![7], Activation::Sigmoid, false, true),
            (2, vec![30, 40], Activation::Arctan, true, false),
        ];
        for (case, (n, units, activation, general, per_row)) in cases.into_iter().enumerate() {
            let layout = Layout::new(n, &units, activation, general);
            let rows = 5;
            let (phi, bias, x) = random(&layout, rows, if per_row { rows } else { 1 }, case as u64);
            let (mu, gamma) = (0.3, 2.1);
            let w = Rng::new(99).normals(rows * n);
            let (y, tape) = forward(&layout, &x, &phi, mu, gamma, &bias);
            assert_eq!(y.len(), rows * n);
            let g = backward(&layout, &tape, &phi, &w);
            let value = |x: &[f64], phi: &[f64], mu: f64, gamma: f64, bias: &[f64]| {
                dot(&forward(&layout, x, phi, mu, gamma, bias).0, &w)
            };
            let h = 1e-6;
            // A random direction in each argument tests all of its entries at once.
            let mut rng = Rng::new(7 + case as u64);
            let along = |v: &[f64], d: &[f64], s: f64| -> Vec<f64> {
                v.iter().zip(d).map(|(v, d)| v + s * d).collect()
            };
            for (what, exact, difference) in [
                {
                    let d = rng.normals(x.len());
                    let f = |s| value(&along(&x, &d, s), &phi, mu, gamma, &bias);
                    ("x", dot(&g.x, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let d = rng.normals(phi.len());
                    let f = |s| value(&x, &along(&phi, &d, s), mu, gamma, &bias);
                    ("phi", dot(&g.phi, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let d = rng.normals(bias.len());
                    let f = |s| value(&x, &phi, mu, gamma, &along(&bias, &d, s));
                    ("bias", dot(&g.bias, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let f = |s| value(&x, &phi, mu + s, gamma, &bias);
                    ("mu", g.bounds[0], (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let f = |s| value(&x, &phi, mu, gamma + s, &bias);
                    ("gamma", g.bounds[1], (f(h) - f(-h)) / (2.0 * h))
                },
            ] {
                let error = (exact - difference).abs() / (1.0 + difference.abs());
                assert!(error < 1e-7, "case {case} {what}: {exact} against {difference}");
            }
        }
    }

    #[test]
    fn large_batches_on_threads_agree_with_single_rows() {
        let layout = Layout::new(4, &[48, 64, 48], Activation::Relu, false);
        let rows = 300;
        let (phi, bias, x) = random(&layout, rows, 1, 3);
        let (y, tape) = forward(&layout, &x, &phi, 0.5, 1.5, &bias);
        let w = Rng::new(4).normals(rows * 4);
        let g = backward(&layout, &tape, &phi, &w);
        let mut sum = vec![0.0; layout.len];
        for r in 0..rows {
            let (single, tape) = forward(&layout, &x[r * 4..(r + 1) * 4], &phi, 0.5, 1.5, &bias);
            for i in 0..4 {
                assert!((single[i] - y[r * 4 + i]).abs() < 1e-12);
            }
            let part = backward(&layout, &tape, &phi, &w[r * 4..(r + 1) * 4]);
            sum.iter_mut().zip(&part.phi).for_each(|(s, p)| *s += p);
        }
        let scale = sum.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        for (a, b) in sum.iter().zip(&g.phi) {
            assert!((a - b).abs() < 1e-12 * scale);
        }
    }
}
