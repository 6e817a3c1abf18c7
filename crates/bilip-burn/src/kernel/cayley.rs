//! The Cayley transform of `(f/‖F‖)·F` and its derivative; one inverse serves both directions.
//!
//! With `F̂ = [G; H]` the scaled matrix, `W = I + G − Gᵀ + HᵀH`, `X = W⁻¹`, `J = [2X − I; −2HX]`. Given `J̄ = [J̄₁; J̄₂]`, the
//! cotangent of J: since `2X = I + J₁` and `HX = −J₂/2`,
//! ```text
//! W̄ = −(J̄₁ + JᵀJ̄)Xᵀ,      Ḡ = W̄ − W̄ᵀ,      H̄ = −2J̄₂Xᵀ + H(W̄ + W̄ᵀ),
//! ```
//! and the scaling adds `F̄ = s(F̂̄ − F⟨F, F̂̄⟩/‖F‖²)`, `f̄ = ⟨F, F̂̄⟩/‖F‖` with `s = f/‖F‖`.

use bilip::Real;
use bilip::faer::{Accum, Mat, MatMut, MatRef};

use super::gemm;

/// What the backward pass needs.
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

/// Below this size the inverse is computed directly.
const DIRECT: usize = 24;

/// In-place inverses of row-major `n × n` matrices whose symmetric parts are ⪰ I, one after the other in memory, in parallel.
pub(crate) fn invert_all<T: Real>(all: &mut [T], n: usize) {
    use rayon::prelude::*;
    // The inverse of the transposed matrix is the transposed inverse.
    all.par_chunks_exact_mut((n * n).max(1))
        .for_each(|one| invert(MatMut::from_column_major_slice_mut(one, n, n)));
}

/// In-place inverse of a matrix whose symmetric part is ⪰ I, by recursion on 2×2 blocks: all of the work is in matrix
/// products. Every leading block and every Schur complement inherits a symmetric part ⪰ I, so no pivoting is needed.
pub(crate) fn invert<T: Real>(mut a: MatMut<'_, T>) {
    let n = a.nrows();
    if n <= DIRECT {
        return invert_directly(a);
    }
    // A multiple of 8 keeps the columns of both halves aligned for the products.
    let half = (n / 2).next_multiple_of(8).min(n - 1);
    let one = T::one();
    let (mut a11, mut a12, mut a21, mut a22) = a.as_mut().split_at_mut(half, half);
    invert(a11.as_mut());
    // a21·a11⁻¹, and the Schur complement in the place of a22.
    let mut left = Mat::<T>::zeros(n - half, half);
    gemm(left.as_mut(), Accum::Replace, a21.as_ref(), a11.as_ref(), one);
    gemm(a22.as_mut(), Accum::Add, left.as_ref(), a12.as_ref(), -one);
    invert(a22.as_mut());
    let mut right = Mat::<T>::zeros(half, n - half);
    gemm(right.as_mut(), Accum::Replace, a11.as_ref(), a12.as_ref(), one);
    gemm(a21.as_mut(), Accum::Replace, a22.as_ref(), left.as_ref(), -one);
    gemm(a12.as_mut(), Accum::Replace, right.as_ref(), a22.as_ref(), -one);
    gemm(a11, Accum::Add, right.as_ref(), a21.as_ref(), -one);
}

/// Gauss–Jordan without pivoting, by columns.
fn invert_directly<T: Real>(mut a: MatMut<'_, T>) {
    let n = a.nrows();
    // A dense copy: columns side by side in the first-level cache.
    let mut m: Vec<T> = (0..n * n).map(|t| a[(t % n, t / n)]).collect();
    let mut pivot_column = vec![T::zero(); n];
    for k in 0..n {
        let p = T::one() / m[k * n + k];
        pivot_column.copy_from_slice(&m[k * n..(k + 1) * n]);
        pivot_column[k] = T::zero();
        for j in 0..n {
            if j == k {
                continue;
            }
            let t = m[j * n + k] * p;
            let column = &mut m[j * n..(j + 1) * n];
            for i in 0..n {
                column[i] -= pivot_column[i] * t;
            }
            column[k] = t;
        }
        let column = &mut m[k * n..(k + 1) * n];
        for i in 0..n {
            column[i] = -pivot_column[i] * p;
        }
        column[k] = p;
    }
    for j in 0..n {
        for i in 0..n {
            a[(i, j)] = m[j * n + i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn the_recursive_inverse_inverts() {
        let mut rng = Rng::new(1);
        for n in [1, 2, 7, 24, 25, 33, 64, 100, 256] {
            let g = rng.matrix(n, n, 1.0 / (n as f64).sqrt());
            let w = Mat::<f64>::identity(n, n) + &g - g.transpose() + g.transpose() * &g;
            let mut x = w.clone();
            invert(x.as_mut());
            let defect = (&w * &x - Mat::<f64>::identity(n, n)).norm_max();
            assert!(defect < 1e-13 * n as f64, "n = {n}: {defect:.1e}");
        }
    }

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
