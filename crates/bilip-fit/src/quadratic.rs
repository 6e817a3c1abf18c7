//! Quadratic regression: `½xᵀHx + gᵀx + c` by weighted least squares.

use bilip::faer::linalg::solvers::Solve;
use bilip::faer::{Mat, Side};

/// Above this number of inputs there are no products of two different inputs: the normal equations
/// would be the longest part of a fit.
const MOST_FULL: usize = 48;

/// Rows whose features are in memory at a time.
const BLOCK: usize = 4_096;

/// A quadratic function of standardized inputs.
#[derive(Clone, Debug)]
pub(crate) struct Quadratic {
    /// H, symmetric.
    pub hessian: Mat<f64>,
    /// g.
    pub slope: Vec<f64>,
    /// c.
    pub level: f64,
}

/// Monomials of one row: 1, the inputs, their squares and, for few inputs, products.
fn features(x: &[f64], out: &mut Vec<f64>) {
    out.push(1.0);
    out.extend(x);
    for (i, a) in x.iter().enumerate() {
        match x.len() <= MOST_FULL {
            true => out.extend(x[i..].iter().map(|b| a * b)),
            false => out.push(a * a),
        }
    }
}

/// Number of monomials of `n` inputs.
pub(crate) fn feature_count(n: usize) -> usize {
    1 + n + if n <= MOST_FULL { n * (n + 1) / 2 } else { n }
}

impl Quadratic {
    /// The fit of least weighted squares over rows of `n` inputs, with a penalty on all
    /// coefficients but the constant, as a share of the mean square of the features.
    ///
    /// `None` when the numbers do not allow one.
    pub fn fit(x: &[f64], n: usize, y: &[f64], weights: Option<&[f64]>, penalty: f64) -> Option<Self> {
        let count = feature_count(n);
        let mut gram = Mat::<f64>::zeros(count, count);
        let mut right = Mat::<f64>::zeros(count, 1);
        for start in (0..y.len()).step_by(BLOCK) {
            let rows = start..(start + BLOCK).min(y.len());
            let mut values = Vec::with_capacity(rows.len() * count);
            for r in rows.clone() {
                features(&x[r * n..(r + 1) * n], &mut values);
            }
            let root = |r: usize| weights.map_or(1.0, |w| w[r].sqrt());
            let block = Mat::from_fn(rows.len(), count, |r, k| values[r * count + k] * root(start + r));
            let target = Mat::from_fn(rows.len(), 1, |r, _| y[start + r] * root(start + r));
            gram += block.transpose() * &block;
            right += block.transpose() * &target;
        }
        for k in 1..count {
            // Relative to the feature itself, so that no unit matters.
            gram[(k, k)] *= 1.0 + penalty;
        }
        let tiny = 1e-12 * (0..count).map(|k| gram[(k, k)]).sum::<f64>() / count as f64;
        for k in 0..count {
            gram[(k, k)] += tiny;
        }
        let solution = gram.llt(Side::Lower).ok()?.solve(&right);
        let mut k = 1 + n;
        let mut hessian = Mat::<f64>::zeros(n, n);
        for i in 0..n {
            let last = if n <= MOST_FULL { n } else { i + 1 };
            for j in i..last {
                let value = solution[(k, 0)];
                hessian[(i, j)] += value;
                hessian[(j, i)] += value;
                k += 1;
            }
        }
        let found = Quadratic {
            hessian,
            slope: (1..=n).map(|k| solution[(k, 0)]).collect(),
            level: solution[(0, 0)],
        };
        let finite = found.level.is_finite()
            && found.slope.iter().all(|v| v.is_finite())
            && (0..n).all(|i| (0..n).all(|j| found.hessian[(i, j)].is_finite()));
        finite.then_some(found)
    }

    /// A quadratic function near this one that has one minimum: no eigenvalue of its Hessian is below
    /// the largest divided by the square of `distortion`, and along no eigenvector is the minimizer
    /// farther than `reach` from the origin. Slope and level are fitted again to rows.
    ///
    /// A direction with a slope and little or no curvature gets as much curvature as it takes to
    /// have the slope within reach: `λ ≥ |g|/reach`. Dropping the slope instead would lose what
    /// linear trends explain. Where neither slope nor curvature is larger than its error, there is no
    /// slope: noise would put the minimizer anywhere. `None` when the numbers do not allow it.
    pub fn convex(
        &self,
        x: &[f64],
        y: &[f64],
        weights: Option<&[f64]>,
        distortion: f64,
        reach: f64,
    ) -> Option<Self> {
        let n = self.slope.len();
        let eigen = self.hessian.self_adjoint_eigen(Side::Lower).ok()?;
        let (vectors, values) = (eigen.U().to_owned(), eigen.S().column_vector());
        let mut values: Vec<f64> = (0..n).map(|k| values[k].max(0.0)).collect();
        // The error of a coefficient of standardized inputs, about: of what is left, over the root of
        // the number of rows; of a curvature twice that, since ½x² varies half as much as x.
        let left = self
            .values(x)
            .iter()
            .zip(y)
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f64>();
        let rows = y.len() as f64;
        let error = (left / (rows - feature_count(n) as f64).max(1.0)).sqrt() / rows.sqrt();
        let unclear: Vec<bool> = values.iter().map(|v| *v < 2.0 * 2.0 * error).collect();
        let mut found = self.clone();
        // Raised curvature changes the slope that fits, which may take more curvature: few rounds do.
        for _ in 0..4 {
            for (k, value) in values.iter_mut().enumerate() {
                let slope: f64 = (0..n).map(|j| vectors[(j, k)] * found.slope[j]).sum();
                if !unclear[k] || slope.abs() > 2.0 * error {
                    *value = value.max(slope.abs() / reach);
                }
            }
            let largest = values.iter().copied().fold(0.0f64, f64::max);
            for value in &mut values {
                *value = value.max(largest / (distortion * distortion));
            }
            let scaled = Mat::from_fn(n, n, |i, k| vectors[(i, k)] * values[k]);
            found.hessian = &scaled * vectors.transpose();
            found = found.with_hessian_kept(x, y, weights)?;
        }
        for k in (0..n).filter(|k| unclear[*k]) {
            let slope: f64 = (0..n).map(|j| vectors[(j, k)] * found.slope[j]).sum();
            if slope.abs() <= 2.0 * error {
                (0..n).for_each(|j| found.slope[j] -= slope * vectors[(j, k)]);
            }
        }
        Some(found)
    }

    /// The same Hessian with the slope and the level that fit rows best.
    fn with_hessian_kept(&self, x: &[f64], y: &[f64], weights: Option<&[f64]>) -> Option<Self> {
        let n = self.slope.len();
        let curved = Quadratic {
            slope: vec![0.0; n],
            level: 0.0,
            hessian: self.hessian.clone(),
        };
        let left: Vec<f64> = curved.values(x).iter().zip(y).map(|(c, y)| y - c).collect();
        let mut gram = Mat::<f64>::zeros(n + 1, n + 1);
        let mut right = Mat::<f64>::zeros(n + 1, 1);
        for (r, row) in x.chunks_exact(n).enumerate() {
            let weight = weights.map_or(1.0, |w| w[r]);
            let feature = |k: usize| if k < n { row[k] } else { 1.0 };
            for i in 0..=n {
                for j in 0..=n {
                    gram[(i, j)] += weight * feature(i) * feature(j);
                }
                right[(i, 0)] += weight * feature(i) * left[r];
            }
        }
        let tiny = 1e-9 * (0..=n).map(|k| gram[(k, k)]).sum::<f64>() / (n + 1) as f64;
        for k in 0..=n {
            gram[(k, k)] += tiny;
        }
        let solution = gram.llt(Side::Lower).ok()?.solve(&right);
        let slope: Vec<f64> = (0..n).map(|k| solution[(k, 0)]).collect();
        let level = solution[(n, 0)];
        (level.is_finite() && slope.iter().all(|v| v.is_finite())).then_some(Quadratic {
            slope,
            level,
            hessian: curved.hessian,
        })
    }

    /// The gradient at a point.
    pub fn gradient(&self, x: &[f64]) -> Vec<f64> {
        let n = self.slope.len();
        (0..n)
            .map(|i| self.slope[i] + (0..n).map(|j| self.hessian[(i, j)] * x[j]).sum::<f64>())
            .collect()
    }

    /// The values at rows.
    pub fn values(&self, x: &[f64]) -> Vec<f64> {
        let n = self.slope.len();
        x.chunks_exact(n)
            .map(|x| {
                let of = |i: usize| {
                    let product: f64 = (0..n).map(|j| self.hessian[(i, j)] * x[j]).sum();
                    x[i] * (self.slope[i] + 0.5 * product)
                };
                self.level + (0..n).map(of).sum::<f64>()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn a_quadratic_function_is_found_exactly() {
        for n in [1, 2, 5, 60] {
            let mut rng = Rng::new(n as u64);
            let truth = Quadratic {
                hessian: Mat::from_fn(n, n, |i, j| match (i == j, n <= MOST_FULL) {
                    (true, _) => 2.0 + i as f64,
                    (false, true) => 0.1 * ((i + 1) * (j + 1)) as f64 / n as f64,
                    (false, false) => 0.0,
                }),
                slope: rng.normals(n),
                level: 3.0,
            };
            let x = rng.normals(n * 3 * feature_count(n));
            let y = truth.values(&x);
            let weights: Vec<f64> = y.iter().map(|_| 0.5 + rng.uniform()).collect();
            let found = Quadratic::fit(&x, n, &y, Some(&weights), 0.0).unwrap();
            let worst = found
                .values(&x)
                .iter()
                .zip(&y)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            assert!(worst < 1e-6, "{n}: {worst}");
            assert!((&found.hessian - &truth.hessian).norm_max() < 1e-6, "{n}");
        }
    }
}
