//! Orthogonal matrices from free ones: the Cayley transform, its inverse, and Householder products.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatRef};

use crate::base::error::{Error, Result};
use crate::base::matrix::check_matrix;
use crate::base::parallel;
use crate::base::real::Real;

/// The Cayley transform `J` of a free matrix, with orthonormal columns (rows, if it is wide).
///
/// For tall `F = [G; H]` with `G` square: `Z = G − Gᵀ + HᵀH`, `X = (I + Z)⁻¹`, `J = [2X − I;
/// −2HX]`, so `JᵀJ = I`. A wide matrix is transposed, transformed and transposed back. `I + Z` has
/// symmetric part ⪰ I and is therefore always invertible. Cost: one LU factorization of the short
/// side and two products.
///
/// ```
/// use bilip::{cayley, faer::Mat};
/// let free = Mat::from_fn(5, 3, |i, j| (i as f64 - 1.5 * j as f64).sin());
/// let q = cayley(free.as_ref())?;
/// assert!((q.transpose() * &q - Mat::<f64>::identity(3, 3)).norm_max() < 1e-14);
/// # Ok::<(), bilip::Error>(())
/// ```
///
/// # Errors
/// On an empty matrix, and on entries that are not finite or so large that their squares overflow.
pub fn cayley<T: Real>(free: MatRef<'_, T>) -> Result<Mat<T>> {
    let (rows, cols) = free.shape();
    if rows == 0 || cols == 0 {
        return Err(Error::shape(
            "cayley",
            "a non-empty matrix",
            format!("{rows}×{cols}"),
        ));
    }
    if rows < cols {
        return Ok(cayley(free.transpose())?.transpose().to_owned());
    }
    let (g, h) = free.split_at_row(cols);
    let (one, two) = (T::one(), T::one() + T::one());
    let par = parallel::par_for(cols * cols * rows);
    let mut w = Mat::<T>::from_fn(cols, cols, |i, j| {
        g[(i, j)] - g[(j, i)] + if i == j { one } else { T::zero() }
    });
    if rows > cols {
        matmul(w.as_mut(), Accum::Add, h.transpose(), h, one, par);
    }
    let x = w.partial_piv_lu().solve(Mat::<T>::identity(cols, cols));
    let mut j = Mat::<T>::zeros(rows, cols);
    for c in 0..cols {
        for r in 0..cols {
            j[(r, c)] = two * x[(r, c)] - if r == c { one } else { T::zero() };
        }
    }
    if rows > cols {
        matmul(
            j.as_mut().subrows_mut(cols, rows - cols),
            Accum::Replace,
            h,
            x.as_ref(),
            -two,
            par,
        );
    }
    check_matrix("cayley", j.as_ref())?;
    Ok(j)
}

/// A free matrix whose [`cayley`] transform is `orthonormal` (tall, with orthonormal columns).
///
/// `H = −J₂(I + J₁)⁻¹`, and `G` is half the skew part of `2(I + J₁)⁻¹ − I`.
///
/// # Errors
/// When the matrix is wide or empty, and when `I + J₁` is singular: such a matrix is the transform
/// of no free one.
pub fn inverse_cayley<T: Real>(orthonormal: MatRef<'_, T>) -> Result<Mat<T>> {
    let (rows, cols) = orthonormal.shape();
    if cols == 0 || rows < cols {
        return Err(Error::shape(
            "inverse_cayley",
            "a tall, non-empty matrix",
            format!("{rows}×{cols}"),
        ));
    }
    let (one, two) = (T::one(), T::one() + T::one());
    let (j1, j2) = orthonormal.split_at_row(cols);
    let w = Mat::<T>::from_fn(cols, cols, |i, j| {
        j1[(i, j)] + if i == j { one } else { T::zero() }
    });
    let x = w.partial_piv_lu().solve(Mat::<T>::identity(cols, cols));
    let mut free = Mat::<T>::zeros(rows, cols);
    for c in 0..cols {
        for r in 0..cols {
            // ½·(Z − Zᵀ)/2 with Z = 2X − I.
            free[(r, c)] = (x[(r, c)] - x[(c, r)]) / two;
        }
    }
    if rows > cols {
        matmul(
            free.as_mut().subrows_mut(cols, rows - cols),
            Accum::Replace,
            j2,
            x.as_ref(),
            -one,
            parallel::par_for(rows * cols * cols),
        );
    }
    check_matrix("inverse_cayley (I + J₁ is singular)", free.as_ref())?;
    Ok(free)
}

/// The product of reflections `(I − 2v₁v₁ᵀ/‖v₁‖²)⋯(I − 2v_r v_rᵀ/‖v_r‖²)`, an orthogonal `n×n`
/// matrix.
///
/// `vectors` is `[r, n]`, one vector a row; with no rows the result is the identity.
///
/// # Errors
/// On a vector that is zero or not finite.
pub fn householder<T: Real>(vectors: MatRef<'_, T>) -> Result<Mat<T>> {
    let (count, n) = vectors.shape();
    if n == 0 {
        return Err(Error::shape("householder", "vectors of at least one entry", "0"));
    }
    check_matrix("householder", vectors)?;
    let mut product = Mat::<T>::identity(n, n);
    for k in (0..count).rev() {
        let v = vectors.row(k);
        // Scaled by the largest entry first, so that neither tiny nor huge vectors leave the range.
        let largest = (0..n).fold(T::zero(), |a, i| a.max(num_traits::Float::abs(v[i])));
        if largest == T::zero() {
            return Err(Error::setting(
                "householder",
                format!("row {k}"),
                "a reflection needs a non-zero vector",
            ));
        }
        let unit: Vec<T> = {
            let norm =
                num_traits::Float::sqrt((0..n).map(|i| (v[i] / largest) * (v[i] / largest)).sum::<T>());
            (0..n).map(|i| v[i] / largest / norm).collect()
        };
        for j in 0..n {
            let column = product.col_as_slice_mut(j);
            let dot: T = column.iter().zip(&unit).map(|(a, b)| *a * *b).sum();
            let factor = dot + dot;
            for (c, u) in column.iter_mut().zip(&unit) {
                *c -= factor * *u;
            }
        }
    }
    Ok(product)
}

/// `(scale/‖F‖_F)·F`, the form in which free matrices are learned; zero stays zero.
pub fn with_norm(free: MatRef<'_, f64>, scale: f64) -> Mat<f64> {
    let norm = free.norm_l2();
    if norm == 0.0 {
        return free.to_owned();
    }
    let factor = scale / norm;
    Mat::from_fn(free.nrows(), free.ncols(), |i, j| factor * free[(i, j)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    /// `‖JᵀJ − I‖` grows like the rounding of an `n`-term product: tolerance `100·eps·n`.
    fn orthonormality_defect(j: MatRef<'_, f64>) -> f64 {
        let n = j.ncols();
        (j.transpose() * j - Mat::<f64>::identity(n, n)).norm_max()
    }

    #[test]
    fn cayley_of_any_shape_is_orthonormal() {
        let mut rng = Rng::new(1);
        for (rows, cols) in [(1, 1), (4, 4), (7, 3), (64, 32), (5, 1)] {
            for scale in [1e-8, 1.0, 1e3] {
                let f = rng.matrix(rows, cols, scale);
                let tall = cayley(f.as_ref()).unwrap();
                assert!(orthonormality_defect(tall.as_ref()) < 100.0 * f64::EPSILON * rows as f64);
                let wide = cayley(f.transpose()).unwrap();
                assert!((wide.transpose() - &tall).norm_max() < 100.0 * f64::EPSILON * rows as f64);
            }
        }
    }

    #[test]
    fn inverse_cayley_undoes_cayley() {
        let mut rng = Rng::new(2);
        for (rows, cols) in [(1, 1), (4, 4), (9, 3), (40, 20)] {
            let j = cayley(rng.matrix(rows, cols, 1.0).as_ref()).unwrap();
            let again = cayley(inverse_cayley(j.as_ref()).unwrap().as_ref()).unwrap();
            assert!((again - &j).norm_max() < 1e-12);
        }
    }

    #[test]
    fn householder_products_are_orthogonal_and_involutive() {
        let mut rng = Rng::new(3);
        for scale in [1e-200, 1.0, 1e200] {
            let v = rng.matrix(5, 8, scale);
            let p = householder(v.as_ref()).unwrap();
            assert!(orthonormality_defect(p.as_ref()) < 1e-14);
            let single = householder(v.subrows(0, 1)).unwrap();
            assert!((&single * &single - Mat::<f64>::identity(8, 8)).norm_max() < 1e-14);
        }
        assert!(householder(Mat::<f64>::zeros(1, 3).as_ref()).is_err());
    }

    #[test]
    fn overflow_and_nan_are_errors() {
        let huge = Mat::<f64>::from_fn(4, 2, |_, _| 1e200);
        assert!(cayley(huge.as_ref()).is_err());
        let mut nan = Mat::<f64>::zeros(2, 2);
        nan[(0, 1)] = f64::NAN;
        assert!(cayley(nan.as_ref()).is_err());
        assert!(cayley(Mat::<f64>::zeros(0, 2).as_ref()).is_err());
    }
}
