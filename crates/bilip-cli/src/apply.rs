//! `eval`, `invert` and `minimize`: a model at work.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bilip::{InverseOptions, Status, write_file};
use serde_json::json;

use crate::Outcome;
use crate::args;
use crate::model::Loaded;
use crate::table::{Output, Table, Variables, check_output, print};

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
    let x = columns(&table, &model.input_variables(), &model, "inputs")?;
    let p = model.parameters_at(args.at.at.as_deref(), Some(&table))?;
    let p = spread(p, model.parameters(), table.rows())?;
    let y = model.evaluate(&x, &p)?;
    let names = model.targets();
    let decisions: Option<Vec<String>> = model.classes().map(|classes| {
        y.chunks_exact(names.len())
            .map(|row| {
                let likeliest = (0..classes.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
                likeliest.map_or(String::new(), |k| classes[k].clone())
            })
            .collect()
    });
    Output {
        names: &names,
        values: &y,
        // The process of a classifier is in double precision.
        single: model.single() && decisions.is_none(),
        words: decisions.as_deref().map(|d| ("class", d)),
    }
    .write(&args.output)?;
    Ok(Outcome::Done)
}

fn columns(table: &Table, variables: &Variables, model: &Loaded, what: &str) -> Result<Vec<f64>> {
    table.matching(variables)?.with_context(|| {
        format!(
            "{}: the model has {} {what} ({}), the table {} columns of other names",
            model.shown,
            variables.names.len(),
            variables.names.join(", "),
            table.columns()
        )
    })
}

pub fn invert(args: &args::Invert) -> Result<Outcome> {
    let Some(model) = Loaded::read_proved(&args.model)? else {
        return Ok(Outcome::NotMet);
    };
    model.need_map()?;
    check_output(&args.output, &[&args.input, &args.model])?;
    if let Some(report) = &args.report {
        check_output(report, &[&args.input, &args.model, &args.output])?;
    }
    let options = InverseOptions {
        method: args.method.clone(),
        tolerance: args.tol,
        max_iterations: args.max_iterations,
        ..Default::default()
    };
    let table = Table::read(&args.input)?;
    let y = columns(&table, &model.target_variables(), &model, "outputs")?;
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
        words: None,
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
        "{} of {rows} rows did not reach {:e}; the largest proved error is {}. Try {}a larger --tol",
        rows - converged,
        args.tol,
        up(error, 1),
        match args.method {
            bilip::Method::Auto => "",
            _ => "--method auto or ",
        }
    );
    Ok(Outcome::NotMet)
}

pub fn minimize(args: &args::Minimize) -> Result<Outcome> {
    let Some(model) = Loaded::read_proved(&args.model)? else {
        return Ok(Outcome::NotMet);
    };
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
        .map(|(n, v)| format!("{n} = {v}"))
        .collect();
    parts.join(", ")
}

/// A positive number to so many digits after the first, rounded up: what is proved below it stays true.
pub fn up(value: f64, digits: usize) -> String {
    rounded(value, digits, |shown| shown >= value, f64::next_up)
}

/// The same, rounded down.
pub fn down(value: f64, digits: usize) -> String {
    rounded(value, digits, |shown| shown <= value, f64::next_down)
}

fn rounded(value: f64, digits: usize, good: impl Fn(f64) -> bool, step: fn(f64) -> f64) -> String {
    // Nudge the number in the right direction until its rounding lies on that side.
    let mut at = value;
    let mut nudge = 1e-17;
    loop {
        let text = format!("{at:.digits$e}");
        match text.parse::<f64>() {
            Ok(shown) if good(shown) || !value.is_finite() || value == 0.0 => return plain(&text, shown),
            _ => {}
        }
        let direction = if step(1.0) > 1.0 { 1.0 } else { -1.0 };
        at = step(value + direction * nudge * value.abs());
        nudge *= 2.0;
    }
}

/// Without an exponent where that is no longer than with one.
fn plain(text: &str, value: f64) -> String {
    let simple = value.to_string();
    match simple.len() <= text.len() + 2 {
        true => simple,
        false => text.to_string(),
    }
}

/// A minimum in words.
pub fn describe(model: &Loaded, minimum: &bilip::Minimum) -> String {
    format!(
        "minimum {} = {} at {}\n  proved: within {} of the minimiser, value within {} of the minimum\n",
        model.targets()[0],
        minimum.value,
        named(&model.inputs(), &minimum.x),
        up(minimum.distance_bound, 1),
        up(minimum.gap, 1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_bounds_are_never_better_than_proved_ones() {
        for value in [
            4.517755e-12,
            9.035510e-10,
            0.1,
            1.0,
            123456.789,
            1.0 / 3.0,
            5e-324,
            9.9999999,
        ] {
            for digits in 0..8 {
                assert!(
                    up(value, digits).parse::<f64>().unwrap() >= value,
                    "{value} {digits}"
                );
                assert!(
                    down(value, digits).parse::<f64>().unwrap() <= value,
                    "{value} {digits}"
                );
            }
        }
        assert_eq!(down(0.0025655, 4), "0.0025655");
        assert_eq!(down(4.517755e-12, 4), "4.5177e-12");
        assert_eq!(up(9.035510e-10, 4), "9.0356e-10");
        assert_eq!(up(0.0, 1), "0");
    }
}
