//! A Gaussian process on random features: how sure a network can be, by the distance of an input to
//! its data.
//!
//! With `φ(h) = √(2/D)·cos(Ωh + b)`, Gaussian frequencies Ω and uniform phases b, `⟨φ(h), φ(h')⟩`
//! approximates the kernel `exp(−‖h − h'‖²/2ℓ²)` (Rahimi and Recht 2007); a linear model `⟨φ(h),
//! β⟩` with a standard normal prior on β is then a Gaussian process. Its posterior covariance is
//! `ρ(ρI + Σ wᵢφᵢφᵢᵀ)⁻¹`: exact for regression with noise of variance ρ and all weights 1,
//! Laplace's approximation for classification with weights p(1 − p).

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};

use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::check_matrix;
use crate::base::parallel;
use crate::base::random::Rng;

/// Rows that are predicted at once.
const BLOCK_ROWS: usize = 512;

/// Random Fourier features of a Gaussian kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomFeatures {
    /// `D × d`, the length scale included.
    frequencies: Mat<f64>,
    phases: Vec<f64>,
    normalized: bool,
}

impl RandomFeatures {
    /// Added to the variance of a row before it is divided by its root.
    pub const TINY: f64 = 1e-6;

    /// Features from their frequencies, `D × d`, and phases.
    ///
    /// # Errors
    /// On sizes of zero or that do not fit, and numbers that are not finite.
    pub fn new(frequencies: Mat<f64>, phases: Vec<f64>) -> Result<Self> {
        if frequencies.nrows() == 0 || frequencies.ncols() == 0 {
            return Err(Error::shape(
                "random features",
                "at least one frequency of at least one input",
                format!("{}×{}", frequencies.nrows(), frequencies.ncols()),
            ));
        }
        if phases.len() != frequencies.nrows() {
            return Err(Error::shape("phases", frequencies.nrows(), phases.len()));
        }
        check_matrix("frequencies", frequencies.as_ref())?;
        check_finite("phases", &phases)?;
        Ok(RandomFeatures {
            frequencies,
            phases,
            normalized: false,
        })
    }

    /// `count` features of `inputs` numbers for the kernel of the given length scale. Orthogonal
    /// ones (Yu et al. 2016) come in blocks of perpendicular frequencies, which approximate the
    /// kernel better; their lengths are those of independent ones.
    ///
    /// # Errors
    /// On sizes of zero and a length scale that is not positive.
    pub fn draw(
        inputs: usize,
        count: usize,
        length_scale: f64,
        orthogonal: bool,
        rng: &mut Rng,
    ) -> Result<Self> {
        if !(length_scale > 0.0 && length_scale.is_finite()) {
            return Err(Error::setting(
                "length_scale",
                length_scale,
                "must be positive and finite",
            ));
        }
        let mut frequencies = rng.matrix(count, inputs, 1.0);
        if orthogonal {
            let mut first = 0;
            while first < count {
                let rows = inputs.min(count - first);
                // The rows of a Gaussian matrix's Q are perpendicular and, as a set, without
                // preferred direction.
                let q = rng.matrix(inputs, inputs, 1.0).qr().compute_thin_Q();
                for i in 0..rows {
                    let length = frequencies.row(first + i).norm_l2();
                    for j in 0..inputs {
                        frequencies[(first + i, j)] = length * q[(j, i)];
                    }
                }
                first += rows;
            }
        }
        for j in 0..inputs {
            for i in 0..count {
                frequencies[(i, j)] /= length_scale;
            }
        }
        let phases = (0..count)
            .map(|_| std::f64::consts::TAU * rng.uniform())
            .collect();
        Self::new(frequencies, phases)
    }

    /// The same features of rows that are first moved to mean 0 and scaled to variance 1 (each row
    /// by itself). Distances between rows are not kept by that.
    pub fn with_normalized_inputs(self) -> Self {
        RandomFeatures {
            normalized: true,
            ..self
        }
    }

    /// Whether rows are normalized first.
    pub fn normalized_inputs(&self) -> bool {
        self.normalized
    }

    /// Number of features.
    pub fn count(&self) -> usize {
        self.frequencies.nrows()
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.frequencies.ncols()
    }

    /// Frequencies, `D × d`.
    pub fn frequencies(&self) -> MatRef<'_, f64> {
        self.frequencies.as_ref()
    }

    /// Phases.
    pub fn phases(&self) -> &[f64] {
        &self.phases
    }

    /// `φ(h)` of every row, `[batch, inputs] → [batch, count]`.
    ///
    /// # Errors
    /// When the numbers do not make rows.
    pub fn features(&self, h: &[f64]) -> Result<Vec<f64>> {
        let (count, inputs) = self.frequencies.shape();
        if !h.len().is_multiple_of(inputs) {
            return Err(Error::shape(
                "inputs of random features",
                format!("rows of {inputs}"),
                h.len(),
            ));
        }
        let rows = h.len() / inputs;
        let mut h = std::borrow::Cow::Borrowed(h);
        if self.normalized {
            h.to_mut().chunks_exact_mut(inputs).for_each(normalize);
        }
        let mut out = vec![0.0; rows * count];
        matmul(
            MatMut::from_column_major_slice_mut(&mut out, count, rows),
            Accum::Replace,
            self.frequencies.as_ref(),
            MatRef::from_column_major_slice(&h, inputs, rows),
            1.0,
            Par::Seq,
        );
        let scale = (2.0 / count as f64).sqrt();
        for row in out.chunks_exact_mut(count) {
            for (v, phase) in row.iter_mut().zip(&self.phases) {
                *v = scale * (*v + phase).cos();
            }
        }
        Ok(out)
    }
}

/// Mean 0 and variance 1; the small number keeps a constant row from dividing by zero.
fn normalize(row: &mut [f64]) {
    let count = row.len() as f64;
    let mean = row.iter().sum::<f64>() / count;
    let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
    let scale = 1.0 / (variance + RandomFeatures::TINY).sqrt();
    row.iter_mut().for_each(|v| *v = (*v - mean) * scale);
}

/// The precision of the weights on features, summed up row by row: `ρI + Σ wᵢφᵢφᵢᵀ`.
#[derive(Clone, Debug, PartialEq)]
pub struct PosteriorPrecision {
    matrix: Mat<f64>,
    ridge: f64,
}

impl PosteriorPrecision {
    /// That of the prior, `ρI`.
    ///
    /// # Errors
    /// Unless ρ is positive and finite.
    pub fn new(count: usize, ridge: f64) -> Result<Self> {
        if !(ridge > 0.0 && ridge.is_finite()) {
            return Err(Error::setting("ridge", ridge, "must be positive and finite"));
        }
        Ok(PosteriorPrecision {
            matrix: Mat::from_fn(count, count, |i, j| if i == j { ridge } else { 0.0 }),
            ridge,
        })
    }

    /// Takes all that is known so far, but not the prior, down to a share: the step of a moving
    /// average.
    ///
    /// # Errors
    /// Unless the share is between 0 and 1.
    pub fn fade(&mut self, share: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::setting("share", share, "must be between 0 and 1"));
        }
        let count = self.matrix.nrows();
        for j in 0..count {
            for i in 0..count {
                self.matrix[(i, j)] *= share;
            }
            self.matrix[(j, j)] += (1.0 - share) * self.ridge;
        }
        Ok(())
    }

    /// Adds rows of features, `[batch, count]`, each with its weight.
    ///
    /// # Errors
    /// When sizes do not fit, or a weight is negative or not a number.
    pub fn add(&mut self, features: &[f64], weights: &[f64]) -> Result<()> {
        let count = self.matrix.nrows();
        if features.len() != weights.len() * count {
            return Err(Error::shape(
                "features",
                format!("{} rows of {count}", weights.len()),
                features.len(),
            ));
        }
        if let Some(w) = weights.iter().find(|w| !(**w >= 0.0 && w.is_finite())) {
            return Err(Error::setting("weight", w, "must be finite and not negative"));
        }
        let mut scaled = features.to_vec();
        for (row, w) in scaled.chunks_exact_mut(count).zip(weights) {
            let root = w.sqrt();
            row.iter_mut().for_each(|v| *v *= root);
        }
        let columns = MatRef::from_column_major_slice(&scaled, count, weights.len());
        matmul(
            self.matrix.as_mut(),
            Accum::Add,
            columns,
            columns.transpose(),
            1.0,
            Par::Seq,
        );
        Ok(())
    }

    /// Cholesky's factor `LLᵀ = (ρI + Σ wφφᵀ)/ρ`, the inverse of the covariance.
    fn factor(&self) -> Result<Mat<f64>> {
        let scaled = &self.matrix * faer::Scale(1.0 / self.ridge);
        let factor = scaled.llt(Side::Lower).map_err(|_| {
            Error::setting(
                "ridge",
                self.ridge,
                "is too small: the precision matrix is not positive definite in double precision",
            )
        })?;
        Ok(factor.L().to_owned())
    }
}

/// A Gaussian process at the end of a network: features, weights with their posterior, and a bias.
#[derive(Clone, Debug, PartialEq)]
pub struct GpHead {
    features: RandomFeatures,
    /// Means of the weights, `D × outputs`.
    weights: Mat<f64>,
    bias: Vec<f64>,
    factor: Mat<f64>,
}

impl GpHead {
    /// A head from its parts; the weights are `D × outputs`.
    ///
    /// # Errors
    /// When sizes do not fit, a number is not finite, or the precision is not positive definite.
    pub fn new(
        features: RandomFeatures,
        weights: Mat<f64>,
        bias: Vec<f64>,
        precision: &PosteriorPrecision,
    ) -> Result<Self> {
        if precision.matrix.nrows() != features.count() {
            return Err(Error::shape(
                "precision",
                features.count(),
                precision.matrix.nrows(),
            ));
        }
        Self::assemble(features, weights, bias, precision.factor()?)
    }

    fn assemble(
        features: RandomFeatures,
        weights: Mat<f64>,
        bias: Vec<f64>,
        factor: Mat<f64>,
    ) -> Result<Self> {
        let count = features.count();
        if weights.nrows() != count || weights.ncols() == 0 {
            return Err(Error::shape(
                "weights",
                format!("{count} rows and at least one column"),
                format!("{}×{}", weights.nrows(), weights.ncols()),
            ));
        }
        if bias.len() != weights.ncols() {
            return Err(Error::shape("bias", weights.ncols(), bias.len()));
        }
        check_matrix("weights", weights.as_ref())?;
        check_finite("bias", &bias)?;
        Ok(GpHead {
            features,
            weights,
            bias,
            factor,
        })
    }

    /// The exact posterior of a regression with noise of variance ρ: `β = (ρI + ΦᵀΦ)⁻¹Φᵀy`, without
    /// bias. Rows `h` and targets `[batch, outputs]`.
    ///
    /// # Errors
    /// When sizes do not fit, or the precision is not positive definite.
    pub fn regression(features: RandomFeatures, h: &[f64], targets: &[f64], ridge: f64) -> Result<Self> {
        let phi = features.features(h)?;
        let count = features.count();
        let rows = phi.len() / count;
        if rows == 0 || targets.is_empty() || !targets.len().is_multiple_of(rows) {
            return Err(Error::shape("targets", format!("{rows} rows"), targets.len()));
        }
        check_finite("targets", targets)?;
        let outputs = targets.len() / rows;
        let mut precision = PosteriorPrecision::new(count, ridge)?;
        precision.add(&phi, &vec![1.0; rows])?;
        let factor = precision.factor()?;
        let right = MatRef::from_column_major_slice(&phi, count, rows)
            * MatRef::from_column_major_slice(targets, outputs, rows).transpose();
        // (ρLLᵀ)β = Φᵀy.
        let mut weights = right * faer::Scale(1.0 / ridge);
        factor.as_ref().solve_lower_triangular_in_place(weights.as_mut());
        factor
            .as_ref()
            .transpose()
            .solve_upper_triangular_in_place(weights.as_mut());
        Self::new(features, weights, vec![0.0; outputs], &precision)
    }

    /// A head from its parts with the factor L of the inverse covariance, `LLᵀ`, given by the rows
    /// of its lower triangle.
    ///
    /// # Errors
    /// When sizes do not fit, a number is not finite, or the diagonal of L is not positive.
    pub(crate) fn from_triangle(
        features: RandomFeatures,
        weights: Mat<f64>,
        bias: Vec<f64>,
        triangle: &[f64],
    ) -> Result<Self> {
        let count = features.count();
        if triangle.len() != count * (count + 1) / 2 {
            return Err(Error::shape("factor", count * (count + 1) / 2, triangle.len()));
        }
        let factor = Mat::from_fn(count, count, |i, j| {
            if j <= i {
                triangle[i * (i + 1) / 2 + j]
            } else {
                0.0
            }
        });
        if let Some(i) = (0..count).find(|i| factor[(*i, *i)] <= 0.0) {
            return Err(Error::setting(
                "factor",
                factor[(i, i)],
                format!("must be positive on its diagonal, entry {i}"),
            ));
        }
        Self::assemble(features, weights, bias, factor)
    }

    /// The factor L of the inverse covariance, `LLᵀ`, by the rows of its lower triangle.
    pub(crate) fn triangle(&self) -> Vec<f64> {
        let count = self.features.count();
        (0..count)
            .flat_map(|i| (0..=i).map(move |j| (i, j)))
            .map(|at| self.factor[at])
            .collect()
    }

    /// The factor L of the inverse covariance of the weights, `LLᵀ`.
    pub fn factor(&self) -> MatRef<'_, f64> {
        self.factor.as_ref()
    }

    /// Means of the weights, `D × outputs`.
    pub fn weights(&self) -> MatRef<'_, f64> {
        self.weights.as_ref()
    }

    /// The bias of every output.
    pub fn bias(&self) -> &[f64] {
        &self.bias
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// The features.
    pub fn features(&self) -> &RandomFeatures {
        &self.features
    }

    /// Means and variances of every row: `[batch, outputs]` and `[batch]`. The variance is the same
    /// for all outputs, and does not contain that of the noise.
    ///
    /// # Errors
    /// When the numbers do not make rows.
    pub fn predict(&self, h: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let inputs = self.features.inputs();
        if !h.len().is_multiple_of(inputs) {
            // Says so.
            return self.predict_block(h);
        }
        let parts = parallel::map_chunks(h.len() / inputs, BLOCK_ROWS, |rows| {
            self.predict_block(&h[rows.start * inputs..rows.end * inputs])
        });
        let (mut mean, mut variance) = (Vec::new(), Vec::new());
        for part in parts {
            let (m, v) = part?;
            mean.extend(m);
            variance.extend(v);
        }
        Ok((mean, variance))
    }

    fn predict_block(&self, h: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let phi = self.features.features(h)?;
        let count = self.features.count();
        let rows = phi.len() / count;
        let outputs = self.outputs();
        let mut mean = vec![0.0; rows * outputs];
        matmul(
            MatMut::from_column_major_slice_mut(&mut mean, outputs, rows),
            Accum::Replace,
            self.weights.transpose(),
            MatRef::from_column_major_slice(&phi, count, rows),
            1.0,
            Par::Seq,
        );
        for row in mean.chunks_exact_mut(outputs) {
            row.iter_mut().zip(&self.bias).for_each(|(v, b)| *v += b);
        }
        let half = self.half(&phi);
        let variance = (0..rows).map(|j| half.col(j).squared_norm_l2()).collect();
        Ok((mean, variance))
    }

    /// Covariances of the rows with each other, `batch × batch`, the same for all outputs; the
    /// variances of [`predict`](Self::predict) are their diagonal.
    ///
    /// # Errors
    /// When the numbers do not make rows.
    pub fn covariance(&self, h: &[f64]) -> Result<Mat<f64>> {
        let half = self.half(&self.features.features(h)?);
        Ok(half.transpose() * &half)
    }

    /// `L⁻¹φ` of every row, one a column: `φᵀ(LLᵀ)⁻¹φ' = ⟨L⁻¹φ, L⁻¹φ'⟩`.
    fn half(&self, phi: &[f64]) -> Mat<f64> {
        let count = self.features.count();
        let mut half = MatRef::from_column_major_slice(phi, count, phi.len() / count).to_owned();
        self.factor
            .as_ref()
            .solve_lower_triangular_in_place(half.as_mut());
        half
    }

    /// Probabilities of the classes of every row, `[batch, outputs]`, the outputs taken as logits:
    /// the mean-field approximation of their mean over the posterior, `softmax(f/√(1 + λσ²))`, with
    /// λ = π/8 the customary factor.
    ///
    /// # Errors
    /// When the numbers do not make rows, or the factor is negative.
    pub fn probabilities(&self, h: &[f64], factor: f64) -> Result<Vec<f64>> {
        if !(factor >= 0.0 && factor.is_finite()) {
            return Err(Error::setting(
                "factor",
                factor,
                "must be finite and not negative",
            ));
        }
        let (mut logits, variance) = self.predict(h)?;
        for (row, variance) in logits.chunks_exact_mut(self.outputs()).zip(variance) {
            let scale = 1.0 / (1.0 + factor * variance).sqrt();
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut sum = 0.0;
            for v in row.iter_mut() {
                *v = ((*v - largest) * scale).exp();
                sum += *v;
            }
            row.iter_mut().for_each(|v| *v /= sum);
        }
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faer::linalg::solvers::Solve;

    #[test]
    fn the_posterior_of_a_regression_is_that_of_the_kernel() {
        // In the space of functions: mean K₊(K + ρI)⁻¹y, covariance K₊₊ − K₊(K + ρI)⁻¹K₊ᵀ, with the
        // features' own kernel.
        let mut rng = Rng::new(1);
        for orthogonal in [false, true] {
            let features = RandomFeatures::draw(3, 64, 1.5, orthogonal, &mut rng).unwrap();
            let (h, y, new) = (rng.normals(30 * 3), rng.normals(30 * 2), rng.normals(10 * 3));
            let ridge = 0.1;
            let head = GpHead::regression(features.clone(), &h, &y, ridge).unwrap();
            let (mean, variance) = head.predict(&new).unwrap();
            let covariance = head.covariance(&new).unwrap();
            let phi = |x: &[f64]| {
                let f = features.features(x).unwrap();
                MatRef::from_row_major_slice(&f, x.len() / 3, 64).to_owned()
            };
            let (a, b) = (phi(&h), phi(&new));
            let kernel = &a * a.transpose() + Mat::<f64>::identity(30, 30) * faer::Scale(ridge);
            let cross = &b * a.transpose();
            let solved = kernel
                .llt(Side::Lower)
                .unwrap()
                .solve(MatRef::from_row_major_slice(&y, 30, 2));
            let expected = &cross * &solved;
            let inner = kernel.llt(Side::Lower).unwrap().solve(cross.transpose());
            for i in 0..10 {
                for k in 0..2 {
                    assert!((mean[i * 2 + k] - expected[(i, k)]).abs() < 1e-10);
                }
                for k in 0..10 {
                    let full: f64 = (0..64).map(|j| b[(i, j)] * b[(k, j)]).sum();
                    let known: f64 = (0..30).map(|j| cross[(i, j)] * inner[(j, k)]).sum();
                    assert!((covariance[(i, k)] - (full - known)).abs() < 1e-10);
                }
                assert!((variance[i] - covariance[(i, i)]).abs() < 1e-14);
            }
        }
    }

    #[test]
    fn features_approximate_the_kernel_and_orthogonal_ones_do_so_better() {
        let error = |orthogonal: bool, count: usize| {
            let mut rng = Rng::new(7);
            let (x, y) = (rng.normals(8), rng.normals(8));
            let distance: f64 = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum();
            let exact = (-distance / (2.0 * 3.0 * 3.0)).exp();
            let repeats = 200;
            let square: f64 = (0..repeats)
                .map(|_| {
                    let f = RandomFeatures::draw(8, count, 3.0, orthogonal, &mut rng).unwrap();
                    let (a, b) = (f.features(&x).unwrap(), f.features(&y).unwrap());
                    let dot: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                    (dot - exact) * (dot - exact)
                })
                .sum();
            (square / repeats as f64).sqrt()
        };
        // 16 times the features, a quarter of the error.
        let (few, many) = (error(false, 32), error(false, 512));
        assert!(many < 0.35 * few, "{many} against {few}");
        assert!(error(true, 512) < many);
    }

    #[test]
    fn uncertainty_grows_with_the_distance_to_the_data() {
        let mut rng = Rng::new(3);
        let features = RandomFeatures::draw(2, 256, 1.0, true, &mut rng).unwrap();
        let h: Vec<f64> = rng.normals(200).iter().map(|v| 0.3 * v).collect();
        let y: Vec<f64> = h.chunks_exact(2).map(|p| p[0] - p[1]).collect();
        let head = GpHead::regression(features, &h, &y, 1e-2).unwrap();
        let (mean, variance) = head.predict(&[0.1, 0.2, 0.8, 0.8, 4.0, 4.0]).unwrap();
        assert!((mean[0] + 0.1).abs() < 0.05, "{mean:?}");
        assert!(
            variance[0] < variance[1] && variance[1] < variance[2],
            "{variance:?}"
        );
        // Far away the prior is all there is: k(x, x) = 1 on average.
        assert!((0.5..1.5).contains(&variance[2]), "{variance:?}");
    }

    #[test]
    fn probabilities_sum_to_one_and_flatten_with_uncertainty() {
        let mut rng = Rng::new(4);
        let features = RandomFeatures::draw(2, 32, 1.0, false, &mut rng).unwrap();
        let precision = PosteriorPrecision::new(32, 1.0).unwrap();
        let head = GpHead::new(features, rng.matrix(32, 3, 2.0), vec![1.0, 0.0, -1.0], &precision).unwrap();
        let x = rng.normals(20);
        let (plain, soft) = (
            head.probabilities(&x, 0.0).unwrap(),
            head.probabilities(&x, 10.0).unwrap(),
        );
        for (a, b) in plain.chunks_exact(3).zip(soft.chunks_exact(3)) {
            assert!((a.iter().sum::<f64>() - 1.0).abs() < 1e-14);
            let largest = |p: &[f64]| p.iter().copied().fold(0.0, f64::max);
            assert!(largest(b) < largest(a));
        }
    }

    #[test]
    fn bad_input_is_an_error() {
        let mut rng = Rng::new(5);
        let features = RandomFeatures::draw(2, 8, 1.0, false, &mut rng).unwrap();
        assert!(RandomFeatures::draw(2, 0, 1.0, false, &mut rng).is_err());
        assert!(RandomFeatures::draw(2, 4, 0.0, false, &mut rng).is_err());
        assert!(features.features(&[1.0]).is_err());
        assert!(PosteriorPrecision::new(8, 0.0).is_err());
        let mut precision = PosteriorPrecision::new(8, 1.0).unwrap();
        assert!(precision.add(&[0.0; 8], &[-1.0]).is_err());
        assert!(precision.add(&[0.0; 7], &[1.0]).is_err());
        assert!(GpHead::regression(features.clone(), &[0.0; 4], &[1.0; 3], 1.0).is_err());
        assert!(GpHead::new(features, Mat::zeros(8, 0), vec![], &precision).is_err());
    }
}
