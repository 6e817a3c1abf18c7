//! `eval`, `invert` and `minimize`: a model at work.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bilip::{InverseOptions, Status};
use serde_json::json;

use crate::Outcome;
use crate::args;
use crate::model::Loaded;
use crate::table::{Output, Table, check_output, print, write_file};

/// One row of p for every row: as given, or the only one repeated.
fn spread(p: Vec<f64>, parameters: usize, rows: usize) -> Result<Vec<f64>> {
    if parameters == 0 || p.len() == parameters * rows {
        return Ok(p);
    }
    ensure!(
        p.len() == parameters,
        "--at: {} rows of parameters for {rows} rows of data; give one, or one for each",
        p.len() / parameters
    );
    Ok(p.repeat(rows))
}

pub fn eval(args: &args::Eval) -> Result<Outcome> {
    let model = Loaded::read(&args.model)?;
    check_output(&args.output, &[&args.input, &args.model])?;
    let table = Table::read(&args.input)?;
    let x = columns(&table, &model.inputs(), &model, "inputs")?;
    let p = model.parameters_at(args.at.at.as_deref(), Some(&table))?;
    let p = spread(p, model.parameters(), table.rows())?;
    let y = model.evaluate(&x, &p)?;
    Output {
        names: &model.targets(),
        values: &y,
        single: model.single(),
    }
    .write(&args.output)?;
    Ok(Outcome::Done)
}

fn columns(table: &Table, names: &[String], model: &Loaded, what: &str) -> Result<Vec<f64>> {
    table.matching(names).with_context(|| {
        format!(
            "{}: the model has {} {what} ({}), the table {} columns of other names",
            model.shown,
            names.len(),
            names.join(", "),
            table.columns()
        )
    })
}

pub fn invert(args: &args::Invert) -> Result<Outcome> {
    let model = Loaded::read(&args.model)?;
    model.need_map()?;
    check_output(&args.output, &[&args.input, &args.model])?;
    if let Some(report) = &args.report {
        check_output(report, &[&args.input, &args.model])?;
    }
    let options = InverseOptions {
        method: args.method.clone(),
        tolerance: args.tol,
        max_iterations: args.max_iterations,
        ..Default::default()
    };
    let table = Table::read(&args.input)?;
    let y = columns(&table, &model.targets(), &model, "outputs")?;
    let p = model.parameters_at(args.at.at.as_deref(), Some(&table))?;
    let p = spread(p, model.parameters(), table.rows())?;
    let clock = Instant::now();
    let inverse = model.inverse(&y, &p, &options)?;
    let seconds = clock.elapsed().as_secs_f64();

    let rows = inverse.rows.len();
    let converged = inverse
        .rows
        .iter()
        .filter(|r| r.status == Status::Converged)
        .count();
    let largest = |f: fn(&bilip::RowReport) -> f64| inverse.rows.iter().map(f).fold(0.0f64, f64::max);
    let error = largest(|r| r.error_bound);
    let iterations: Vec<usize> = inverse.rows.iter().map(|r| r.iterations).collect();
    Output {
        names: &model.inputs(),
        values: &inverse.x,
        single: false,
    }
    .write(&args.output)?;
    if let Some(path) = &args.report {
        let report = json!({
            "rows": rows,
            "converged": converged,
            "max_error_bound": error,
            "max_residual": largest(|r| r.residual),
            "iterations": {
                "mean": iterations.iter().sum::<usize>() as f64 / rows.max(1) as f64,
                "max": iterations.iter().max(),
            },
            "seconds": seconds,
            "method": args.method.to_string(),
            "tolerance": args.tol,
        });
        let text = serde_json::to_string_pretty(&report)? + "\n";
        if crate::table::is_stream(path) {
            print(&text)?;
        } else {
            write_file(path, text.as_bytes())?;
        }
    }
    if converged == rows {
        return Ok(Outcome::Done);
    }
    eprintln!(
        "{} of {rows} rows did not reach {:e}; the largest proved error is {error:.1e}. Try --method auto or a larger --tol",
        rows - converged,
        args.tol
    );
    Ok(Outcome::NotMet)
}

pub fn minimize(args: &args::Minimize) -> Result<Outcome> {
    let model = Loaded::read(&args.model)?;
    let options = InverseOptions {
        tolerance: args.tol,
        ..Default::default()
    };
    model.need_potential()?;
    let p = model.parameters_at(args.at.at.as_deref(), None)?;
    let minima = model.minimize(&p, &options)?;
    if args.json {
        let text = match &minima[..] {
            [one] => serde_json::to_string_pretty(one)?,
            many => serde_json::to_string_pretty(many)?,
        };
        print(&(text + "\n"))?;
    } else {
        let mut text = String::new();
        let count = model.parameters();
        for (k, minimum) in minima.iter().enumerate() {
            if count > 0 {
                let row = &p[k * count..(k + 1) * count];
                text += &format!("at {}\n", named(&model.parameter_names(), row));
            }
            text += &describe(&model, minimum);
        }
        print(&text)?;
    }
    if minima.iter().all(|m| m.status == Status::Converged) {
        return Ok(Outcome::Done);
    }
    eprintln!(
        "the proved distance to the minimum is not within {:e}; try a larger --tol",
        args.tol
    );
    Ok(Outcome::NotMet)
}

/// `a = 1, b = 2`.
pub fn named(names: &[String], values: &[f64]) -> String {
    let parts: Vec<String> = (names.iter().zip(values))
        .map(|(n, v)| format!("{n} = {}", rounded(*v)))
        .collect();
    parts.join(", ")
}

/// A number with ten significant digits, without the zeros at its end.
pub fn rounded(value: f64) -> String {
    let text = format!("{value:.9e}");
    text.parse::<f64>().map_or(text, |v| v.to_string())
}

/// A minimum in words.
pub fn describe(model: &Loaded, minimum: &bilip::Minimum) -> String {
    format!(
        "minimum {} = {} at {}\n  proved: within {:.1e} of the minimiser, value within {:.1e} of the minimum\n",
        model.targets()[0],
        rounded(minimum.value),
        named(&model.inputs(), &minimum.x),
        minimum.distance_bound,
        minimum.gap
    )
}
