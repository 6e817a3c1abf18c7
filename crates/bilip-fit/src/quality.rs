//! How good a model is on rows.

use bilip::metrics;

use crate::error::Result;
use crate::named::NamedModel;
use crate::prepare::Rows;

/// Bins of the calibration error.
const BINS: usize = 15;

/// How good a model is on some rows. Measured, not proved.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quality {
    /// Of numbers: one entry per target.
    Numbers(Vec<TargetQuality>),
    /// Of classes.
    Classes {
        /// Share of rows whose likeliest class is theirs.
        accuracy: f64,
        /// Negative log likelihood.
        nll: f64,
        /// Expected calibration error, 15 bins.
        ece: f64,
        /// Mean uncertainty.
        uncertainty: f64,
    },
}

/// How good the values of one target are, in the user's units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetQuality {
    /// Root mean square of the error.
    pub rmse: f64,
    /// Share of the variance explained; there is none of rows that do not vary.
    pub r2: Option<f64>,
}

/// How good a model is on rows of x, p and y.
pub(crate) fn quality(model: &NamedModel, rows: &Rows) -> Result<Quality> {
    let Rows { x, p, y, .. } = rows;
    match model.classes() {
        Some(classes) => of_classes(model, x, y, classes),
        None => of_numbers(model, x, p, y),
    }
}

fn of_numbers(model: &NamedModel, x: &[f64], p: &[f64], y: &[f64]) -> Result<Quality> {
    let columns = model.outputs();
    let predicted = model.evaluate(x, p)?;
    let rows = y.len() as f64 / columns as f64;
    let of = |k: usize| {
        let column = || y.iter().skip(k).step_by(columns);
        let mean = column().sum::<f64>() / rows;
        let spread: f64 = column().map(|v| (v - mean).powi(2)).sum();
        let square: f64 = column()
            .zip(predicted.iter().skip(k).step_by(columns))
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        let varies = rows >= 2.0 && spread > 1e-20 * mean * mean * rows;
        TargetQuality {
            rmse: (square / rows).sqrt(),
            r2: varies
                .then_some(1.0 - square / spread)
                .filter(|r2| r2.is_finite()),
        }
    };
    Ok(Quality::Numbers((0..columns).map(of).collect()))
}

fn of_classes(model: &NamedModel, x: &[f64], y: &[f64], classes: usize) -> Result<Quality> {
    let labels: Vec<usize> = y.iter().map(|v| *v as usize).collect();
    let columns = classes + 1;
    let values = model.evaluate(x, &[])?;
    let p: Vec<f64> = values
        .chunks_exact(columns)
        .flat_map(|row| &row[..classes])
        .copied()
        .collect();
    Ok(Quality::Classes {
        accuracy: metrics::accuracy(&p, &labels)?,
        nll: metrics::negative_log_likelihood(&p, &labels)?,
        ece: metrics::calibration_error(&p, &labels, BINS)?,
        uncertainty: values.iter().skip(classes).step_by(columns).sum::<f64>() / y.len() as f64,
    })
}
