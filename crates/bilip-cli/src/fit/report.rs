//! What a fit has come to.

use anyhow::Result;
use bilip::{Certificate, InverseOptions, Status, at_least, at_most, metrics};
use serde_json::{Value, json};

use super::prepare::Prepared;
use crate::args;
use crate::model::Loaded;
use crate::text::{print, shown};
use crate::{Outcome, apply};

/// Bins of the calibration error.
const BINS: usize = 15;

/// Root mean square of the error and share of the variance explained of every target, in the user's units. There is no
/// such share of rows that do not vary.
fn quality(model: &Loaded, [x, p, y]: &[Vec<f64>; 3]) -> Result<Vec<(f64, Option<f64>)>> {
    if y.is_empty() {
        return Ok(Vec::new());
    }
    let columns = model.targets().len();
    let predicted = model.evaluate(x, p)?;
    let rows = y.len() as f64 / columns as f64;
    Ok((0..columns)
        .map(|k| {
            let column = || y.iter().skip(k).step_by(columns);
            let mean = column().sum::<f64>() / rows;
            let spread: f64 = column().map(|v| (v - mean).powi(2)).sum();
            let square: f64 = column()
                .zip(predicted.iter().skip(k).step_by(columns))
                .map(|(a, b)| (a - b).powi(2))
                .sum();
            let varies = rows >= 2.0 && spread > 1e-20 * mean * mean * rows;
            (
                (square / rows).sqrt(),
                varies
                    .then_some(1.0 - square / spread)
                    .filter(|r2| r2.is_finite()),
            )
        })
        .collect())
}

/// Says how good the model is and what is proved of it.
pub(super) fn report(
    args: &args::Fit,
    model: &Loaded,
    prepared: &Prepared,
    parameters: usize,
    seconds: f64,
) -> Result<Outcome> {
    let certificate = model.model.certificate();
    let (kind, n, rows) = (model.kind_name(), model.dim(), prepared.training.rows());
    let found = match prepared.classes.is_empty() {
        true => of_numbers(model, prepared, &certificate)?,
        false => of_classes(model, prepared)?,
    };
    if args.json {
        let mut summary = json!({
            "kind": kind,
            "output": args.output,
            "rows": rows,
            "held_out_rows": prepared.validation.as_ref().map_or(0, |t| t.rows()),
            "parameters": parameters,
            "seconds": seconds,
            "certificate": certificate,
        });
        if let Some(summary) = summary.as_object_mut() {
            summary.extend(found.json);
        }
        print(&(serde_json::to_string_pretty(&summary)? + "\n"))?;
    } else {
        print(&format!(
            "{kind} of {n} inputs, {}{parameters} parameters, fitted to {rows} rows in {seconds:.1} s\n{}{}{}written to {}\n",
            found.size,
            found.quality,
            bounds_line(&certificate),
            found.more,
            args.output.display()
        ))?;
    }
    if let Some(shortfall) = &found.shortfall {
        eprintln!("{shortfall}");
    }
    Ok(match certificate.holds() && found.shortfall.is_none() {
        true => Outcome::Done,
        false => Outcome::NotMet,
    })
}

/// What there is to say of a model besides its size and bounds.
struct Found {
    json: serde_json::Map<String, Value>,
    /// Of the size: the classes.
    size: String,
    quality: String,
    /// What follows from the bounds.
    more: String,
    /// What was asked for and not reached.
    shortfall: Option<String>,
}

fn of_numbers(model: &Loaded, prepared: &Prepared, certificate: &Certificate) -> Result<Found> {
    let training = quality(model, &prepared.raw[0])?;
    let validation = quality(model, &prepared.raw[1])?;
    let tolerance = model.natural_tolerance();
    let minimum = if model.is_potential() && model.parameters() == 0 {
        let options = InverseOptions {
            tolerance,
            ..Default::default()
        };
        model.minimize(&[], &options)?.pop()
    } else {
        None
    };
    let mut text = String::new();
    for (k, (name, (rmse, _))) in model.targets().iter().zip(&training).enumerate() {
        text += &format!("error      {}: {} rms on these rows", shown(name), short(*rmse));
        if let Some((rmse, r2)) = validation.get(k) {
            text += &format!(", {} on those held out", short(*rmse));
            if let Some(r2) = r2 {
                text += &format!(" (R2 {})", short(*r2));
            }
        }
        text += "\n";
    }
    let mut more = String::new();
    if let Some(pl) = certificate.pl_constant() {
        more += &format!("           Polyak-Lojasiewicz constant >= {}\n", at_least(pl, 5));
    }
    if let Some(minimum) = &minimum {
        more += &apply::describe(model, minimum);
    }
    let rmse = |q: &[(f64, Option<f64>)]| json!(q.iter().map(|q| q.0).collect::<Vec<_>>());
    Ok(Found {
        json: named([
            ("targets", json!(model.targets())),
            ("train_rmse", rmse(&training)),
            ("validation_rmse", rmse(&validation)),
            (
                "validation_r2",
                json!(validation.iter().map(|q| q.1).collect::<Vec<_>>()),
            ),
            ("minimum", json!(minimum)),
        ]),
        size: String::new(),
        quality: text,
        more,
        shortfall: minimum
            .filter(|m| m.status != Status::Converged)
            .map(|m| apply::far_from_minimum(&[m], tolerance)),
    })
}

fn of_classes(model: &Loaded, prepared: &Prepared) -> Result<Found> {
    let count = prepared.classes.len();
    let training = class_quality(model, &prepared.raw[0], count)?;
    let validation = class_quality(model, &prepared.raw[1], count)?;
    let mut text = String::new();
    for (which, quality) in [("these rows", &training), ("held out", &validation)] {
        if let [(_, accuracy), (_, nll), (_, ece), (_, uncertainty)] = quality[..] {
            text += &format!(
                "{which:10} accuracy {accuracy:.4}, negative log likelihood {nll:.4}, calibration error {ece:.4}, mean uncertainty {uncertainty:.3}\n"
            );
        }
    }
    let numbers =
        |q: Vec<(&'static str, f64)>| Value::Object(named(q.into_iter().map(|(k, v)| (k, json!(v)))));
    Ok(Found {
        json: named([
            ("classes", json!(prepared.classes)),
            ("train", numbers(training)),
            ("validation", numbers(validation)),
        ]),
        size: format!("{count} classes, "),
        quality: text,
        more: String::new(),
        shortfall: None,
    })
}

fn named(values: impl IntoIterator<Item = (&'static str, Value)>) -> serde_json::Map<String, Value> {
    values.into_iter().map(|(k, v)| (k.to_string(), v)).collect()
}

fn bounds_line(certificate: &Certificate) -> String {
    let proved = certificate.proved();
    match certificate.holds() {
        true => format!(
            "bounds     mu >= {}, nu <= {} in your units (distortion <= {}): proved\n",
            at_least(proved.mu(), 5),
            at_most(proved.nu(), 5),
            at_most(proved.distortion(), 5),
        ),
        false => format!(
            "bounds     mu = {}, nu = {}: NOT PROVED\n",
            certificate.claimed().mu(),
            certificate.claimed().nu()
        ),
    }
}

/// How good a classifier is on rows, by name; empty without rows.
fn class_quality(
    model: &Loaded,
    [x, _, y]: &[Vec<f64>; 3],
    classes: usize,
) -> Result<Vec<(&'static str, f64)>> {
    if y.is_empty() {
        return Ok(Vec::new());
    }
    let labels: Vec<usize> = y.iter().map(|v| *v as usize).collect();
    let columns = classes + 1;
    let values = model.evaluate(x, &[])?;
    let p: Vec<f64> = values
        .chunks_exact(columns)
        .flat_map(|row| &row[..classes])
        .copied()
        .collect();
    let uncertainty = values.iter().skip(classes).step_by(columns).sum::<f64>() / y.len() as f64;
    Ok(vec![
        ("accuracy", metrics::accuracy(&p, &labels)?),
        ("nll", metrics::negative_log_likelihood(&p, &labels)?),
        ("ece", metrics::calibration_error(&p, &labels, BINS)?),
        ("uncertainty", uncertainty),
    ])
}

/// A number with five significant digits.
fn short(value: f64) -> String {
    let text = format!("{value:.4e}");
    text.parse::<f64>().map_or(text, |v| v.to_string())
}
