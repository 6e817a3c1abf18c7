//! Jobs, results and their summary: what all experiments have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use bilip_burn::Device;

use crate::config::{Config, ModelConfig};
use crate::error::{Error, Result};
use crate::results::{ExperimentResult, JobResult, Summary, machine, machines, today};
use crate::{files, page};

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seeds per model.
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
    /// Of image networks: a width instead of the configured one; comparison networks get half of
    /// it.
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

/// What one of the paper's experiments is made of.
pub(crate) trait Definition: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it shows, in a sentence.
    fn title(&self) -> &'static str;

    /// The shipped configuration; `None` for those without training.
    fn config(&self) -> Option<&'static str> {
        None
    }

    /// The name of a metric in the summary.
    fn metric_name(&self, model: &str, metric: &str) -> String {
        format!("{model}.{metric}")
    }

    /// Runs a job.
    fn run(&self, _: &Experiment, _: &Job) -> Result<JobResult> {
        Err(Error::config(self.name(), "has no jobs"))
    }

    /// Pictures and what else is computed from all runs.
    fn finish(&self, experiment: &Experiment, result: &mut ExperimentResult) -> Result<()>;
}

/// One of the paper's experiments, ready to run.
pub struct Experiment {
    definition: &'static dyn Definition,
    /// Its settings.
    pub config: Config,
    pub(crate) settings: Settings,
}

impl Experiment {
    /// An experiment with its settings.
    pub(crate) fn new(definition: &'static dyn Definition, settings: Settings) -> Result<Self> {
        if settings.seeds == 0 {
            return Err(Error::config("seeds", "must be at least 1"));
        }
        let mut config = match definition.config() {
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
                corrupted: true,
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
            definition,
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
        let mut result = self.definition.run(self, job)?;
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

    /// Gathers the results of all jobs that have been run, now or earlier: `result.json`, pictures,
    /// the configuration. Those that have not are named in a note.
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
            return Err(Error::config(self.definition.name(), "nothing has been run"));
        }
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for run in &runs {
            for (metric, value) in &run.metrics {
                values
                    .entry(self.definition.metric_name(&run.model, metric))
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
            experiment: self.definition.name().into(),
            title: self.definition.title().into(),
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
        self.definition.finish(self, &mut result)?;
        if result.runs.is_empty() {
            result.seconds = clock.elapsed().as_secs_f64();
        }
        for run in &mut result.runs {
            // Pictures hold them; the file of results need not.
            run.series.clear();
        }
        files::write_json(&self.settings.out.join("result.json"), &result)?;
        self.write_config()?;
        let page = page::markdown(&result);
        files::write(&self.settings.out.join("README.md"), page.as_bytes())?;
        Ok(result)
    }
}
