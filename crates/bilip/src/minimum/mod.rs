//! Minima of PL networks: the answers of `minimize` and `minimize_in`, and plain gradient methods
//! to compare them with.

mod bounded;
mod bundle;
mod cells;
mod relax;

pub use bounded::{BoundedMinimum, BoxOptions, BoxStatus};

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result, check_batch, check_rows};
use crate::base::real::Real;
use crate::base::rounding::norm_up;
use crate::inverse::{Inverse, InverseOptions, Status};
use crate::networks::map::BiLipschitz;
use crate::networks::partial::PartialPlNet;
use crate::networks::plnet::PlNet;

/// The global minimum of a PL network, with what is proved about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Minimum {
    /// The minimizer found.
    pub x: Vec<f64>,
    /// The value there, at most `gap` above the minimum.
    #[serde(with = "crate::base::decimal::json")]
    pub value: f64,
    /// A proved bound on `f(x) − min f`, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub gap: f64,
    /// A proved bound on the distance to the true minimizer, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub distance_bound: f64,
    /// Iterations taken.
    pub iterations: usize,
    /// How the solve ended.
    pub status: Status,
}

impl Minimum {
    pub(crate) fn known(x: Vec<f64>, offset: f64) -> Self {
        Minimum {
            x,
            value: offset,
            gap: 0.0,
            distance_bound: 0.0,
            iterations: 0,
            status: Status::Converged,
        }
    }

    /// One for every row, with the offset of each.
    pub(crate) fn from_inverse(inverse: Inverse, n: usize, offsets: &[f64]) -> Vec<Self> {
        inverse
            .x
            .chunks_exact(n)
            .zip(&inverse.rows)
            .zip(offsets)
            .map(|((x, row), offset)| {
                let residual = row.residual_bound;
                Minimum {
                    x: x.to_vec(),
                    value: offset + 0.5 * row.residual * row.residual,
                    gap: (0.5 * residual * residual * (1.0 + 1e-12)).next_up(),
                    distance_bound: row.error_bound,
                    iterations: row.iterations,
                    status: row.status,
                }
            })
            .collect()
    }
}

impl<T: Real> PlNet<T> {
    /// The global minimum.
    ///
    /// # Errors
    /// On settings out of range.
    pub fn minimize(&self, options: &InverseOptions) -> Result<Minimum> {
        if let Some(x) = self.minimizer() {
            return Ok(Minimum::known(
                x.iter().map(|v| v.as_f64()).collect(),
                self.offset(),
            ));
        }
        let inverse = self.net().inverse(&vec![0.0; self.dim()], options)?;
        Ok(Minimum::from_inverse(inverse, self.dim(), &[self.offset()]).remove(0))
    }
}

impl<T: Real> PartialPlNet<T> {
    /// The global minimum over x for every row of p.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity, and on settings out of range.
    pub fn minimize(&self, p: &[f64], options: &InverseOptions) -> Result<Vec<Minimum>> {
        let rows = check_batch("p", p, self.net().parameters())?;
        let n = self.net().dim();
        let inverse = self.net().inverse(&vec![0.0; rows * n], p, options)?;
        let offsets: Vec<f64> = self.offsets(p)?.iter().map(|(value, _)| *value).collect();
        Ok(Minimum::from_inverse(inverse, n, &offsets))
    }
}

/// A plain gradient method on f, for comparison: it uses nothing of the structure.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum GradientMethod {
    /// `x ← x − rate·∇f`.
    Descent {
        /// Step size.
        rate: f64,
    },
    /// Adam (Kingma and Ba 2014) with β = (0.9, 0.999), ε = 1e-8.
    Adam {
        /// Step size.
        rate: f64,
    },
}

/// The path of a gradient method.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientPath {
    /// The last point.
    pub x: Vec<f64>,
    /// `½‖G(x) − g‖²`, the exact gap up to rounding, at the start and after every step.
    pub gaps: Vec<f64>,
}

impl GradientMethod {
    /// Runs `steps` steps from `start`; stops early when the numbers leave the range of f64.
    ///
    /// # Errors
    /// On a start of the wrong size or with NaN or infinity, and on a rate that is not positive.
    pub fn run(&self, f: &PlNet<f64>, start: &[f64], steps: usize) -> Result<GradientPath> {
        let rate = match self {
            GradientMethod::Descent { rate } | GradientMethod::Adam { rate } => *rate,
        };
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::setting("rate", rate, "must be positive and finite"));
        }
        let n = f.dim();
        check_rows("start", start, 1, n)?;
        let gap = |x: &[f64]| -> Result<f64> { Ok(f.value(x)?[0] - f.offset()) };
        let mut x = start.to_vec();
        let mut gaps = vec![gap(&x)?];
        let (mut first, mut second) = (vec![0.0; n], vec![0.0; n]);
        for step in 1..=steps {
            let gradient = f.gradient(&x)?;
            match self {
                GradientMethod::Descent { .. } => {
                    for i in 0..n {
                        x[i] -= rate * gradient[i];
                    }
                }
                GradientMethod::Adam { .. } => {
                    let (c1, c2) = (1.0 - 0.9f64.powi(step as i32), 1.0 - 0.999f64.powi(step as i32));
                    for i in 0..n {
                        first[i] = 0.9 * first[i] + 0.1 * gradient[i];
                        second[i] = 0.999 * second[i] + 0.001 * gradient[i] * gradient[i];
                        x[i] -= rate * (first[i] / c1) / ((second[i] / c2).sqrt() + 1e-8);
                    }
                }
            }
            if !x.iter().all(|v| v.is_finite()) {
                break;
            }
            match gap(&x) {
                Ok(gap) => gaps.push(gap),
                Err(_) => break,
            }
        }
        Ok(GradientPath { x, gaps })
    }
}

/// A bound on the distance of `x` to the minimizer: `‖G(x) − g‖/μ`, rounding included.
///
/// # Errors
/// On an `x` of the wrong size or with NaN or infinity.
pub fn distance_to_minimum(f: &PlNet<f64>, x: &[f64]) -> Result<f64> {
    check_rows("x", x, 1, f.dim())?;
    let (g, error) = f.net().forward_with_error(x)?;
    let (center, center_error) = match f.minimizer() {
        Some(known) => f.net().forward_with_error(known)?,
        None => (vec![0.0; f.dim()], vec![0.0]),
    };
    let r: Vec<f64> = g.iter().zip(&center).map(|(a, b)| a - b).collect();
    let size = norm_up(&r) + error[0] + center_error[0];
    Ok((size / f.bounds().mu()).next_up())
}
