//! A Gaussian process with one length scale per input, its settings by marginal likelihood
//! (Rasmussen and Williams 2006, chapter 5).

use bilip::faer::linalg::solvers::{DenseSolveCore, Solve};
use bilip::faer::{Mat, Side};
use rayon::prelude::*;

/// Rows that settings are found on, and rows that the process is built on.
const SEARCH_ROWS: usize = 400;
const MOST_ROWS: usize = 1_500;

/// Steps of the search for settings, and length scales where it begins.
const STEPS: usize = 60;
const STARTS: [f64; 2] = [1.0, 0.15];

/// Ranges of the logarithms of length scales, in standard deviations of the inputs, and of the
/// noise, as a share of the variance of the process.
const LENGTHS: (f64, f64) = (-3.0, 5.0);
const NOISES: (f64, f64) = (-24.0, 5.0);

/// How smooth the functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Smoothness {
    /// Infinitely often differentiable: the squared exponential kernel.
    All,
    /// Twice: Matérn's kernel of 5/2.
    Two,
}

impl Smoothness {
    /// The kernel at a scaled distance `ρ`, and `−k'(ρ)/ρ`.
    fn kernel(self, square: f64) -> (f64, f64) {
        match self {
            Smoothness::All => {
                let k = (-0.5 * square).exp();
                (k, k)
            }
            Smoothness::Two => {
                let d = (5.0 * square).sqrt();
                let e = (-d).exp();
                ((1.0 + d + d * d / 3.0) * e, 5.0 / 3.0 * (1.0 + d) * e)
            }
        }
    }
}

/// Posterior mean of a process with zero mean.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    smoothness: Smoothness,
    /// One over the length scale, per input.
    rates: Vec<f64>,
    /// Rows in units of the length scales.
    rows: Vec<f64>,
    coefficients: Vec<f64>,
    /// Logarithms of length scales and noise.
    settings: Vec<f64>,
    /// Standard deviation of the noise.
    #[cfg_attr(not(test), expect(dead_code))]
    noise: f64,
}

/// Rows in units of the length scales.
fn scaled(x: &[f64], rates: &[f64]) -> Vec<f64> {
    x.iter()
        .enumerate()
        .map(|(k, v)| v * rates[k % rates.len()])
        .collect()
}

fn square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// The covariance of rows with noise on its diagonal, and what its derivatives need.
fn covariance(x: &[f64], n: usize, smoothness: Smoothness, noise: f64) -> (Mat<f64>, Mat<f64>) {
    let rows = x.len() / n;
    let columns: Vec<Vec<(f64, f64)>> = (0..rows)
        .into_par_iter()
        .map(|j| {
            (0..rows)
                .map(|i| smoothness.kernel(square(&x[i * n..(i + 1) * n], &x[j * n..(j + 1) * n])))
                .collect()
        })
        .collect();
    let covariance = Mat::from_fn(rows, rows, |i, j| {
        columns[j][i].0 + if i == j { noise } else { 0.0 }
    });
    (covariance, Mat::from_fn(rows, rows, |i, j| columns[j][i].1))
}

/// The negative logarithm of the marginal likelihood with the best variance, per row, and its
/// gradient in the logarithms of length scales and noise.
fn likelihood(
    x: &[f64],
    y: &[f64],
    n: usize,
    smoothness: Smoothness,
    settings: &[f64],
) -> Option<(f64, Vec<f64>)> {
    let rows = y.len();
    let rates: Vec<f64> = settings[..n].iter().map(|l| (-l).exp()).collect();
    let noise = settings[n].exp();
    let x = scaled(x, &rates);
    let (covariance, slopes) = covariance(&x, n, smoothness, noise);
    let factor = covariance.llt(Side::Lower).ok()?;
    let target = Mat::from_fn(rows, 1, |r, _| y[r]);
    let alpha = factor.solve(&target);
    let variance = (0..rows).map(|r| y[r] * alpha[(r, 0)]).sum::<f64>() / rows as f64;
    let determinant: f64 = (0..rows).map(|r| 2.0 * factor.L()[(r, r)].ln()).sum();
    let value = 0.5 * variance.ln() + 0.5 * determinant / rows as f64;
    let inverse = factor.inverse();
    // ½ tr((K⁻¹ − ααᵀ/s²) dK), column by column.
    let parts: Vec<Vec<f64>> = (0..rows)
        .into_par_iter()
        .map(|j| {
            let mut sums = vec![0.0; n + 1];
            for i in 0..rows {
                let outer = inverse[(i, j)] - alpha[(i, 0)] * alpha[(j, 0)] / variance;
                let common = outer * slopes[(i, j)];
                for (k, sum) in sums[..n].iter_mut().enumerate() {
                    *sum += common * (x[i * n + k] - x[j * n + k]).powi(2);
                }
                if i == j {
                    sums[n] += outer * noise;
                }
            }
            sums
        })
        .collect();
    let gradient = (0..=n)
        .map(|k| 0.5 * parts.iter().map(|p| p[k]).sum::<f64>() / rows as f64)
        .collect();
    value.is_finite().then_some((value, gradient))
}

/// The lowest value that a walk down a gradient meets, and where.
///
/// Steps grow while a derivative keeps its sign and shrink where it changes (Riedmiller and Braun
/// 1993): robust against the very different slopes of these logarithms.
fn descend(
    mut settings: Vec<f64>,
    steps: usize,
    value: impl Fn(&[f64]) -> Option<(f64, Vec<f64>)>,
) -> Option<(f64, Vec<f64>)> {
    let count = settings.len();
    let mut sizes = vec![0.3; count];
    let mut before = vec![0.0; count];
    let mut best: Option<(f64, Vec<f64>)> = None;
    for _ in 0..steps {
        let Some((value, gradient)) = value(&settings) else {
            break;
        };
        if best.as_ref().is_none_or(|(v, _)| value < *v) {
            best = Some((value, settings.clone()));
        }
        for k in 0..count {
            sizes[k] = match gradient[k] * before[k] {
                same if same > 0.0 => f64::min(1.3 * sizes[k], 1.0),
                other if other < 0.0 => 0.5 * sizes[k],
                _ => sizes[k],
            };
            before[k] = gradient[k];
            let (low, high) = if k + 1 < count { LENGTHS } else { NOISES };
            settings[k] = (settings[k] - gradient[k].signum() * sizes[k]).clamp(low, high);
        }
        if sizes.iter().all(|s| *s < 0.01) {
            break;
        }
    }
    best
}

impl Process {
    /// Fits rows of `n` inputs in random order; `None` when the numbers do not allow it.
    pub fn fit(x: &[f64], y: &[f64], n: usize, smoothness: Smoothness) -> Option<Self> {
        // Few inputs are cheap to look at closely, and a function of them may be rough.
        let few = y.len().min(if n <= 3 { 2 * SEARCH_ROWS } else { SEARCH_ROWS });
        let (few_x, few_y) = (&x[..few * n], &y[..few]);
        let walk = |length: f64, steps: usize| {
            let mut start = vec![(length * (n as f64).sqrt()).ln(); n];
            start.push(-4.0);
            descend(start, steps, |s| likelihood(few_x, few_y, n, smoothness, s))
        };
        // Long or short scales: the better of two short walks goes on.
        let best = (STARTS.iter())
            .filter_map(|length| Some((*length, walk(*length, STEPS / 4)?.0)))
            .min_by(|a, b| a.1.total_cmp(&b.1))?;
        let best = walk(best.0, STEPS);
        let (_, settings) = best?;
        Self::with_settings(x, y, smoothness, &settings)
    }

    /// The same process on other rows.
    pub fn refit(&self, x: &[f64], y: &[f64]) -> Option<Self> {
        Self::with_settings(x, y, self.smoothness, &self.settings)
    }

    fn with_settings(x: &[f64], y: &[f64], smoothness: Smoothness, settings: &[f64]) -> Option<Self> {
        let n = settings.len() - 1;
        let rates: Vec<f64> = settings[..n].iter().map(|l| (-l).exp()).collect();
        let rows = y.len().min(MOST_ROWS);
        let scaled = scaled(&x[..rows * n], &rates);
        let (covariance, _) = covariance(&scaled, n, smoothness, settings[n].exp());
        let factor = covariance.llt(Side::Lower).ok()?;
        let alpha = factor.solve(&Mat::from_fn(rows, 1, |r, _| y[r]));
        let variance = (0..rows).map(|r| y[r] * alpha[(r, 0)]).sum::<f64>() / rows as f64;
        Some(Process {
            smoothness,
            rates,
            rows: scaled,
            coefficients: (0..rows).map(|r| alpha[(r, 0)]).collect(),
            settings: settings.to_vec(),
            noise: (variance * settings[n].exp()).sqrt(),
        })
    }

    /// The posterior mean at rows.
    pub fn values(&self, x: &[f64]) -> Vec<f64> {
        let n = self.rates.len();
        scaled(x, &self.rates)
            .par_chunks_exact(n)
            .map(|row| {
                (self.rows.chunks_exact(n).zip(&self.coefficients))
                    .map(|(center, c)| c * self.smoothness.kernel(square(row, center)).0)
                    .sum()
            })
            .collect()
    }

    /// The gradient of the posterior mean at a point.
    pub fn gradient(&self, x: &[f64]) -> Vec<f64> {
        let n = self.rates.len();
        let row = scaled(x, &self.rates);
        let mut sum = vec![0.0; n];
        for (center, c) in self.rows.chunks_exact(n).zip(&self.coefficients) {
            let slope = c * self.smoothness.kernel(square(&row, center)).1;
            for k in 0..n {
                sum[k] -= slope * (row[k] - center[k]) * self.rates[k];
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    fn rows(count: usize, n: usize, seed: u64) -> (Vec<f64>, Vec<f64>) {
        let mut rng = Rng::new(seed);
        let x: Vec<f64> = (0..n * count).map(|_| 3.4 * rng.uniform() - 1.7).collect();
        let y = (x.chunks_exact(n))
            .map(|x| (2.0 * x[0]).sin() + 0.5 * x[1].powi(2))
            .collect();
        (x, y)
    }

    #[test]
    fn the_gradient_of_the_likelihood_is_that_of_differences() {
        let (x, y) = rows(40, 3, 1);
        for smoothness in [Smoothness::All, Smoothness::Two] {
            let at = [0.3, 0.1, 0.8, -3.0];
            let (_, gradient) = likelihood(&x, &y, 3, smoothness, &at).unwrap();
            for k in 0..4 {
                let moved = |step: f64| {
                    let mut at = at;
                    at[k] += step;
                    likelihood(&x, &y, 3, smoothness, &at).unwrap().0
                };
                let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!(
                    (gradient[k] - difference).abs() < 1e-6,
                    "{k}: {} {difference}",
                    gradient[k]
                );
            }
        }
    }

    #[test]
    fn inputs_without_effect_get_long_scales_and_noise_is_found() {
        let (x, y) = rows(300, 4, 2);
        let mut rng = Rng::new(3);
        let noisy: Vec<f64> = y.iter().map(|v| v + 0.1 * rng.normal()).collect();
        let process = Process::fit(&x, &noisy, 4, Smoothness::All).unwrap();
        assert!((0.07..0.14).contains(&process.noise), "{}", process.noise);
        assert!(process.rates[2] < 0.3 * process.rates[0] && process.rates[3] < 0.3 * process.rates[0]);
        let (other, truth) = rows(200, 4, 4);
        let error = process
            .values(&other)
            .iter()
            .zip(&truth)
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f64>()
            / 200.0;
        assert!(error.sqrt() < 0.05, "{error}");
        // The gradient by differences.
        let at = [0.2, -0.4, 0.1, 0.5];
        let gradient = process.gradient(&at);
        for k in 0..4 {
            let moved = |step: f64| {
                let mut at = at;
                at[k] += step;
                process.values(&at)[0]
            };
            assert!((gradient[k] - (moved(1e-5) - moved(-1e-5)) / 2e-5).abs() < 1e-6);
        }
    }
}
