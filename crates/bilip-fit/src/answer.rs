//! What the minimum of a fitted network says about the data. Measured, not proved: what is proved is
//! proved of the network.

use bilip::{InverseOptions, Model};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::free::Free;
use crate::landscape::second_minimum;
use crate::prepare::{Prepared, Rows};
use crate::search::{FOLDS, Focus, Found, joined};

/// A free model is clearly better when it leaves less than this share of the mean square that the
/// network leaves, the network leaves more than this share of the variance, and the difference is
/// this many standard errors.
const CLEARLY: f64 = 0.5;
const MATTERS: f64 = 0.01;
const ERRORS: f64 = 3.0;

/// A minimum nearer to an end of the data than this share of its range is at the edge.
const EDGE: f64 = 0.01;

/// Inputs of a point that a message names at most.
const SHOWN: usize = 6;

/// The share of rows that an interval is expected to cover.
const COVERED: f64 = 0.9;

/// What the minimum of a fit is worth.
///
/// Everything here is measured on the rows; nothing of it is proved.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// The minimizer, by the names of the inputs.
    #[serde(with = "by_name")]
    pub x: Vec<(String, f64)>,
    /// The value of the network there.
    pub value: f64,
    /// Whether it is inside the data: within the range of every input, not at its end, and as near
    /// to a row as rows are to each other.
    pub inside_data: bool,
    /// Number of rows, those held out included.
    pub rows: usize,
    /// How many of them are lower than the value.
    pub rows_below: usize,
    /// The lowest row.
    pub best_row: Point,
    /// Standard deviations over the ensemble, of the minimizer and of the value.
    pub spread: Point,
    /// Where nine of ten measurements at the minimizer are expected.
    pub interval: (f64, f64),
    /// Whether one minimum explains the rows about as well as a model without any guarantee does.
    pub single_minimum: bool,
    /// Share of the variance of rows that were not fitted, explained by the network and by a model
    /// without any guarantee.
    pub r2: f64,
    /// See `r2`.
    pub free_r2: f64,
    /// What speaks against the answer, in words; empty where nothing does.
    pub doubts: Vec<String>,
}

/// A point and a value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// By the names of the inputs.
    #[serde(with = "by_name")]
    pub x: Vec<(String, f64)>,
    /// The value.
    pub value: f64,
}

/// Values by name, as a JSON object in the order of the inputs.
mod by_name {
    use std::fmt;

    use serde::de::{Deserializer, MapAccess, Visitor};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(x: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(x.iter().map(|(name, value)| (name, value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64)>, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Vec<(String, f64)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    found.push(entry);
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(Names)
    }
}

impl Answer {
    /// Whether nothing speaks against it.
    pub fn holds_up(&self) -> bool {
        self.doubts.is_empty()
    }
}

/// The key under which a model keeps its answer.
pub(crate) const KEY: &str = "answer";

/// Everything that an answer is made of.
struct Evidence<'a> {
    prepared: &'a Prepared,
    focus: &'a Focus,
    /// Of every member: its minimizer and value.
    minima: Vec<(Vec<f64>, f64)>,
    models: Vec<&'a Model>,
    judges: &'a [Free],
}

/// The member to keep, and what its minimum is worth.
pub(crate) fn answer(found: &Found, prepared: &Prepared) -> Result<Option<(usize, Answer)>> {
    let (Some(focus), true) = (&found.focus, prepared.parameters.is_empty()) else {
        return Ok(None);
    };
    let models: Vec<&Model> = found.members.iter().map(|m| &m.fitted.model).collect();
    let mut minima = Vec::new();
    for model in &models {
        let options = InverseOptions {
            tolerance: model.natural_tolerance(),
            ..Default::default()
        };
        let minimum = model.minimize(&[], &options)?.remove(0);
        minima.push((minimum.x, minimum.value));
    }
    let evidence = Evidence {
        prepared,
        focus,
        minima,
        models,
        judges: &found.judges,
    };
    // What is found in closed form was found on all rows last.
    let chosen = match found.chosen.tau {
        Some(_) => evidence.choose()?,
        None => evidence.minima.len() - 1,
    };
    let answer = evidence.worth(chosen)?;
    Ok(Some((chosen, answer)))
}

impl Evidence<'_> {
    /// Whether a point is within the range of every input, and not at its end.
    fn within(&self, x: &[f64]) -> bool {
        (x.iter().zip(&self.prepared.ranges)).all(|(v, (low, high))| {
            let margin = EDGE * (high - low);
            *v > low + margin && *v < high - margin
        })
    }

    /// The member whose minimizer all members, or the free models where they are the better judges,
    /// together think lowest, one within the data if there is any.
    fn choose(&self) -> Result<usize> {
        let mut best = (0, f64::INFINITY);
        let any = self.minima.iter().any(|(x, _)| self.within(x));
        for (k, (x, _)) in self.minima.iter().enumerate() {
            if any && !self.within(x) {
                continue;
            }
            let mut sum = 0.0;
            for judge in self.judges {
                sum += judge.values(&self.prepared.x.apply(x))[0];
            }
            for model in self.models.iter().filter(|_| self.judges.is_empty()) {
                sum += model.evaluate(x, &[])?[0];
            }
            if sum < best.1 {
                best = (k, sum);
            }
        }
        Ok(best.0)
    }

    /// Rows that neither the free model nor the first member has seen: those held out, and the part
    /// that both were watched on. With weights.
    fn unseen(&self) -> (Rows, Vec<f64>) {
        let kept = &self.prepared.kept;
        let rows: Vec<usize> = (0..kept.count).filter(|r| r % FOLDS == 0).collect();
        let held_out = &self.prepared.held_out;
        let all = kept.select(&rows).with(held_out);
        let mut weights: Vec<f64> = rows.iter().map(|r| self.focus.weights[*r]).collect();
        weights.extend(self.focus.weights_of(self.prepared, held_out));
        (all, weights)
    }

    fn standardized(&self, values: &[f64]) -> Vec<f64> {
        self.prepared.y.apply(values)
    }

    /// Squared errors of the network and of the free model on rows, in standardized units.
    fn squares(&self, model: &Model, rows: &Rows) -> Result<(Vec<f64>, Vec<f64>)> {
        let y = self.standardized(&rows.y);
        let ours = self.standardized(&model.evaluate(&rows.x, &[])?);
        let theirs = self.focus.free.values(&joined(self.prepared, rows));
        let square = |found: &[f64]| found.iter().zip(&y).map(|(a, b)| (a - b).powi(2)).collect();
        Ok((square(&ours), square(&theirs)))
    }

    /// What the minimum of a model is worth.
    fn worth(&self, chosen: usize) -> Result<Answer> {
        let prepared = self.prepared;
        let n = prepared.inputs.len();
        let (x, value) = &self.minima[chosen];
        let named = |x: &[f64]| -> Vec<(String, f64)> {
            prepared.inputs.iter().cloned().zip(x.iter().copied()).collect()
        };
        let mut doubts = Vec::new();
        // Inside the data?
        let mut outside = Vec::new();
        for (k, name) in prepared.inputs.iter().enumerate() {
            let (low, high) = prepared.ranges[k];
            let (margin, value) = (EDGE * (high - low), x[k]);
            if !(value > low + margin && value < high - margin) {
                outside.push(format!(
                    "{name} = {} (data: {} to {})",
                    short(value),
                    short(low),
                    short(high)
                ));
            }
        }
        let mut inside_data = outside.is_empty();
        if !outside.is_empty() {
            doubts.push(format!(
                "the minimum is not inside the data: {}; the lowest point may be at the edge, see minimize --box data",
                outside.join(", ")
            ));
        }
        if inside_data && self.far_from_rows(x) {
            inside_data = false;
            doubts.push("the minimum is far from every row, farther than rows are from each other".into());
        }
        let others = self.minima.iter().filter(|(x, _)| !self.within(x)).count();
        if inside_data && 2 * others > self.minima.len() {
            doubts.push(format!(
                "{others} of {} fits have their minimum outside the data: it may be at the edge",
                self.minima.len()
            ));
        }
        // One minimum?
        let (rows, _) = self.unseen();
        let (ours, theirs) = self.squares(self.models[0], &rows)?;
        let y = self.standardized(&rows.y);
        let count = y.len() as f64;
        let mean = |v: &[f64]| v.iter().sum::<f64>() / count;
        let center = mean(&y);
        let variance = y.iter().map(|v| (v - center).powi(2)).sum::<f64>() / count;
        let differences: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
        let gain = mean(&differences);
        let error = (differences.iter().map(|d| (d - gain).powi(2)).sum::<f64>()).sqrt() / count;
        let (r2, free_r2) = (1.0 - mean(&ours) / variance, 1.0 - mean(&theirs) / variance);
        let single_minimum = !(mean(&theirs) < CLEARLY * mean(&ours)
            && mean(&ours) > MATTERS * variance
            && gain > ERRORS * error);
        if !single_minimum {
            doubts.push(format!(
                "a model without a guarantee explains {:.1} % of rows that were not fitted, this one {:.1} %: the table may not have a single minimum",
                100.0 * free_r2,
                100.0 * r2
            ));
        }
        let second = self.second_minimum();
        if let (true, Some(x)) = (single_minimum, &second) {
            let place: Vec<String> = (prepared.inputs.iter().zip(x))
                .take(SHOWN)
                .map(|(name, v)| format!("{name} = {}", short(*v)))
                .collect();
            let more = if n > SHOWN { ", …" } else { "" };
            doubts.push(format!(
                "the rows seem to have another minimum near {}{more}: the table may not have a single minimum",
                place.join(", ")
            ));
        }
        let single_minimum = single_minimum && second.is_none();
        // Rows.
        let all: Vec<(&[f64], f64)> = [&prepared.kept, &prepared.held_out]
            .into_iter()
            .flat_map(|rows| rows.x.chunks_exact(n).zip(rows.y.iter().copied()))
            .collect();
        let rows_below = all.iter().filter(|(_, y)| *y < *value).count();
        let best = all.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let best_row = Point {
            x: named(best.map_or(&[], |b| b.0)),
            value: best.map_or(f64::NAN, |b| b.1),
        };
        let interval = self.interval(*value)?;
        let below = all.iter().filter(|(_, y)| *y < interval.0).count();
        if below as f64 > (0.05 * all.len() as f64).max(1.0) {
            doubts.push(format!(
                "{below} of {} rows are lower than the minimum by more than the error of the fit",
                all.len()
            ));
        }
        let spread = Point {
            x: named(&self.deviations()),
            value: deviation(self.minima.iter().map(|m| m.1)),
        };
        Ok(Answer {
            x: named(x),
            value: *value,
            inside_data,
            rows: all.len(),
            rows_below,
            best_row,
            spread,
            interval,
            single_minimum,
            r2,
            free_r2,
            doubts,
        })
    }

    /// Where the free model has a second minimum, in the user's units.
    fn second_minimum(&self) -> Option<Vec<f64>> {
        let (prepared, focus) = (self.prepared, self.focus);
        let standard = &prepared.x;
        let place = |k: usize, v: f64| (v - standard.center[k]) / standard.scale[k];
        let bounds: Vec<(f64, f64)> = (prepared.ranges.iter().enumerate())
            .map(|(k, (low, high))| (place(k, *low), place(k, *high)))
            .collect();
        let rows = standard.apply(&prepared.kept.x);
        let second = second_minimum(&focus.free, &rows, &bounds, focus.low_error, focus.spread)?;
        let back = |(k, v): (usize, &f64)| v * standard.scale[k] + standard.center[k];
        Some(second.x.iter().enumerate().map(back).collect())
    }

    /// Standard deviations of the minimizers, input by input.
    fn deviations(&self) -> Vec<f64> {
        (0..self.prepared.inputs.len())
            .map(|k| deviation(self.minima.iter().map(|(x, _)| x[k])))
            .collect()
    }

    /// Whether a point is farther from the nearest row than nearly all rows are from theirs.
    fn far_from_rows(&self, x: &[f64]) -> bool {
        let n = self.prepared.inputs.len();
        let rows = self.prepared.x.apply(&self.prepared.kept.x);
        let count = self.prepared.kept.count;
        let nearest = |x: &[f64], not: usize| {
            (rows.chunks_exact(n).enumerate())
                .filter(|(r, _)| *r != not)
                .map(|(_, row)| row.iter().zip(x).map(|(a, b)| (a - b).powi(2)).sum::<f64>())
                .fold(f64::INFINITY, f64::min)
        };
        let some = count.min(500);
        let mut distances: Vec<f64> = (0..some).map(|r| nearest(&rows[r * n..(r + 1) * n], r)).collect();
        distances.sort_by(f64::total_cmp);
        let usual = distances.get(some * 99 / 100).copied().unwrap_or(f64::INFINITY);
        // Squares: twice the distance.
        nearest(&self.prepared.x.apply(x), usize::MAX) > 4.0 * usual
    }

    /// Where a measurement at the minimizer is expected: the value and the errors of low rows that
    /// were not fitted, of a fifth of them.
    fn interval(&self, value: f64) -> Result<(f64, f64)> {
        let (rows, weights) = self.unseen();
        let found = self.models[0].evaluate(&rows.x, &[])?;
        let mut order: Vec<usize> = (0..rows.count).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        order.truncate((rows.count / 5).max(10));
        let mut errors: Vec<f64> = order.iter().map(|r| (rows.y[*r] - found[*r]).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let at = ((errors.len() + 1) as f64 * COVERED).ceil() as usize;
        let width = errors
            .get(at.clamp(1, errors.len()) - 1)
            .copied()
            .unwrap_or(f64::NAN);
        Ok((value - width, value + width))
    }
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    (values.map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0)).sqrt()
}

/// A number with four significant digits.
fn short(value: f64) -> String {
    let text = format!("{value:.3e}");
    text.parse::<f64>().map_or(text, |v| v.to_string())
}
