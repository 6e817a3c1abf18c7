//! What a fit has come to, in words and as JSON.

use anyhow::Result;
use bilip::{Certificate, InverseOptions, Status, at_least, at_most};
use bilip_fit::{Fit, Quality, TargetQuality};
use serde_json::{Value, json};

use crate::answer::{doubts, short, worth};
use crate::args;
use crate::text::{print, shown};
use crate::{Outcome, apply};

/// Says how good the model is and what is proved of it.
pub fn report(args: &args::Fit, fit: &Fit, seconds: f64) -> Result<Outcome> {
    let model = &fit.model;
    let certificate = model.certificate();
    let (kind, n, (rows, held_out)) = (model.kind_name(), model.dim(), fit.rows);
    let parameters = fit.parameters;
    let found = match fit.classes.is_empty() {
        true => of_numbers(fit, &certificate)?,
        false => of_classes(fit),
    };
    if args.json {
        let mut summary = json!({
            "kind": kind,
            "output": args.output,
            "rows": rows,
            "held_out_rows": held_out,
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
            "{}{kind} of {n} inputs, {}{parameters} parameters, fitted to {rows} rows in {seconds:.1} s\n{}{}{}{}written to {}\n",
            found.doubts,
            found.size,
            chosen(fit),
            found.quality,
            bounds_line(&certificate),
            found.more,
            args.output.display()
        ))?;
    }
    if let Some(shortfall) = &found.shortfall {
        eprintln!("{shortfall}");
    }
    Ok(
        match certificate.holds() && found.shortfall.is_none() && found.doubts.is_empty() {
            true => Outcome::Done,
            false => Outcome::NotMet,
        },
    )
}

/// What there is to say of a model besides its size and bounds.
struct Found {
    /// What speaks against the answer: this comes first.
    doubts: String,
    json: serde_json::Map<String, Value>,
    /// Of the size: the classes.
    size: String,
    quality: String,
    /// What follows from the bounds.
    more: String,
    /// What was asked for and not reached.
    shortfall: Option<String>,
}

fn of_numbers(fit: &Fit, certificate: &Certificate) -> Result<Found> {
    let model = &fit.model;
    let numbers = |quality: Option<&Quality>| match quality {
        Some(Quality::Numbers(targets)) => targets.clone(),
        _ => Vec::new(),
    };
    let (training, validation) = (numbers(Some(&fit.training)), numbers(fit.validation.as_ref()));
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
    for (k, (name, quality)) in model.targets().iter().zip(&training).enumerate() {
        text += &format!(
            "error      {}: {} rms on these rows",
            shown(name),
            short(quality.rmse)
        );
        if let Some(held_out) = validation.get(k) {
            text += &format!(", {} on those held out", short(held_out.rmse));
            if let Some(r2) = held_out.r2 {
                text += &format!(" (R2 {})", short(r2));
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
    if let Some(answer) = &fit.answer {
        more += &worth(answer);
    }
    let rmse = |q: &[TargetQuality]| json!(q.iter().map(|q| q.rmse).collect::<Vec<_>>());
    Ok(Found {
        json: named([
            ("targets", json!(model.targets())),
            ("train_rmse", rmse(&training)),
            ("validation_rmse", rmse(&validation)),
            (
                "validation_r2",
                json!(validation.iter().map(|q| q.r2).collect::<Vec<_>>()),
            ),
            ("minimum", json!(minimum)),
            ("answer", json!(fit.answer)),
            ("doubts", json!(fit.doubts)),
            ("search", json!({"chosen": fit.chosen, "trials": fit.trials})),
        ]),
        doubts: doubts(&fit.doubts),
        size: String::new(),
        quality: text,
        more,
        shortfall: minimum
            .filter(|m| m.status != Status::Converged)
            .map(|m| apply::far_from_minimum(&[m], tolerance)),
    })
}

fn of_classes(fit: &Fit) -> Found {
    let numbers = |quality: Option<&Quality>| match quality {
        Some(Quality::Classes {
            accuracy,
            nll,
            ece,
            uncertainty,
        }) => vec![
            ("accuracy", *accuracy),
            ("nll", *nll),
            ("ece", *ece),
            ("uncertainty", *uncertainty),
        ],
        _ => Vec::new(),
    };
    let (training, validation) = (numbers(Some(&fit.training)), numbers(fit.validation.as_ref()));
    let mut text = String::new();
    for (which, quality) in [("these rows", &training), ("held out", &validation)] {
        if let [(_, accuracy), (_, nll), (_, ece), (_, uncertainty)] = quality[..] {
            text += &format!(
                "{which:10} accuracy {accuracy:.4}, negative log likelihood {nll:.4}, calibration error {ece:.4}, mean uncertainty {uncertainty:.3}\n"
            );
        }
    }
    let json = |q: Vec<(&'static str, f64)>| Value::Object(named(q.into_iter().map(|(k, v)| (k, json!(v)))));
    Found {
        json: named([
            ("classes", json!(fit.classes)),
            ("train", json(training)),
            ("validation", json(validation)),
        ]),
        doubts: String::new(),
        size: format!("{} classes, ", fit.classes.len()),
        quality: text,
        more: String::new(),
        shortfall: None,
    }
}

fn named(values: impl IntoIterator<Item = (&'static str, Value)>) -> serde_json::Map<String, Value> {
    values.into_iter().map(|(k, v)| (k.to_string(), v)).collect()
}

/// The settings that a search has chosen, and by how much.
fn chosen(fit: &Fit) -> String {
    let Some(chosen) = &fit.chosen else {
        return String::new();
    };
    let last = fit.trials.last().map_or(0, |t| t.steps);
    let of = |ours: bool| {
        (fit.trials.iter())
            .filter(|t| t.steps == last && (t.candidate == *chosen) == ours)
            .map(|t| t.score)
            .fold(f64::INFINITY, f64::min)
    };
    let (ours, others) = (of(true), of(false));
    let by = match (others / ours).sqrt() {
        ratio if ratio.is_finite() && ratio >= 1.0 => {
            format!(" (error of the next best: {ratio:.2} times this)")
        }
        ratio if ratio.is_finite() => format!(" (simpler than one with {ratio:.2} times the error)"),
        _ => String::new(),
    };
    let tried = fit
        .trials
        .iter()
        .filter(|t| t.steps == fit.trials[0].steps)
        .count();
    format!("chosen     of {tried}: {chosen}{by}\n")
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
