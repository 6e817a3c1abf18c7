//! The paper's experiments on monotone, bi-Lipschitz and Polyak-Łojasiewicz networks.
//!
//! An [`Experiment`] is a list of jobs (one model, one seed), each of which writes what it found to
//! a file and is not run twice; [`Experiment::collect`] gathers them into `result.json` and
//! pictures, [`report`] all experiments into one page.

pub mod baselines;
mod config;
pub mod data;
mod error;
mod experiments;
mod files;
pub mod images;
mod page;
pub mod published;
mod report;
mod results;
mod run;

pub use config::{Config, ModelConfig, ModelFamily, Reference};
pub use error::{Error, Result};
pub use experiments::{EXPERIMENTS, experiment};
pub use report::html as report;
pub use results::{ExperimentResult, JobResult, Summary};
pub use run::{Experiment, Job, Settings};
