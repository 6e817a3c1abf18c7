//! Inverses of matrices whose symmetric part is ⪰ I.

use bilip::Real;
use bilip::faer::{Accum, Mat, MatMut};

use super::product::gemm;

/// Below this size the inverse is computed directly.
const DIRECT: usize = 24;

/// In-place inverses of row-major `n × n` matrices whose symmetric parts are ⪰ I, one after the
/// other in memory, in parallel.
pub(crate) fn invert_all<T: Real>(all: &mut [T], n: usize) {
    use rayon::prelude::*;
    // The inverse of the transposed matrix is the transposed inverse.
    all.par_chunks_exact_mut((n * n).max(1))
        .for_each(|one| invert(MatMut::from_column_major_slice_mut(one, n, n)));
}

/// In-place inverse of a matrix whose symmetric part is ⪰ I, by recursion on 2×2 blocks: all of the
/// work is in matrix products. Every leading block and every Schur complement inherits a symmetric
/// part ⪰ I, so no pivoting is needed.
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
}
