//! Split-conformal intervals: how far off a model was on rows that it had not seen says how far off
//! it will be on others (Vovk, Gammerman and Shafer 2005; Lei and others 2018).
//!
//! Nothing is assumed of the model or of the noise; what is assumed is that new rows come from where
//! the old ones came from. Measured, not proved.

use bilip::InverseOptions;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::named::NamedModel;
use crate::prepare::Rows;

/// Errors that a model file keeps of each variable.
const KEPT: usize = 400;

/// The key under which a model keeps its errors.
pub(crate) const KEY: &str = "unseen_errors";

/// How far off a model was on rows that it had not seen, variable by variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnseenErrors {
    /// Absolute errors of each target, sorted.
    outputs: Vec<Vec<f64>>,
    /// Absolute errors of each input as the inverse finds it, sorted; empty without an inverse.
    inputs: Vec<Vec<f64>>,
}

impl UnseenErrors {
    /// Of a model on rows; `None` for classes and without rows.
    pub(crate) fn of(model: &NamedModel, rows: &Rows) -> Result<Option<Self>> {
        if rows.count == 0 || model.classes().is_some() {
            return Ok(None);
        }
        let outputs = columns(&model.evaluate(&rows.x, &rows.p)?, &rows.y, model.outputs());
        let inputs = match model.is_invertible() && !model.is_potential() {
            false => Vec::new(),
            true => {
                let options = InverseOptions {
                    tolerance: model.natural_tolerance(),
                    ..Default::default()
                };
                columns(&model.invert(&rows.y, &rows.p, &options)?.x, &rows.x, model.dim())
            }
        };
        Ok(Some(UnseenErrors { outputs, inputs }))
    }

    /// Half the width of intervals around predictions, target by target, that cover a share of new
    /// rows.
    ///
    /// # Errors
    /// On a share that is not between 0 and 1, or too near to 1 for the number of rows.
    pub fn of_outputs(&self, share: f64) -> Result<Vec<f64>> {
        self.outputs
            .iter()
            .map(|errors| half_width(errors, share))
            .collect()
    }

    /// The same around inputs that the inverse finds.
    ///
    /// # Errors
    /// As [`of_outputs`](Self::of_outputs).
    pub fn of_inputs(&self, share: f64) -> Result<Vec<f64>> {
        self.inputs
            .iter()
            .map(|errors| half_width(errors, share))
            .collect()
    }
}

/// Sorted absolute errors, column by column.
fn columns(found: &[f64], truth: &[f64], count: usize) -> Vec<Vec<f64>> {
    (0..count)
        .map(|k| {
            let mut errors: Vec<f64> = (found.iter().zip(truth).skip(k).step_by(count))
                .map(|(a, b)| (a - b).abs())
                .map(|e| if e.is_finite() { e } else { f64::MAX })
                .collect();
            errors.sort_by(f64::total_cmp);
            thinned(errors)
        })
        .collect()
}

/// At most as many sorted errors as are kept, every quantile rounded up.
fn thinned(errors: Vec<f64>) -> Vec<f64> {
    let n = errors.len();
    match n <= KEPT {
        true => errors,
        false => (1..=KEPT)
            .map(|k| errors[(k * (n + 1)).div_ceil(KEPT + 1).min(n) - 1])
            .collect(),
    }
}

/// The `⌈(n+1)·share⌉`-th smallest of n errors: a new one is below it with at least this probability.
fn half_width(errors: &[f64], share: f64) -> Result<f64> {
    if !(share > 0.0 && share < 1.0) {
        return Err(Error::value("interval", share, "must be between 0 and 1"));
    }
    let at = ((errors.len() + 1) as f64 * share).ceil() as usize;
    match at <= errors.len() {
        true => Ok(errors[at.max(1) - 1]),
        false => Err(Error::value(
            "interval",
            share,
            format!(
                "the model was tried on {} rows that it had not seen, enough for {:.2} at most",
                errors.len(),
                errors.len() as f64 / (errors.len() + 1) as f64 - 0.005
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn intervals_cover_as_many_new_errors_as_they_should() {
        let mut rng = Rng::new(1);
        for (rows, share) in [(30, 0.8), (200, 0.9), (3_000, 0.95)] {
            let (mut covered, mut total) = (0, 0);
            for _ in 0..300 {
                let mut errors: Vec<f64> = rng.normals(rows).iter().map(|e| e.abs()).collect();
                errors.sort_by(f64::total_cmp);
                let width = half_width(&thinned(errors), share).unwrap();
                covered += rng.normals(50).iter().filter(|e| e.abs() <= width).count();
                total += 50;
            }
            let found = f64::from(covered as u32) / f64::from(total as u32);
            assert!((found - share).abs() < 0.02, "{rows} {share}: {found}");
        }
        assert!(half_width(&[1.0; 8], 0.9).is_err() && half_width(&[1.0; 9], 0.9).is_ok());
        assert!(half_width(&[1.0; 9], 1.0).is_err() && half_width(&[1.0; 9], f64::NAN).is_err());
    }
}
