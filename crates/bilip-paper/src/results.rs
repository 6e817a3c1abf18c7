//! What experiments find, as it is stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Reference;

/// What a job found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// The model's name.
    pub model: String,
    /// The seed.
    pub seed: u64,
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
    /// Curves and surfaces for the pictures, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
    /// Trained parameters.
    pub parameters: usize,
    /// Wall time, that of training before an interruption included.
    pub seconds: f64,
    /// The machine it ran on.
    #[serde(default)]
    pub machine: String,
}

/// Mean and spread of a metric over seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation; 0 for one seed.
    pub std: f64,
    /// Number of seeds.
    pub seeds: usize,
    /// The paper's value.
    pub paper: Option<f64>,
    /// The value of a rerun of the authors' code.
    pub published_code: Option<f64>,
}

impl Summary {
    /// Of values, one per seed.
    pub fn of(values: &[f64], reference: Reference) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        Summary {
            mean,
            std: variance.sqrt(),
            seeds: values.len(),
            paper: reference.paper,
            published_code: reference.published_code,
        }
    }
}

/// Everything about an experiment that was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Its name.
    pub experiment: String,
    /// What it shows, in a sentence.
    pub title: String,
    /// The command that made it.
    pub command: String,
    /// The machine it ran on.
    pub machine: String,
    /// The day, UTC.
    pub date: String,
    /// Whether this is the shortened version.
    pub quick: bool,
    /// Sum of the jobs' wall times.
    pub seconds: f64,
    /// Every metric.
    pub summary: BTreeMap<String, Summary>,
    /// The pictures, without their extension, with a caption each.
    pub figures: Vec<(String, String)>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Every run: model, seed, metrics, parameters, seconds.
    pub runs: Vec<JobResult>,
}

/// The machines that runs were made on, or this one if there were none.
pub(crate) fn machines(runs: &[JobResult]) -> String {
    let mut all: Vec<&str> = runs.iter().map(|r| r.machine.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    match all.is_empty() {
        true => machine(),
        false => all.join("; "),
    }
}

/// The processor and its cores, as the operating system tells.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let name = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines().find_map(|l| {
                l.strip_prefix("model name")
                    .map(|r| r.trim_start_matches([' ', '\t', ':']).to_string())
            })
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_string());
    let threads =
        std::env::var("RAYON_NUM_THREADS").map_or(String::new(), |t| format!(", {t} threads per run"));
    format!("{name}, {cores} cores{threads}, {}", std::env::consts::OS)
}

/// The date in UTC, year-month-day.
pub(crate) fn today() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_spreads_and_dates() {
        let s = Summary::of(&[1.0, 2.0, 3.0], Reference::default());
        assert_eq!((s.mean, s.std, s.seeds), (2.0, 1.0, 3));
        assert_eq!(Summary::of(&[5.0], Reference::default()).std, 0.0);
        let today = today();
        assert_eq!(today.len(), 10);
        assert!(today.as_str() > "2024-01-01" && today.as_str() < "2200-01-01");
    }
}
