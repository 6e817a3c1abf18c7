//! `eval`, `invert` and `minimize`: a model at work.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bilip::{
    BoundedMinimum, BoxOptions, BoxStatus, Inverse, InverseOptions, Precision, RowReport, Status, at_least,
    at_most,
};
use bilip_burn::Progress;
use bilip_fit::{NamedModel, Table, Variables};
use serde_json::{Value, json};

use crate::Outcome;
use crate::answer::{doubts, worth};
use crate::args;
use crate::limits::limits;
use crate::model::{self, Asked};
use crate::table::{self, Column, Output, check_output, write_text};
use crate::text::{list, print, shown};

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
    let model = model::read(&args.model)?;
    check_output(&args.output, &[&args.input, &args.model])?;
    let table = table::read(&args.input)?;
    let x = columns(&table, &model.input_variables(), &model, "inputs")?;
    let p = model.parameters_at(args.at.at.as_deref(), Some(&table))?;
    let p = spread(p, model.parameters(), table.rows())?;
    let y = model.evaluate(&x, &p)?;
    let names = model.targets();
    let decisions: Option<Vec<String>> = model.class_names().map(|classes| {
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
        single: (model.precision() == Precision::F32) && decisions.is_none(),
        words: decisions.as_deref().map(|d| ("class", d)),
        more: interval_columns(&model, args.interval, Around::Outputs(&y), &x)?,
    }
    .write(&args.output)?;
    Ok(Outcome::Done)
}

/// What an interval is around.
#[derive(Clone, Copy)]
enum Around<'a> {
    Outputs(&'a [f64]),
    Inputs(&'a [f64]),
}

/// The ends of intervals for every variable, and whether rows of x are outside the data.
fn interval_columns(
    model: &NamedModel,
    share: Option<f64>,
    around: Around<'_>,
    x: &[f64],
) -> Result<Vec<(String, Column)>> {
    let Some(share) = share else {
        return Ok(Vec::new());
    };
    let errors = model.unseen_errors().with_context(|| {
        format!(
            "--interval: {} does not say how far off it was on rows that it had not seen; fit it again with --validation above 0",
            model.source
        )
    })?;
    let (values, names, widths) = match around {
        Around::Outputs(y) => (y, model.targets(), errors.of_outputs(share)),
        Around::Inputs(x) => (x, model.inputs(), errors.of_inputs(share)),
    };
    let widths = widths.map_err(|e| anyhow::anyhow!("--{e}"))?;
    ensure!(
        widths.len() == names.len(),
        "--interval: a {} has no errors to make intervals of",
        model.kind_name()
    );
    let mut columns = Vec::new();
    for (k, name) in names.iter().enumerate() {
        for (end, sign) in [("low", -1.0), ("high", 1.0)] {
            let column = values.iter().skip(k).step_by(names.len());
            let column = column.map(|v| v + sign * widths[k]).collect();
            columns.push((format!("{name}_{end}"), Column::Numbers(column)));
        }
    }
    if let Some(ranges) = model.ranges() {
        let outside = |row: &[f64]| {
            row.iter()
                .zip(&ranges)
                .any(|(v, (low, high))| v < low || v > high)
        };
        let column = x
            .chunks_exact(ranges.len())
            .map(|row| f64::from(u8::from(outside(row))));
        columns.push(("outside_data".to_string(), Column::Numbers(column.collect())));
    }
    Ok(columns)
}

fn columns(table: &Table, variables: &Variables, model: &NamedModel, what: &str) -> Result<Vec<f64>> {
    table.matching(variables)?.with_context(|| {
        format!(
            "{}: the model has {} {what} ({}), the table {} columns of other names",
            model.source,
            variables.names.len(),
            list(&variables.names),
            table.columns()
        )
    })
}

/// Rows inverted between two looks at the progress: enough to keep many cores busy for a while.
const BLOCK: usize = 16_384;

/// Inverts rows in blocks, with progress where there are many.
fn invert_rows(model: &NamedModel, y: &[f64], p: &[f64], options: &InverseOptions) -> Result<Inverse> {
    let (n, parameters) = (model.dim(), model.parameters());
    let rows = y.len() / n;
    let mut all = Inverse {
        x: Vec::with_capacity(y.len()),
        rows: Vec::with_capacity(rows),
    };
    let mut progress = Progress::new(rows > BLOCK, 0, rows.div_ceil(BLOCK), "blocks of rows");
    for start in (0..rows).step_by(BLOCK) {
        let range = start..(start + BLOCK).min(rows);
        let p = &p[range.start * parameters..range.end * parameters];
        let block = model.invert(&y[range.start * n..range.end * n], p, options)?;
        all.x.extend(block.x);
        all.rows.extend(block.rows);
        progress.advance(&format!("{} rows done", range.end));
    }
    progress.finish();
    Ok(all)
}

pub fn invert(args: &args::Invert) -> Result<Outcome> {
    let Some(model) = model::read_proved(&args.model)? else {
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
    let table = table::read(&args.input)?;
    let y = columns(&table, &model.target_variables(), &model, "outputs")?;
    let p = model.parameters_at(args.at.at.as_deref(), Some(&table))?;
    let p = spread(p, model.parameters(), table.rows())?;
    let clock = Instant::now();
    let inverse = invert_rows(&model, &y, &p, &options)?;
    let seconds = clock.elapsed().as_secs_f64();
    let names = model.inputs();
    Output {
        values: &inverse.x,
        single: false,
        words: None,
        more: match args.errors {
            true => row_columns(&inverse, &names),
            false => Vec::new(),
        }
        .into_iter()
        .chain(interval_columns(
            &model,
            args.interval,
            Around::Inputs(&inverse.x),
            &inverse.x,
        )?)
        .collect(),
        names: &names,
    }
    .write(&args.output)?;
    if let Some(path) = &args.report {
        let report = report(&inverse, seconds, args);
        write_text(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    if inverse.converged() {
        return Ok(Outcome::Done);
    }
    eprintln!("{}", shortfall(&inverse, args));
    Ok(Outcome::NotMet)
}

/// What is known of every row, as columns.
fn row_columns(inverse: &Inverse, inputs: &[String]) -> Vec<(String, Column)> {
    let rows = &inverse.rows;
    let columns = [
        (
            "error_bound",
            Column::Numbers(rows.iter().map(|r| r.error_bound).collect()),
        ),
        (
            "status",
            Column::Words(rows.iter().map(|r| (r.status.name(), code(r.status))).collect()),
        ),
        (
            "iterations",
            Column::Numbers(rows.iter().map(|r| r.iterations as f64).collect()),
        ),
    ];
    let unused = |name: &str| {
        let mut name = name.to_string();
        while inputs.contains(&name) {
            name.push('_');
        }
        name
    };
    columns.into_iter().map(|(name, c)| (unused(name), c)).collect()
}

/// A status where there are only numbers.
fn code(status: Status) -> f64 {
    match status {
        Status::Converged => 0.0,
        Status::MaxIterations => 1.0,
        Status::PrecisionLimit => 2.0,
        Status::Stalled => 3.0,
        _ => 4.0,
    }
}

/// A number that may be infinite.
fn number(value: f64) -> Value {
    match value.is_finite() {
        true => json!(value),
        false => json!(bilip::json_number::text(value)),
    }
}

fn report(inverse: &Inverse, seconds: f64, args: &args::Invert) -> Value {
    let rows = &inverse.rows;
    let column = |f: fn(&RowReport) -> Value| Value::Array(rows.iter().map(f).collect());
    let total: usize = rows.iter().map(|r| r.iterations).sum();
    json!({
        "rows": rows.len(),
        "converged": rows.iter().filter(|r| r.status == Status::Converged).count(),
        "max_error_bound": number(inverse.max_error_bound()),
        "max_residual": number(rows.iter().map(|r| r.residual).fold(0.0, f64::max)),
        "iterations": {
            "mean": total as f64 / rows.len().max(1) as f64,
            "max": inverse.max_iterations(),
        },
        "seconds": seconds,
        "method": args.method.to_string(),
        "tolerance": args.tol,
        "per_row": {
            "error_bound": column(|r| number(r.error_bound)),
            "status": column(|r| json!(r.status.name())),
            "iterations": column(|r| json!(r.iterations)),
        },
    })
}

/// Which rows fell short, and what would help.
fn shortfall(inverse: &Inverse, args: &args::Invert) -> String {
    let count = |status: Status| inverse.rows.iter().filter(|r| r.status == status).count();
    let kinds: Vec<String> = [
        (Status::MaxIterations, "at the limit of iterations"),
        (Status::PrecisionLimit, "at the limit of double precision"),
        (Status::Stalled, "without progress"),
        (
            Status::OutOfRange,
            "beyond the range of numbers, without an answer",
        ),
    ]
    .into_iter()
    .filter(|(status, _)| count(*status) > 0)
    .map(|(status, what)| format!("{} {what}", count(status)))
    .collect();
    let short = || inverse.rows.iter().filter(|r| r.status != Status::Converged);
    let finite = short().map(|r| r.error_bound).filter(|b| b.is_finite());
    let advice = match finite.fold(0.0, f64::max) {
        0.0 => String::new(),
        largest => {
            let method = match args.method {
                bilip::Method::Auto => "",
                _ => ", --method auto may reach more",
            };
            format!(
                "; --tol {} accepts all that have an answer{method}",
                at_most(largest, 2)
            )
        }
    };
    format!(
        "{} of {} rows did not reach {:e}: {}{advice}",
        short().count(),
        inverse.rows.len(),
        args.tol,
        kinds.join(", ")
    )
}

pub fn minimize(args: &args::Minimize) -> Result<Outcome> {
    let Some(model) = model::read_proved(&args.model)? else {
        return Ok(Outcome::NotMet);
    };
    model.need_potential()?;
    let tolerance = args.tol.unwrap_or_else(|| model.natural_tolerance());
    let options = InverseOptions {
        tolerance,
        ..Default::default()
    };
    let p = model.parameters_at(args.at.at.as_deref(), None)?;
    if let Some(limits) = limits(&model, &args.limits, &args.fix)? {
        return minimize_in(&model, &p, &limits, args);
    }
    let minima = model.minimize(&p, &options)?;
    let answer = model.answer().filter(|_| model.parameters() == 0);
    if args.json {
        let minima = (minima.iter())
            .map(|m| {
                let mut value = with_names(&model, serde_json::to_value(m)?, &m.x);
                if let (Some(inside), Value::Object(keys)) = (within_data(&model, &m.x), &mut value) {
                    keys.insert("within_data".into(), json!(inside));
                    if let Some(answer) = &answer {
                        keys.insert("answer".into(), json!(answer));
                    }
                }
                Ok(value)
            })
            .collect::<Result<_>>()?;
        print_json(minima)?;
    } else {
        print(&of_rows(&model, &p, &minima, |m| {
            let mut text = answer.as_ref().map_or(String::new(), |a| doubts(&a.doubts));
            text += &describe(&model, m);
            text += &answer.as_ref().map_or(String::new(), worth);
            if within_data(&model, &m.x) == Some(false) {
                text += "  outside the ranges of the data; --box data gives the minimum within them\n";
            }
            text
        }))?;
    }
    if minima.iter().all(|m| m.status == Status::Converged) {
        return Ok(match answer.is_none_or(|a| a.holds_up()) {
            true => Outcome::Done,
            false => Outcome::NotMet,
        });
    }
    eprintln!("{}", far_from_minimum(&minima, tolerance));
    Ok(Outcome::NotMet)
}

/// Answers as text, each behind the row of parameters that it belongs to.
fn of_rows<M>(model: &NamedModel, p: &[f64], minima: &[M], describe: impl Fn(&M) -> String) -> String {
    let count = model.parameters();
    let mut text = String::new();
    for (k, minimum) in minima.iter().enumerate() {
        if count > 0 {
            let row = &p[k * count..(k + 1) * count];
            text += &format!("at {}\n", named(&model.parameter_names(), row));
        }
        text += &describe(minimum);
    }
    text
}

/// One answer as an object, several as a list.
fn print_json(mut answers: Vec<Value>) -> Result<()> {
    let value = match answers.len() {
        1 => answers.remove(0),
        _ => Value::Array(answers),
    };
    print(&(serde_json::to_string_pretty(&value)? + "\n"))
}

/// An answer with its point by the names of the inputs.
fn with_names(model: &NamedModel, mut value: Value, x: &[f64]) -> Value {
    if let Value::Object(keys) = &mut value {
        let at = model.inputs().into_iter().zip(x.iter().map(|v| number(*v)));
        keys.insert("at".into(), Value::Object(at.collect()));
    }
    value
}

/// Whether a point is within the ranges of the data, where they are known.
fn within_data(model: &NamedModel, x: &[f64]) -> Option<bool> {
    let ranges = model.ranges()?;
    Some(
        x.iter()
            .zip(ranges)
            .all(|(v, (low, high))| low <= *v && *v <= high),
    )
}

/// The minimum in a box.
fn minimize_in(
    model: &NamedModel,
    p: &[f64],
    limits: &[(f64, f64)],
    args: &args::Minimize,
) -> Result<Outcome> {
    let options = BoxOptions {
        tolerance: args.gap,
        max_cells: args.max_cells,
    };
    let minima = model.minimize_in(p, limits, &options)?;
    if args.json {
        let minima = (minima.iter())
            .map(|m| {
                let mut value = with_names(model, serde_json::to_value(m)?, &m.x);
                if let Value::Object(keys) = &mut value {
                    keys.remove("free_minimizer_inside");
                    keys.insert("inside".into(), json!(m.free_minimizer_inside));
                }
                Ok(value)
            })
            .collect::<Result<_>>()?;
        print_json(minima)?;
    } else {
        print(&of_rows(model, p, &minima, |m| describe_bounded(model, m)))?;
    }
    let open: Vec<&BoundedMinimum> = (minima.iter())
        .filter(|m| m.status != BoxStatus::Converged)
        .collect();
    let share = (open.iter().map(|m| m.gap / m.spread)).fold(0.0, f64::max);
    let gap = open.iter().map(|m| m.gap).fold(0.0, f64::max);
    let advice = match open.iter().any(|m| m.status == BoxStatus::MaxCells) {
        true => format!("more than --max-cells {} may close it", args.max_cells),
        false => "rounding hides the rest".to_string(),
    };
    if open.is_empty() {
        return Ok(Outcome::Done);
    }
    eprintln!(
        "the proved gap is {}, {} of the spread of values in the box and not within {:e}; {advice}",
        at_most(gap, 2),
        at_most(share, 2),
        args.gap
    );
    Ok(Outcome::NotMet)
}

/// A minimum in a box in words.
fn describe_bounded(model: &NamedModel, minimum: &BoundedMinimum) -> String {
    format!(
        "minimum in the box {} = {} at {}\n  proved of the network: every value in the box >= {}, gap <= {}, found with {} cells\n{}",
        shown(&model.targets()[0]),
        minimum.value,
        named(&model.inputs(), &minimum.x),
        at_least(minimum.lower, 17),
        at_most(minimum.gap, 2),
        minimum.cells,
        match minimum.free_minimizer_inside {
            true => "  the minimum without the box is within it\n",
            false => "",
        }
    )
}

/// Why minima are not as near as asked for, and what would help.
pub fn far_from_minimum(minima: &[bilip::Minimum], tolerance: f64) -> String {
    let largest = minima.iter().map(|m| m.distance_bound).fold(0.0, f64::max);
    let advice = match largest.is_finite() {
        true => format!("--tol {} accepts it", at_most(largest, 2)),
        false => "the numbers leave the range of double precision on the way to it".to_string(),
    };
    format!("the proved distance to the minimum is not within {tolerance:e}; {advice}")
}

/// `a = 1, b = 2`.
pub fn named(names: &[String], values: &[f64]) -> String {
    let parts: Vec<String> = (names.iter().zip(values))
        .map(|(n, v)| format!("{} = {v}", shown(n)))
        .collect();
    parts.join(", ")
}

/// A minimum in words. What is proved is proved of the fitted network.
pub fn describe(model: &NamedModel, minimum: &bilip::Minimum) -> String {
    if minimum.status == Status::OutOfRange {
        return "minimum: none was found, the numbers leave the range of double precision\n".into();
    }
    format!(
        "minimum {} = {} at {}\n  proved of the network: distance to its minimizer <= {}, value above its minimum <= {}\n",
        shown(&model.targets()[0]),
        minimum.value,
        named(&model.inputs(), &minimum.x),
        at_most(minimum.distance_bound, 2),
        at_most(minimum.gap, 2)
    )
}
