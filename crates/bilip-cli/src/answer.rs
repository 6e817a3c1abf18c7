//! What a minimum says about the data, in words.

use bilip_fit::Answer;

use crate::text::shown;

/// What speaks against an answer, a line each.
pub fn doubts(doubts: &[String]) -> String {
    (doubts.iter())
        .map(|doubt| format!("DOUBTFUL   {}\n", shown(doubt)))
        .collect()
}

/// What a minimum says about the data, in words.
pub fn worth(answer: &Answer) -> String {
    let plus_minus: Vec<String> = (answer.x.iter().zip(&answer.spread.x))
        .map(|((name, value), (_, spread))| format!("{} = {}", shown(name), rounded(*value, *spread)))
        .collect();
    let best: Vec<String> = (answer.best_row.x.iter())
        .map(|(name, value)| format!("{} = {}", shown(name), short(*value)))
        .collect();
    let inside = match answer.inside_data {
        true => "inside the rows",
        false => "NOT inside the rows",
    };
    format!(
        "  measured on the data: {inside}; over the ensemble {}\n  a measurement there is expected between {} and {}; {} of {} rows are lower, the lowest is {} at {}\n",
        plus_minus.join(", "),
        short(answer.interval.0),
        short(answer.interval.1),
        answer.rows_below,
        answer.rows,
        short(answer.best_row.value),
        best.join(", "),
    )
}

/// A value and its spread, both to the spread's second digit.
fn rounded(value: f64, spread: f64) -> String {
    if !(spread > 0.0 && spread.is_finite()) {
        return short(value);
    }
    let digits = (1.0 - spread.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{value:.digits$} ± {spread:.digits$}")
}

/// A number with five significant digits.
pub fn short(value: f64) -> String {
    let text = format!("{value:.4e}");
    text.parse::<f64>().map_or(text, |v| v.to_string())
}
