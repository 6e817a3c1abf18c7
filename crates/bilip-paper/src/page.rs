//! The README of an experiment.

use std::fmt::Write;

use crate::results::{ExperimentResult, Summary};

/// A number as people read it.
pub(crate) fn number(v: f64) -> String {
    if v == 0.0 {
        "0".into()
    } else if v.abs() >= 1e-3 && v.abs() < 1e5 {
        let digits = (3 - v.abs().log10().floor() as i32).clamp(0, 6) as usize;
        format!("{v:.digits$}")
    } else {
        format!("{v:.2e}")
    }
}

fn optional(v: Option<f64>) -> String {
    v.map_or(String::new(), number)
}

pub(crate) fn mean(s: &Summary) -> String {
    if s.seeds > 1 && s.std > 1e-6 * s.mean.abs() {
        // A spread is known to a digit or two.
        let spread = format!("{:.1e}", s.std);
        let plain = spread.parse::<f64>().map_or(spread.clone(), |v| v.to_string());
        let spread = if plain.len() <= 8 { plain } else { spread };
        format!("{} ± {spread}", number(s.mean))
    } else {
        number(s.mean)
    }
}

/// The page of one experiment.
pub(crate) fn markdown(result: &ExperimentResult) -> String {
    let mut out = format!("# {}\n\n", result.title);
    let _ = writeln!(
        out,
        "Made by `{}` on {} ({}); {:.0} s of runs{}.\n",
        result.command,
        result.machine,
        result.date,
        result.seconds,
        if result.quick { ", shortened version" } else { "" }
    );
    for (name, caption) in &result.figures {
        let _ = writeln!(out, "![{caption}]({name}.svg)\n\n*{caption}*\n");
    }
    for note in &result.notes {
        let _ = writeln!(out, "- {note}");
    }
    out += "\n| metric | mean ± spread | seeds | paper | published code |\n|---|---|---|---|---|\n";
    for (key, s) in &result.summary {
        let _ = writeln!(
            out,
            "| `{key}` | {} | {} | {} | {} |",
            mean(s),
            s.seeds,
            optional(s.paper),
            optional(s.published_code)
        );
    }
    out
}
