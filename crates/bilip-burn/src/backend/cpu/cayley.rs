//! The Cayley transform of `(f/‖F‖)·F` and its derivative; one inverse serves both directions.
//!
//! With `F̂ = [G; H]` the scaled matrix, `W = I + G − Gᵀ + HᵀH`, `X = W⁻¹`, `J = [2X − I; −2HX]`.
//! Given `J̄ = [J̄₁; J̄₂]`, the cotangent of J: since `2X = I + J₁` and `HX = −J₂/2`,
//! ```text
//! W̄ = −(J̄₁ + JᵀJ̄)Xᵀ,      Ḡ = W̄ − W̄ᵀ,      H̄ = −2J̄₂Xᵀ + H(W̄ + W̄ᵀ),
//! ```
//! and the scaling adds `F̄ = s(F̂̄ − F⟨F, F̂̄⟩/‖F‖²)`, `f̄ = ⟨F, F̂̄⟩/‖F‖` with `s = f/‖F‖`.

use bilip::Real;
use bilip::faer::{Accum, Mat, MatMut, MatRef};

use super::inverse::invert;
use super::product::gemm;

/// Saved for backward.
#[derive(Debug)]
pub struct Tape<T> {
    /// The transform, tall: `rows × cols` with orthonormal columns.
    pub(crate) j: Mat<T>,
    inverse: Mat<T>,
    scale: T,
    norm: T,
}

/// The transform of a tall free matrix with its gain.
pub(crate) fn forward<T: Real>(free: MatRef<'_, T>, gain: T) -> Tape<T> {
    let (rows, cols) = free.shape();
    let (one, two) = (T::one(), T::one() + T::one());
    let norm = frobenius(free);
    let scale = if norm > T::zero() { gain / norm } else { T::zero() };
    let (g, h) = free.split_at_row(cols);
    let mut w = Mat::<T>::from_fn(cols, cols, |i, j| {
        scale * (g[(i, j)] - g[(j, i)]) + if i == j { one } else { T::zero() }
    });
    if rows > cols {
        gemm(w.as_mut(), Accum::Add, h.transpose(), h, scale * scale);
    }
    invert(w.as_mut());
    let mut j = Mat::<T>::zeros(rows, cols);
    for c in 0..cols {
        for r in 0..cols {
            j[(r, c)] = two * w[(r, c)] - if r == c { one } else { T::zero() };
        }
    }
    if rows > cols {
        let bottom = j.as_mut().subrows_mut(cols, rows - cols);
        gemm(bottom, Accum::Replace, h, w.as_ref(), -two * scale);
    }
    Tape {
        j,
        inverse: w,
        scale,
        norm,
    }
}

/// Gradients of the free matrix, written to `out`, and of its gain, returned.
pub(crate) fn backward<T: Real>(
    tape: &Tape<T>,
    free: MatRef<'_, T>,
    cotangent: MatRef<'_, T>,
    mut out: MatMut<'_, T>,
) -> T {
    let (rows, cols) = tape.j.shape();
    let (one, two) = (T::one(), T::one() + T::one());
    if tape.norm == T::zero() {
        out.fill(T::zero());
        return T::zero();
    }
    let mut inner = cotangent.subrows(0, cols).to_owned();
    gemm(inner.as_mut(), Accum::Add, tape.j.transpose(), cotangent, one);
    let mut w = Mat::<T>::zeros(cols, cols);
    gemm(
        w.as_mut(),
        Accum::Replace,
        inner.as_ref(),
        tape.inverse.transpose(),
        -one,
    );
    // W̄ ∓ W̄ᵀ, in tiles that keep both orders of access in cache.
    const TILE: usize = 16;
    for c0 in (0..cols).step_by(TILE) {
        for r0 in (0..cols).step_by(TILE) {
            for c in c0..(c0 + TILE).min(cols) {
                for r in r0..(r0 + TILE).min(cols) {
                    let (a, b) = (w[(r, c)], w[(c, r)]);
                    out[(r, c)] = a - b;
                    inner[(r, c)] = a + b;
                }
            }
        }
    }
    if rows > cols {
        let mut bottom = out.as_mut().subrows_mut(cols, rows - cols);
        let below = cotangent.subrows(cols, rows - cols);
        gemm(
            bottom.as_mut(),
            Accum::Replace,
            below,
            tape.inverse.transpose(),
            -two,
        );
        let h = free.subrows(cols, rows - cols);
        gemm(bottom, Accum::Add, h, inner.as_ref(), tape.scale);
    }
    let mut dot = T::zero();
    for r in 0..rows {
        for c in 0..cols {
            dot += free[(r, c)] * out[(r, c)];
        }
    }
    let along = dot / (tape.norm * tape.norm);
    for r in 0..rows {
        for c in 0..cols {
            out[(r, c)] = tape.scale * (out[(r, c)] - along * free[(r, c)]);
        }
    }
    dot / tape.norm
}

/// The Frobenius norm, scaled against overflow, summed in f64.
fn frobenius<T: Real>(a: MatRef<'_, T>) -> T {
    let mut sum = 0.0;
    for i in 0..a.nrows() {
        for j in 0..a.ncols() {
            let v = a[(i, j)].as_f64();
            sum += v * v;
        }
    }
    T::round_from(sum.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn the_transform_is_the_core_crate_s() {
        let mut rng = Rng::new(2);
        for (rows, cols) in [(1, 1), (5, 1), (7, 3), (4, 4), (100, 50)] {
            let f = rng.matrix(rows, cols, 0.7);
            let ours = forward(f.as_ref(), 1.3).j;
            let theirs = bilip::cayley(bilip::with_norm(f.as_ref(), 1.3).as_ref()).unwrap();
            assert!((ours - theirs).norm_max() < 1e-13);
        }
    }

    #[test]
    fn the_gradient_matches_central_differences() {
        let mut rng = Rng::new(3);
        for (rows, cols) in [(1, 1), (5, 1), (7, 3), (4, 4), (60, 30)] {
            let f = rng.matrix(rows, cols, 0.7);
            let w = rng.matrix(rows, cols, 1.0);
            let value = |f: &Mat<f64>, gain: f64| -> f64 {
                let j = forward(f.as_ref(), gain).j;
                (0..rows)
                    .map(|r| (0..cols).map(|c| w[(r, c)] * j[(r, c)]).sum::<f64>())
                    .sum()
            };
            let tape = forward(f.as_ref(), 1.1);
            let mut gradient = Mat::zeros(rows, cols);
            let gain = backward(&tape, f.as_ref(), w.as_ref(), gradient.as_mut());
            let h = 1e-5;
            let difference = (value(&f, 1.1 + h) - value(&f, 1.1 - h)) / (2.0 * h);
            assert!((gain - difference).abs() < 1e-7 * (1.0 + gain.abs()));
            for _ in 0..8 {
                let (r, c) = (
                    (rng.uniform() * rows as f64) as usize,
                    (rng.uniform() * cols as f64) as usize,
                );
                let (mut plus, mut minus) = (f.clone(), f.clone());
                plus[(r, c)] += h;
                minus[(r, c)] -= h;
                let difference = (value(&plus, 1.1) - value(&minus, 1.1)) / (2.0 * h);
                assert!(
                    (gradient[(r, c)] - difference).abs() < 1e-7,
                    "{} {difference}",
                    gradient[(r, c)]
                );
            }
        }
    }
}
