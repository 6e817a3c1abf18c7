//! The orthogonal layer `O(x) = Px + q`: an isometry, up to the rounding of the stored `P`, which is bounded.

use std::sync::Arc;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::bias::Bias;
use crate::bounds::Claimed;
use crate::cayley::{cayley, check_matrix, householder};
use crate::certificate::{LayerCertificate, Proved, certify_orthogonal, certify_orthogonal_matrix};
use crate::error::{Error, Result, check_finite};
use crate::map::{BiLipschitz, LayerRef, sealed};
use crate::parallel::Late;
use crate::real::Real;

/// `y = Px + q` with `PᵀP = I`; in row-vector batches, `x Pᵀ + q`.
///
/// The stored `P` is orthogonal only up to rounding; [`bounds`](BiLipschitz::bounds) are widened by a proved bound
/// on `‖PᵀP − I‖`, so they hold for the very numbers stored.
///
/// ```
/// use bilip::{BiLipschitz, Orthogonal, faer::Mat};
/// let free = Mat::from_fn(3, 3, |i, j| (i * 3 + j) as f64 * 0.1);
/// let layer = Orthogonal::<f64>::from_free(free.as_ref(), &[0.0, 1.0, 2.0])?;
/// let y = layer.forward(&[1.0, 0.0, 0.0])?;
/// assert!(((y[0].powi(2) + (y[1] - 1.0).powi(2) + (y[2] - 2.0).powi(2)) - 1.0).abs() < 1e-14);
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Orthogonal<T> {
    pub(crate) weights: Arc<OrthogonalWeights<T>>,
    bias: Vec<T>,
}

#[derive(Debug)]
pub(crate) struct OrthogonalWeights<T> {
    pub(crate) matrix: Mat<T>,
    certificate: Late<LayerCertificate>,
}

impl<T: Real> Orthogonal<T> {
    /// The layer `P = cayley(free)` with the given bias.
    ///
    /// # Errors
    /// When `free` is not square, its size and the bias' differ, or an entry is not finite.
    pub fn from_free(free: MatRef<'_, f64>, bias: &[f64]) -> Result<Self> {
        if free.nrows() != free.ncols() {
            return Err(Error::shape(
                "free matrix of an orthogonal layer",
                "a square matrix",
                format!("{}×{}", free.nrows(), free.ncols()),
            ));
        }
        Self::from_f64(cayley(free)?, bias)
    }

    /// The layer whose `P` is the product of Householder reflections along the rows of `vectors`, see [`householder`].
    ///
    /// # Errors
    /// As for [`householder`], and when the bias has another size.
    pub fn from_householder(vectors: MatRef<'_, f64>, bias: &[f64]) -> Result<Self> {
        Self::from_f64(householder(vectors)?, bias)
    }

    fn from_f64(matrix: Mat<f64>, bias: &[f64]) -> Result<Self> {
        check_finite("bias of an orthogonal layer", bias)?;
        Self::from_explicit(
            Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| {
                T::round_from(matrix[(i, j)])
            }),
            bias.iter().map(|b| T::round_from(*b)).collect(),
        )
    }

    /// A layer from a matrix that is already orthogonal up to rounding.
    ///
    /// # Errors
    /// On wrong shapes, entries that are not finite, and a matrix so far from orthogonal (`‖PᵀP − I‖ ≥ 1`) that it
    /// might not be invertible.
    pub fn from_explicit(matrix: Mat<T>, bias: Vec<T>) -> Result<Self> {
        let certificate = certify_orthogonal(to_f64(matrix.as_ref()).as_ref())?;
        Self::assemble(matrix, bias, Late::of(certificate))
    }

    /// A layer of which nothing is proved yet: that happens when its bounds are first asked for.
    pub(crate) fn unproved(matrix: Mat<T>, bias: Vec<T>) -> Result<Self> {
        Self::assemble(matrix, bias, Late::empty())
    }

    fn assemble(matrix: Mat<T>, bias: Vec<T>, certificate: Late<LayerCertificate>) -> Result<Self> {
        let n = matrix.nrows();
        if n == 0 || matrix.ncols() != n {
            return Err(Error::shape(
                "matrix of an orthogonal layer",
                "a square, non-empty matrix",
                format!("{}×{}", n, matrix.ncols()),
            ));
        }
        if bias.len() != n {
            return Err(Error::shape("bias of an orthogonal layer", n, bias.len()));
        }
        check_matrix("matrix of an orthogonal layer", matrix.as_ref())?;
        check_finite("bias of an orthogonal layer", &bias)?;
        Ok(Orthogonal {
            weights: Arc::new(OrthogonalWeights { matrix, certificate }),
            bias,
        })
    }

    /// The matrix `P`.
    pub fn matrix(&self) -> MatRef<'_, T> {
        self.weights.matrix.as_ref()
    }

    /// The bias `q`.
    pub fn bias(&self) -> &[T] {
        &self.bias
    }

    /// The same layer with another bias; the matrix is shared, not copied.
    ///
    /// # Errors
    /// On a bias of another size or with entries that are not finite.
    pub fn with_bias(&self, bias: Vec<T>) -> Result<Self> {
        if bias.len() != self.bias.len() {
            return Err(Error::shape(
                "bias of an orthogonal layer",
                self.bias.len(),
                bias.len(),
            ));
        }
        check_finite("bias of an orthogonal layer", &bias)?;
        Ok(Orthogonal {
            weights: self.weights.clone(),
            bias,
        })
    }

    /// What is proved of the stored matrix; the proof is made when it is first asked for.
    pub fn layer_certificate(&self) -> &LayerCertificate {
        self.weights.certificate.get_or_compute(|| self.prove())
    }

    /// The proof, made again.
    pub(crate) fn prove(&self) -> LayerCertificate {
        certify_orthogonal_matrix(to_f64(self.matrix()).as_ref())
    }

    /// The same layer with its stored numbers converted, exactly, to `f64`.
    pub fn to_f64(&self) -> Orthogonal<f64> {
        Orthogonal {
            weights: Arc::new(OrthogonalWeights {
                matrix: to_f64(self.matrix()),
                certificate: self.weights.certificate.clone(),
            }),
            bias: self.bias.iter().map(|b| b.as_f64()).collect(),
        }
    }

    pub(crate) fn forward_cols(&self, x: MatRef<'_, T>, mut y: MatMut<'_, T>, bias: Bias<'_, T>) {
        matmul(y.as_mut(), Accum::Replace, self.matrix(), x, T::one(), Par::Seq);
        for j in 0..y.ncols() {
            let bias = bias.column(j);
            let mut column = y.as_mut().col_mut(j);
            for i in 0..bias.len() {
                column[i] += bias[i];
            }
        }
    }

    /// `out = P w`, or `Pᵀ w` for a vector–Jacobian product.
    pub(crate) fn linear_cols(&self, w: MatRef<'_, T>, out: MatMut<'_, T>, transposed: bool) {
        let matrix = if transposed {
            self.matrix().transpose()
        } else {
            self.matrix()
        };
        matmul(out, Accum::Replace, matrix, w, T::one(), Par::Seq);
    }
}

impl<T: Real> sealed::Sealed for Orthogonal<T> {}

impl<T: Real> BiLipschitz<T> for Orthogonal<T> {
    fn dim(&self) -> usize {
        self.bias.len()
    }

    fn claim(&self) -> Claimed {
        self.layer_certificate().design().into()
    }

    fn bounds(&self) -> Proved {
        self.layer_certificate().proved()
    }

    fn layers(&self) -> Vec<LayerRef<'_, T>> {
        vec![LayerRef::Orthogonal(self)]
    }
}

/// A matrix converted, exactly, to `f64`.
pub(crate) fn to_f64<T: Real>(matrix: MatRef<'_, T>) -> Mat<f64> {
    Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(i, j)].as_f64())
}
