//! The training loop: mini-batches, schedule, validation, checkpoints, so that nobody has to write
//! one.

mod adam;
mod augment;
mod checkpoint;
mod config;
mod history;
mod progress;
mod resident;
mod schedule;

use std::path::Path;
use std::time::{Duration, Instant};

use bilip::Rng;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use serde::{Deserialize, Serialize};

use crate::base::{Dataset, Error, Result, shuffled};
use crate::networks::Predict;
use checkpoint::Checkpoints;
use resident::{Resident, evaluate, loss};

pub use adam::{Adam, AdamState};
pub use augment::Augment;
pub use config::{OptimizerKind, TrainConfig};
pub use history::Epoch;
pub use progress::Progress;
pub use schedule::Schedule;

/// A finished run.
#[derive(Clone, Debug)]
pub struct Trained<M> {
    /// The model after the last epoch, or that of the best one where it was to be kept.
    pub model: M,
    /// How many of its numbers are trained; it may store others.
    pub parameters: usize,
    /// Every epoch, those before a resumption included.
    pub history: Vec<Epoch>,
    /// Whether patience ran out before the epochs did.
    pub stopped_early: bool,
    /// The epoch a checkpoint took the run up from.
    pub resumed_from: Option<usize>,
    /// Checkpoints that had to be passed over, in words.
    pub warnings: Vec<String>,
}

/// How many numbers of a model a step changes.
fn trained_numbers<B: AutodiffBackend>(model: &impl Module<B>) -> usize {
    struct Count(usize);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Count {
        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<B, D>>) {
            let tensor = parameter.val();
            self.0 += if tensor.is_require_grad() {
                tensor.shape().num_elements()
            } else {
                0
            };
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

/// What a checkpoint remembers besides the records. Batches are drawn from the seed and the epoch
/// alone, so there is no state of a random generator to keep.
#[derive(Serialize, Deserialize)]
struct State {
    history: Vec<Epoch>,
    best: Option<f64>,
    since_best: usize,
    /// Spent so far.
    #[serde(default)]
    seconds: f64,
}

/// Seconds of training behind the newest checkpoint in a folder, with those before resumptions; 0
/// where there is none.
///
/// # Errors
/// When the folder cannot be read.
pub fn time_spent(checkpoints: &Path) -> Result<f64> {
    if !checkpoints.is_dir() {
        return Ok(0.0);
    }
    let (found, _) = Checkpoints::new(checkpoints)?.newest::<State>()?;
    Ok(found.map_or(0.0, |found| found.state.seconds))
}

/// Trains a model on rows, validating on others where there are any.
///
/// Two runs with the same model, rows and settings on the same machine give the same numbers, bit
/// for bit, whether or not one of them was stopped and resumed from a checkpoint. Dropout is the
/// exception: its random numbers are the backend's own.
///
/// # Errors
/// On settings out of range, rows that do not fit the model, files that cannot be written, and a
/// loss that is no longer a number.
pub fn train<B, M>(
    model: M,
    data: &Dataset,
    validation: Option<&Dataset>,
    config: &TrainConfig,
) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    config.check(model.columns(), data, validation)?;
    let clip = config
        .clip
        .map(|norm| GradientClippingConfig::Norm(norm as f32).init());
    match config.optimizer {
        OptimizerKind::Adam(adam) => {
            let mut optimizer = adam.init::<B, M>();
            if let Some(clip) = clip {
                optimizer = optimizer.with_grad_clipping(clip);
            }
            run(model, optimizer, data, validation, config)
        }
        OptimizerKind::Sgd { momentum, nesterov } => {
            let mut sgd = SgdConfig::new();
            if momentum > 0.0 {
                let settings = MomentumConfig::new()
                    .with_momentum(momentum)
                    .with_dampening(0.0)
                    .with_nesterov(nesterov);
                sgd = sgd.with_momentum(Some(settings));
            }
            let mut optimizer = sgd.init::<B, M>();
            if let Some(clip) = clip {
                optimizer = optimizer.with_grad_clipping(clip);
            }
            run(model, optimizer, data, validation, config)
        }
    }
}

fn run<B, M, O>(
    mut model: M,
    mut optimizer: O,
    data: &Dataset,
    validation: Option<&Dataset>,
    config: &TrainConfig,
) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
    O: Optimizer<M, B>,
{
    let device = model.devices().into_iter().next().unwrap_or_default();
    let batches = data.rows().div_ceil(config.batch);
    let total = config.schedule_steps.unwrap_or(batches * config.epochs);
    let mut state = State {
        history: Vec::new(),
        best: None,
        since_best: 0,
        seconds: 0.0,
    };
    let started = Instant::now();
    let (mut warnings, mut resumed_from) = (Vec::new(), None);
    let checkpoints = config.checkpoints.as_deref().map(Checkpoints::new).transpose()?;
    if let Some(checkpoints) = &checkpoints {
        let (found, passed_over) = checkpoints.newest::<State>()?;
        warnings = passed_over;
        if let Some(mut found) = found {
            model = model.load_record(found.model::<M::Record, B>(&device)?);
            optimizer = optimizer.load_record(found.optimizer::<O::Record, B>(&device)?);
            state = found.state;
            resumed_from = Some(state.history.len());
        }
    }
    let seconds_before = state.seconds;
    let resident = Resident::<B>::new(data, config.loss, &device);
    let held_out = validation.map(|rows| Resident::<B::InnerBackend>::new(rows, config.loss, &device));
    let mut progress = Progress::new(config.progress, state.history.len(), config.epochs, "epochs");
    let mut metrics_clock = Instant::now();
    let mut best_model = None;
    if let Some(path) = &config.metrics {
        // A place that cannot be written is better known before the work than after it.
        history::write(path, &state.history)?;
    }
    let mut stopped_early = config.patience.is_some_and(|p| state.since_best >= p);
    while state.history.len() < config.epochs && !stopped_early {
        let epoch = state.history.len();
        let clock = Instant::now();
        let order = shuffled(
            data.rows(),
            &mut Rng::new(config.seed ^ ((epoch as u64 + 1) << 32)),
        );
        let order = resident.indices(&order, &device);
        let mut chance = Rng::new(config.seed ^ ((epoch as u64 + 1) << 32) ^ 1);
        let (mut losses, mut rate) = (Vec::with_capacity(batches), 0.0);
        for k in 0..batches {
            let rows = k * config.batch..((k + 1) * config.batch).min(data.rows());
            rate = config.schedule.rate(epoch * batches + k, total);
            let mut batch = resident.select(order.clone().slice(rows));
            if let Some(augment) = &config.augment {
                batch.inputs = augment.apply(batch.inputs, &mut chance);
            }
            let mut value = loss(&model, batch);
            losses.push(value.clone().inner());
            if let Some(penalty) = model.penalty() {
                value = value + penalty;
            }
            let gradients = GradientsParams::from_grads(value.backward(), &model);
            model = optimizer.step(rate, model, gradients).settle();
            progress.step(k + 1, batches);
        }
        // The losses stay on the device until here: no step waits for the host.
        let mut sum = 0.0;
        for (k, value) in Tensor::cat(losses, 0).to_data().iter::<f64>().enumerate() {
            if !value.is_finite() {
                let step = epoch * batches + k;
                return Err(Error::Diverged {
                    epoch: epoch + 1,
                    step: step + 1,
                    rate: config.schedule.rate(step, total),
                });
            }
            sum += value * config.batch.min(data.rows() - k * config.batch) as f64;
        }
        let validation_loss = held_out.as_ref().map(|rows| evaluate(&model.valid(), rows));
        if let Some(v) = validation_loss {
            if state.best.is_none_or(|best| v < best) {
                state.best = Some(v);
                state.since_best = 0;
                best_model = config.keep_best.then(|| model.clone());
            } else {
                state.since_best += 1;
            }
        }
        let bounds = model.current_bounds();
        state.history.push(Epoch {
            epoch: epoch + 1,
            train_loss: sum / data.rows() as f64,
            validation_loss,
            rate,
            bounds,
        });
        progress.advance(&format!(
            "loss {:.3e}{}, {:.2} ms per step",
            sum / data.rows() as f64,
            bounds.map_or(String::new(), |b| format!(
                ", bounds ({:.3}, {:.3})",
                b.mu(),
                b.nu()
            )),
            clock.elapsed().as_secs_f64() * 1e3 / batches as f64
        ));
        stopped_early = config.patience.is_some_and(|p| state.since_best >= p);
        let last = state.history.len() == config.epochs || stopped_early;
        if let Some(path) = &config.metrics
            && (last || metrics_clock.elapsed() > Duration::from_secs(1))
        {
            history::write(path, &state.history)?;
            metrics_clock = Instant::now();
        }
        if let Some(checkpoints) = &checkpoints
            && (last || state.history.len().is_multiple_of(config.checkpoint_every))
        {
            state.seconds = seconds_before + started.elapsed().as_secs_f64();
            checkpoints.save::<State, B>(
                state.history.len(),
                &state,
                model.clone().into_record(),
                optimizer.to_record(),
            )?;
        }
    }
    progress.finish();
    let model = best_model.unwrap_or(model);
    Ok(Trained {
        parameters: trained_numbers::<B>(&model),
        model,
        history: state.history,
        stopped_early,
        resumed_from,
        warnings,
    })
}
