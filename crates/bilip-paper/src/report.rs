//! All results on one self-contained page.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::experiments::EXPERIMENTS;
use crate::files;
use crate::page::{mean, number};
use crate::results::{ExperimentResult, machine, today};

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Metrics of one model in one row: `(model, metric) → value`.
fn split(key: &str) -> (&str, &str) {
    // The last dot outside brackets separates the model from the metric.
    let mut depth = 0;
    let mut at = None;
    for (k, c) in key.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '.' if depth == 0 => {
                at = Some(k);
                break;
            }
            _ => {}
        }
    }
    match at {
        Some(k) => (&key[..k], &key[k + 1..]),
        None => ("", key),
    }
}

/// Metrics that come first in a table.
const FIRST: [&str; 12] = [
    "loss",
    "train_loss",
    "grid_loss",
    "test_loss",
    "max_error",
    "value_at_minimum",
    "slope_min",
    "slope_max",
    "certified_mu",
    "certified_nu",
    "tightness_mu",
    "tightness_nu",
];

fn table(result: &ExperimentResult) -> String {
    // Models in the order of the runs; the metrics that matter most first.
    let mut models: Vec<&str> = Vec::new();
    for run in &result.runs {
        let alone = result.summary.keys().any(|k| split(k).0 == run.model);
        let name = if alone { run.model.as_str() } else { "" };
        if !models.contains(&name) {
            models.push(name);
        }
    }
    let mut metrics: Vec<&str> = FIRST
        .into_iter()
        .filter(|m| result.summary.keys().any(|k| split(k).1 == *m))
        .collect();
    for key in result.summary.keys() {
        let (model, metric) = split(key);
        if !models.contains(&model) {
            models.push(model);
        }
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr><th>model</th>");
    for metric in &metrics {
        let _ = write!(out, "<th>{}</th>", escape(&metric.replace('_', " ")));
    }
    out += "</tr></thead><tbody>";
    for model in models {
        let shown = if model.is_empty() { "bilipnet" } else { model };
        let _ = write!(out, "<tr><th>{}</th>", escape(shown));
        for metric in &metrics {
            let key = if model.is_empty() {
                metric.to_string()
            } else {
                format!("{model}.{metric}")
            };
            match result.summary.get(&key) {
                None => out += "<td></td>",
                Some(s) => {
                    let mut cell = escape(&mean(s));
                    if let Some(v) = s.paper {
                        let _ = write!(cell, "<small>paper {}</small>", number(v));
                    }
                    if let Some(v) = s.published_code {
                        let _ = write!(cell, "<small>their code {}</small>", number(v));
                    }
                    let _ = write!(out, "<td title=\"{} seeds\">{cell}</td>", s.seeds);
                }
            }
        }
        out += "</tr>";
    }
    out += "</tbody></table></div>";
    out
}

/// Reads the results in the folders below one, in the order of the experiments; of one experiment,
/// by name.
fn results(folder: &Path) -> Vec<(PathBuf, ExperimentResult)> {
    let places = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<(usize, PathBuf, ExperimentResult)> = places
        .filter_map(|entry| {
            let place = entry.path();
            let result: ExperimentResult = files::read_json(&place.join("result.json")).ok()?;
            let rank = EXPERIMENTS.iter().position(|name| *name == result.experiment)?;
            Some((rank, place, result))
        })
        .collect();
    all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    all.into_iter()
        .map(|(_, place, result)| (place, result))
        .collect()
}

const STYLE: &str = "
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:1rem;color:#222;background:#fff}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid #ddd;padding-top:1.2rem}
p,li{max-width:75ch}code{background:#f3f3f3;padding:.1em .3em;border-radius:3px;overflow-wrap:anywhere}
figure{margin:1rem 0;overflow-x:auto}figure svg{max-width:100%;min-width:620px;height:auto;display:block}figcaption{color:#555;font-size:.9rem}
.scroll{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:.82rem}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #e5e5e5;white-space:nowrap;vertical-align:top}
tbody th,thead th:first-child{text-align:left;position:sticky;left:0;background:#fff}
td small{display:block;color:#777}nav{display:flex;flex-wrap:wrap;gap:.3rem 1rem}nav a{white-space:nowrap}.meta{color:#666;font-size:.9rem}
@media(max-width:600px){body{padding:.6rem;font-size:15px}}
";

/// Gathers the results below a folder into `report.html` there, and returns the number of
/// experiments found.
///
/// # Errors
/// When there are none, or a file cannot be read or written.
pub fn html(folder: &Path) -> Result<usize> {
    let all = results(folder);
    if all.is_empty() {
        return Err(Error::config(
            folder.display().to_string(),
            format!("no results; run an experiment first ({})", EXPERIMENTS.join(", ")),
        ));
    }
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>bilip: the evidence</title><style>{STYLE}</style></head><body>\n<h1>bilip: the evidence</h1>\n<p>Experiments of “Monotone, Bi-Lipschitz, and Polyak-Łojasiewicz Networks” (ICML 2024), rerun. Bounds called certified are proved for the stored weights; slopes are measured. Tightness is the measured slope over the certified one (for μ the other way round): 1 is tight. Baselines are shown with spectral norms and, labeled so, as published.</p>\n<p class=\"meta\">Page made on {} on {}.</p>\n<nav>",
        today(),
        escape(&machine())
    );
    // An experiment may be in several folders, with different settings.
    let anchor = |place: &Path| escape(&place.file_name().unwrap_or_default().to_string_lossy());
    for (place, _) in &all {
        let _ = write!(out, "<a href=\"#{0}\">{0}</a>", anchor(place));
    }
    out += "</nav>\n";
    for (place, result) in &all {
        let _ = write!(
            out,
            "<h2 id=\"{}\">{}</h2>\n<p class=\"meta\"><code>{}</code><br>{}, {}, {:.0} s of runs{}</p>\n",
            anchor(place),
            escape(&result.title),
            escape(&result.command),
            escape(&result.machine),
            result.date,
            result.seconds,
            if result.quick { ", shortened version" } else { "" }
        );
        for (k, (name, caption)) in result.figures.iter().enumerate() {
            let svg = files::read(&place.join(format!("{name}.svg")))?;
            // Names inside a picture must not meet those of another.
            let svg = svg.replace("panel", &format!("{}{k}-panel", anchor(place)));
            let _ = writeln!(
                out,
                "<figure>{svg}<figcaption>{}</figcaption></figure>",
                escape(caption)
            );
        }
        out += &table(result);
        if !result.notes.is_empty() {
            out += "<ul>";
            for note in &result.notes {
                let _ = write!(out, "<li>{}</li>", escape(note));
            }
            out += "</ul>\n";
        }
    }
    out += "</body></html>\n";
    files::write(&folder.join("report.html"), out.as_bytes())?;
    Ok(all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_split_at_the_dot_outside_brackets() {
        assert_eq!(split("plnet(0.04,16).grid_loss"), ("plnet(0.04,16)", "grid_loss"));
        assert_eq!(split("loss"), ("", "loss"));
        assert_eq!(
            split("dys(0.3).steps_to_1e-6(n8,6x64)"),
            ("dys(0.3)", "steps_to_1e-6(n8,6x64)")
        );
        assert_eq!(number(0.06853), "0.06853");
        assert_eq!(number(9.9701), "9.970");
        assert_eq!(number(3.8e-5), "3.80e-5");
    }
}
