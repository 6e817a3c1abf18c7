//! Jobs, results and their summary: what all experiments have in common.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bilip_burn::Device;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ModelConfig, Reference};
use crate::error::{Error, Result};
use crate::{experiments, files, report};

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seeds a model.
    pub seeds: usize,
    /// Where everything is written.
    pub out: PathBuf,
    /// A minute-long version.
    pub quick: bool,
    /// A configuration instead of the shipped one.
    pub config: Option<PathBuf>,
    /// Only models whose name contains this.
    pub filter: Option<String>,
    /// Only models with this bound on their residual branches.
    pub c: Option<f64>,
    /// Epochs instead of the configured ones.
    pub epochs: Option<usize>,
    /// Of image networks: a width instead of the configured one; comparison networks get half of it.
    pub width: Option<usize>,
    /// Whether to show a progress bar while training.
    pub progress: bool,
    /// The command, for the record.
    pub command: String,
    /// Where models are trained.
    pub device: Device,
    /// The folder of data files, for experiments that need them.
    pub data: Option<PathBuf>,
}

/// One model trained with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub model: ModelConfig,
    /// The seed.
    pub seed: u64,
}

impl Job {
    /// A name that is good for a file.
    pub fn id(&self) -> String {
        let name: String = self
            .model
            .name
            .chars()
            .map(|c| {
                if c.is_alphanumeric() || c == '-' || c == '.' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        format!("{name}-seed{}", self.seed)
    }
}

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
    /// Of values, one a seed.
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

/// One of the paper's experiments, ready to run.
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// Its settings.
    pub config: Config,
    pub(crate) settings: Settings,
}

/// Names of all experiments, in the order in which they build on each other.
pub const EXPERIMENTS: [&str; 9] = [
    "step",
    "rosenbrock",
    "rosenbrock-sine",
    "parametric",
    "rosenbrock20",
    "solver",
    "inverse",
    "moons",
    "cifar10",
];

impl Experiment {
    /// An experiment by name.
    ///
    /// # Errors
    /// When there is none of that name, or its configuration cannot be used.
    pub fn new(name: &str, settings: Settings) -> Result<Self> {
        let name = EXPERIMENTS
            .into_iter()
            .find(|n| *n == name)
            .ok_or_else(|| Error::config(name, format!("choose one of {}", EXPERIMENTS.join(", "))))?;
        if settings.seeds == 0 {
            return Err(Error::config("seeds", "must be at least 1"));
        }
        let mut config = match experiments::shipped(name) {
            Some(text) => Config::read(text, settings.config.as_deref())?,
            // Those without training have nothing to configure.
            None => Config {
                rows: 1,
                test: 1,
                batch: 1,
                epochs: 1,
                peak: 1e-3,
                cycle: None,
                steps: None,
                schedule_steps: None,
                models: Vec::new(),
                reference: BTreeMap::new(),
            },
        };
        if settings.quick {
            config = config.quick();
        }
        if let Some(epochs) = settings.epochs {
            config.epochs = epochs.max(1);
        }
        if let Some(width) = settings.width {
            config = config.with_width(width)?;
        }
        if let Some(c) = settings.c
            && !config.models.iter().any(|m| m.c == Some(c))
        {
            let mut known: Vec<String> = (config.models.iter())
                .filter_map(|m| m.c.map(|c| c.to_string()))
                .collect();
            known.sort();
            known.dedup();
            let known = match known.is_empty() {
                true => "models here have none".to_string(),
                false => format!("models have {}; others need a --config", known.join(", ")),
            };
            return Err(Error::config(format!("c = {c}"), known));
        }
        if let Some(filter) = &settings.filter
            && !config.models.iter().any(|m| m.name.contains(filter.as_str()))
            && !config.models.is_empty()
        {
            return Err(Error::config(filter, "no model has this in its name"));
        }
        // What is there is not run again, so it must be what is asked for.
        let earlier = files::read(&settings.out.join("config.toml")).ok();
        if let Some(earlier) = earlier.and_then(|text| toml::from_str::<Config>(&text).ok())
            && let Some(what) = config.difference(&earlier)
        {
            return Err(Error::config(
                settings.out.display().to_string(),
                format!("holds runs with other settings ({what}); choose another --out, or remove it"),
            ));
        }
        Ok(Experiment {
            name,
            config,
            settings,
        })
    }

    /// The jobs asked for.
    pub fn jobs(&self) -> Vec<Job> {
        let filter = self.settings.filter.as_deref().unwrap_or("");
        let mut jobs = self.all_jobs();
        jobs.retain(|j| j.model.name.contains(filter));
        jobs.retain(|j| self.settings.c.is_none() || j.model.c == self.settings.c);
        jobs
    }

    /// All jobs of the configuration.
    fn all_jobs(&self) -> Vec<Job> {
        let seeds = if self.settings.quick {
            1
        } else {
            self.settings.seeds
        };
        self.config
            .models
            .iter()
            .flat_map(|model| {
                (0..seeds.min(model.seeds.unwrap_or(usize::MAX)) as u64).map(|seed| Job {
                    model: model.clone(),
                    seed,
                })
            })
            .collect()
    }

    pub(crate) fn job_file(&self, job: &Job) -> PathBuf {
        self.settings.out.join("jobs").join(format!("{}.json", job.id()))
    }

    /// Where a job stores its certified model.
    pub(crate) fn model_file(&self, job: &Job) -> PathBuf {
        self.settings
            .out
            .join("models")
            .join(format!("{}.safetensors", job.id()))
    }

    /// What a job found, if it has been run already.
    pub fn finished(&self, job: &Job) -> Option<JobResult> {
        files::read_json(&self.job_file(job)).ok()
    }

    /// Runs a job, or returns what it found before.
    ///
    /// # Errors
    /// When training fails or a file cannot be written.
    pub fn run(&self, job: &Job) -> Result<JobResult> {
        if let Some(found) = self.finished(job) {
            return Ok(found);
        }
        let before = bilip_burn::time_spent(&self.checkpoints(job))?;
        let clock = Instant::now();
        let mut result = experiments::run(self, job)?;
        result.seconds = before + clock.elapsed().as_secs_f64();
        result.machine = match self.settings.device.hardware() {
            Some(gpu) => format!("{gpu}, {}", machine()),
            None => machine(),
        };
        for series in result.series.values_mut() {
            // Pictures need no more digits than this.
            for v in series {
                *v = format!("{v:.4e}").parse().unwrap_or(*v);
            }
        }
        self.write_config()?;
        files::write_json_line(&self.job_file(job), &result)?;
        let _ = std::fs::remove_dir_all(self.checkpoints(job));
        Ok(result)
    }

    /// The settings beside the results, from the first of these on.
    fn write_config(&self) -> Result<()> {
        let path = self.settings.out.join("config.toml");
        let text = toml::to_string(&self.config)
            .map_err(|e| Error::config(path.display().to_string(), e.to_string()))?;
        files::write(&path, text.as_bytes())
    }

    pub(crate) fn checkpoints(&self, job: &Job) -> PathBuf {
        self.settings
            .out
            .join("jobs")
            .join(format!("{}.checkpoints", job.id()))
    }

    /// Gathers the results of all jobs that have been run, now or earlier: `result.json`, pictures, the configuration.
    /// Those that have not are named in a note.
    ///
    /// # Errors
    /// When none has been run, or a file cannot be written.
    pub fn collect(&self) -> Result<ExperimentResult> {
        let (mut runs, mut missing) = (Vec::new(), Vec::new());
        for job in self.all_jobs() {
            match self.finished(&job) {
                Some(result) => runs.push(result),
                None => missing.push(job.id()),
            }
        }
        if runs.is_empty() && !missing.is_empty() {
            return Err(Error::config(self.name, "nothing has been run"));
        }
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for run in &runs {
            for (metric, value) in &run.metrics {
                values
                    .entry(experiments::metric_name(self.name, &run.model, metric))
                    .or_default()
                    .push(*value);
            }
        }
        let summary = values
            .into_iter()
            .map(|(key, values)| {
                let full = key.clone();
                let alone = format!("bilipnet.{key}");
                let reference = [&full, &alone]
                    .into_iter()
                    .find_map(|k| self.config.reference.get(k))
                    .copied()
                    .unwrap_or_default();
                (key, Summary::of(&values, reference))
            })
            .collect();
        let mut result = ExperimentResult {
            experiment: self.name.into(),
            title: experiments::title(self.name).into(),
            command: self.settings.command.clone(),
            machine: machines(&runs),
            date: today(),
            quick: self.settings.quick,
            seconds: runs.iter().fold(0.0, |sum, r| sum + r.seconds),
            summary,
            figures: Vec::new(),
            notes: Vec::new(),
            runs,
        };
        if !missing.is_empty() {
            result.notes.push(format!(
                "{} of {} runs are missing: {}.",
                missing.len(),
                missing.len() + result.runs.len(),
                missing.join(", ")
            ));
        }
        let clock = Instant::now();
        experiments::finish(self, &mut result)?;
        if result.runs.is_empty() {
            result.seconds = clock.elapsed().as_secs_f64();
        }
        for run in &mut result.runs {
            // Pictures hold them; the file of results need not.
            run.series.clear();
        }
        files::write_json(&self.settings.out.join("result.json"), &result)?;
        self.write_config()?;
        let page = report::markdown(&result);
        files::write(&self.settings.out.join("README.md"), page.as_bytes())?;
        Ok(result)
    }
}

/// The machines that runs were made on, or this one if there were none.
fn machines(runs: &[JobResult]) -> String {
    let mut all: Vec<&str> = runs.iter().map(|r| r.machine.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    match all.is_empty() {
        true => machine(),
        false => all.join("; "),
    }
}

/// The processor and its cores, as the operating system tells.
pub fn machine() -> String {
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
        std::env::var("RAYON_NUM_THREADS").map_or(String::new(), |t| format!(", {t} threads a run"));
    format!("{name}, {cores} cores{threads}, {}", std::env::consts::OS)
}

/// The date in UTC, year-month-day.
pub fn today() -> String {
    let days = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() / 86_400) as i64;
    // Days to a civil date, by eras of 400 years (Hinnant 2013).
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Reads the results in the folders below one, in the order of the experiments; of one experiment, by name.
pub(crate) fn results(folder: &Path) -> Vec<(PathBuf, ExperimentResult)> {
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
