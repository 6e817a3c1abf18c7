//! The linear part of a fit, found in closed form and put in front of the network, so that training
//! begins near the best quadratic function or the best linear map and has only the rest to learn.
//!
//! With the singular value decomposition `A = U·D·Vᵀ` of a linear map in standardized variables, the
//! network is trained from `D·Vᵀ(x − m)` to `Uᵀy`: near the identity, whatever the units, the
//! correlations and the orientation of the data. `bilip` stores the front as layers of their own
//! with their own proofs.

use bilip::faer::linalg::solvers::Solve;
use bilip::faer::{Mat, Side};
use bilip::{BiLipNet, Orthogonal, Real};

use crate::error::Result;
use crate::quadratic::Quadratic;

/// `x ↦ D(Px + q)` in front of a network and `y ↦ Uᵀy` behind it.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    /// P, orthogonal.
    rotation: Mat<f64>,
    /// q.
    shift: Vec<f64>,
    /// The diagonal of D, positive.
    factors: Vec<f64>,
    /// U, orthogonal; none for potentials, which do not feel it.
    behind: Option<Mat<f64>>,
}

impl Front {
    /// `D = Λ^½` and the eigenvectors of the Hessian as P, so that the quadratic function is
    /// `½‖D(Px + q)‖²` and a constant.
    ///
    /// Eigenvalues below the largest divided by the square of `distortion` are raised to it. The
    /// center is the minimizer of the raised quadratic function, kept within `reach` of the origin.
    pub fn of_quadratic(quadratic: &Quadratic, distortion: f64, reach: f64) -> Option<Self> {
        let n = quadratic.slope.len();
        let eigen = quadratic.hessian.self_adjoint_eigen(Side::Lower).ok()?;
        let (vectors, values) = (eigen.U(), eigen.S().column_vector());
        let largest = (0..n).map(|k| values[k]).fold(0.0f64, f64::max);
        if !(largest > 1e-9 && largest.is_finite()) {
            return None;
        }
        let least = largest / (distortion * distortion);
        let values: Vec<f64> = (0..n).map(|k| values[k].max(least)).collect();
        let rotation = Mat::from_fn(n, n, |i, j| vectors[(j, i)]);
        // The minimizer along each eigenvector, −g/λ, where that is in reach.
        let shift = (0..n)
            .map(|k| {
                let slope: f64 = (0..n).map(|j| rotation[(k, j)] * quadratic.slope[j]).sum();
                (slope / values[k]).clamp(-reach, reach)
            })
            .collect();
        Some(Front {
            rotation,
            shift,
            factors: values.iter().map(|v| v.sqrt()).collect(),
            behind: None,
        })
    }

    /// The linear map that fits `y` best from `n` inputs x, and p beside them; singular values below
    /// the largest divided by `distortion` are raised to it.
    pub fn of_map(x: &[f64], p: &[f64], y: &[f64], n: usize, distortion: f64) -> Option<Self> {
        let map = linear_map(x, p, y, n);
        let svd = map.svd().ok()?;
        let singular = svd.S().column_vector();
        let largest = (0..n).map(|k| singular[k]).fold(0.0f64, f64::max);
        if !(largest > 1e-9 && largest.is_finite()) {
            return None;
        }
        let (u, v) = (svd.U(), svd.V());
        Some(Front {
            rotation: v.transpose().to_owned(),
            shift: vec![0.0; n],
            factors: (0..n).map(|k| singular[k].max(largest / distortion)).collect(),
            behind: Some(u.to_owned()),
        })
    }

    /// ν/μ of D.
    pub fn distortion(&self) -> f64 {
        let largest = self.factors.iter().copied().fold(0.0, f64::max);
        let least = self.factors.iter().copied().fold(f64::INFINITY, f64::min);
        largest / least
    }

    /// `D(Px + q)` at rows.
    pub fn before(&self, x: &[f64]) -> Vec<f64> {
        let n = self.factors.len();
        x.chunks_exact(n)
            .flat_map(|x| {
                (0..n).map(|i| {
                    let product: f64 = (0..n).map(|j| self.rotation[(i, j)] * x[j]).sum();
                    self.factors[i] * (product + self.shift[i])
                })
            })
            .collect()
    }

    /// `Uᵀy` at rows.
    pub fn targets(&self, y: &[f64]) -> Vec<f64> {
        let Some(u) = &self.behind else {
            return y.to_vec();
        };
        let n = u.nrows();
        y.chunks_exact(n)
            .flat_map(|y| (0..n).map(|i| (0..n).map(|j| u[(j, i)] * y[j]).sum::<f64>()))
            .collect()
    }

    /// The affine map alone, as a network.
    pub fn network<T: Real>(&self) -> Result<BiLipNet<T>> {
        let first = orthogonal(&self.rotation, &self.shift)?;
        let net = BiLipNet::affine(first, &self.factors)?;
        self.turned(net)
    }

    /// A network that was trained behind this front, with it.
    pub fn with<T: Real>(&self, net: BiLipNet<T>) -> Result<BiLipNet<T>> {
        let first = orthogonal(&self.rotation, &self.shift)?;
        let net = net.after(BiLipNet::affine(first, &self.factors)?)?;
        self.turned(net)
    }

    fn turned<T: Real>(&self, net: BiLipNet<T>) -> Result<BiLipNet<T>> {
        match &self.behind {
            None => Ok(net),
            Some(u) => Ok(net.rotated(&orthogonal(u, &vec![0.0; u.nrows()])?)?),
        }
    }
}

fn orthogonal<T: Real>(matrix: &Mat<f64>, bias: &[f64]) -> Result<Orthogonal<T>> {
    let (rows, columns) = matrix.shape();
    let narrow = Mat::from_fn(rows, columns, |i, j| T::round_from(matrix[(i, j)]));
    let bias = bias.iter().map(|b| T::round_from(*b)).collect();
    Ok(Orthogonal::from_explicit(narrow, bias)?)
}

/// The part in x of the linear map that fits `y` best, from inputs `x` and parameters `p`: `n × n`,
/// `y ≈ A·x`.
///
/// Rows are standardized; there are as many targets as inputs, `n`.
pub(crate) fn linear_map(x: &[f64], p: &[f64], y: &[f64], n: usize) -> Mat<f64> {
    let rows = x.len() / n;
    let parameters = p.len() / rows.max(1);
    let columns = n + parameters;
    let regressor = |r: usize, k: usize| match k < n {
        true => x[r * n + k],
        false => p[r * parameters + k - n],
    };
    let mean = |of: &dyn Fn(usize) -> f64| (0..rows).map(of).sum::<f64>() / rows as f64;
    let centers: Vec<f64> = (0..columns).map(|k| mean(&|r| regressor(r, k))).collect();
    let design = Mat::from_fn(rows, columns, |r, k| regressor(r, k) - centers[k]);
    let targets = Mat::from_fn(rows, n, |r, k| y[r * n + k]);
    // A little of the identity, so that columns that depend on each other do no harm.
    let mut gram = design.transpose() * &design;
    let ridge = 1e-9 * (0..columns).map(|k| gram[(k, k)]).sum::<f64>();
    for k in 0..columns {
        gram[(k, k)] += ridge;
    }
    let map = gram.partial_piv_lu().solve(design.transpose() * &targets);
    map.subrows(0, n).transpose().to_owned()
}
