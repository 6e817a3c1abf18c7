//! The orthogonal layer `O(x) = Px + q`: an isometry, up to the rounding of the stored `P`, which
//! is bounded.

use std::sync::Arc;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use crate::base::bounds::Claimed;
use crate::base::double::{Pair, add_product, double_gamma, renormalize};
use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::{check_matrix, to_f64};
use crate::base::parallel::Late;
use crate::base::real::Real;
use crate::base::rounding::{SAFETY, floor, gamma, norm};
use crate::certify::{LayerCertificate, certify_orthogonal, certify_orthogonal_matrix};
use crate::layers::bias::Bias;
use crate::layers::cayley::{cayley, householder};
use crate::layers::layer::{Buffers, Direction, Evaluate, EvaluatedRow, Layer};

/// `y = Px + q` with `PᵀP = I`; in row-vector batches, `x Pᵀ + q`.
///
/// The stored `P` is orthogonal only up to rounding; [`bounds`](crate::BiLipschitz::bounds) are
/// widened by a proved bound on `‖PᵀP − I‖`, so they hold for the very numbers stored.
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

    /// The layer whose `P` is the product of Householder reflections along the rows of `vectors`,
    /// see [`householder`].
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
    /// On wrong shapes, entries that are not finite, and a matrix so far from orthogonal (`‖PᵀP −
    /// I‖ ≥ 1`) that it might not be invertible.
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

    /// The same layer with one output negated. It is a reflection more: `PᵀP` is the same number
    /// for number, and the determinant changes its sign.
    ///
    /// # Errors
    /// When there is no such output.
    pub fn with_reflected_output(&self, output: usize) -> Result<Self> {
        let matrix = self.matrix();
        if output >= matrix.nrows() {
            return Err(Error::shape("reflected output", matrix.nrows(), output));
        }
        let sign = |i: usize, v: T| if i == output { -v } else { v };
        let bias = self.bias.iter().enumerate().map(|(i, b)| sign(i, *b));
        Self::from_explicit(
            Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| sign(i, matrix[(i, j)])),
            bias.collect(),
        )
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
        self.weights.certificate.get_or_compute(|| self.prove_again())
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

    pub(crate) fn claimed(&self) -> Claimed {
        self.layer_certificate().design().into()
    }
}

impl<T: Real> Layer<T> for Orthogonal<T> {
    fn size(&self) -> usize {
        self.bias.len()
    }

    fn own_bias(&self) -> &[T] {
        &self.bias
    }

    fn proof(&self) -> &LayerCertificate {
        self.layer_certificate()
    }

    fn prove_again(&self) -> LayerCertificate {
        certify_orthogonal_matrix(to_f64(self.matrix()).as_ref())
    }

    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        _: &mut Buffers<T>,
        _: Option<MatMut<'_, T>>,
    ) {
        let n = self.bias.len();
        let columns = x.len() / n;
        matmul(
            MatMut::from_column_major_slice_mut(y, n, columns),
            Accum::Replace,
            self.matrix(),
            MatRef::from_column_major_slice(x, n, columns),
            T::one(),
            Par::Seq,
        );
        for (j, column) in y.chunks_exact_mut(n).enumerate() {
            for (y, bias) in column.iter_mut().zip(bias.column(j)) {
                *y += *bias;
            }
        }
    }

    fn linear_cols(
        &self,
        _: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        _: usize,
        direction: Direction,
        _: &mut Buffers<T>,
    ) {
        let n = self.bias.len();
        let columns = w.len() / n;
        let matrix = match direction {
            Direction::Forward => self.matrix(),
            Direction::Reverse => self.matrix().transpose(),
        };
        matmul(
            MatMut::from_column_major_slice_mut(out, n, columns),
            Accum::Replace,
            matrix,
            MatRef::from_column_major_slice(w, n, columns),
            T::one(),
            Par::Seq,
        );
    }
}

impl Evaluate for Orthogonal<f64> {
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64 {
        let n = self.bias.len();
        let nu = self.layer_certificate().proved().nu();
        let size = norm(row.x) * SAFETY;
        gamma(n + 8) * ((n as f64).sqrt() * nu * size + norm(row.bias)) + floor(n) + row.bias_error
    }

    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        let n = self.bias.len();
        let mut y = Pair {
            hi: bias.to_vec(),
            lo: vec![0.0; n],
        };
        add_product(self.matrix(), &x.hi, &x.lo, &mut y.hi, &mut y.lo);
        renormalize(&mut y);
        let nu = self.layer_certificate().proved().nu();
        let size = norm(&x.hi) * SAFETY;
        let error = double_gamma(n) * ((n as f64).sqrt() * nu * size + norm(bias)) + floor(n) + bias_error;
        (y, error)
    }
}
