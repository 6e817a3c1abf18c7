//! What all take matrices for.

use faer::{Mat, MatRef};

use super::error::{Error, Result};
use super::real::Real;

/// A matrix converted, exactly, to `f64`.
pub(crate) fn to_f64<T: Real>(matrix: MatRef<'_, T>) -> Mat<f64> {
    Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(i, j)].as_f64())
}

/// Fails on the first entry that is not finite.
pub(crate) fn check_matrix<T: Real>(what: &str, matrix: MatRef<'_, T>) -> Result<()> {
    for j in 0..matrix.ncols() {
        for i in 0..matrix.nrows() {
            if !num_traits::Float::is_finite(matrix[(i, j)]) {
                return Err(Error::NonFinite {
                    what: what.to_string(),
                    index: i * matrix.ncols() + j,
                });
            }
        }
    }
    Ok(())
}
