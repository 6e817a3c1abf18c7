//! The training loop: mini-batches, schedule, validation, checkpoints, so that nobody has to write one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bilip::{Bounds, Rng};
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, ElementConversion, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::adam::Adam;
use crate::checkpoint::Checkpoints;
use crate::data::{Table, shuffled};
use crate::error::{Error, Result};
use crate::predict::Predict;
use crate::progress::Progress;
use crate::schedule::Schedule;
use crate::vision::Augment;

/// What is minimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `½·mean squared error`.
    HalfMse,
    /// Cross entropy of the predictions as logits; the single target column holds the class, from 0.
    CrossEntropy,
}

/// The optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// Adam, or AdamW with a decay.
    Adam(Adam),
    /// Stochastic gradient descent with momentum (0 for none) and Nesterov's variant.
    Sgd {
        /// The momentum.
        momentum: f64,
        /// Whether the momentum is Nesterov's.
        nesterov: bool,
    },
}

/// Settings of a run.
///
/// | setting | default | effect |
/// |---|---|---|
/// | `epochs`, `batch` | 100, 100 | length of the run and of a step |
/// | `schedule` | one-cycle, peak 1e-3, (0.25, 0.7, 10, 100) | learning rate |
/// | `schedule_steps` | none | length of the schedule in steps; the run's own if none |
/// | `loss`, `optimizer` | ½·MSE, Adam | |
/// | `seed` | 0 | order of the batches |
/// | `patience` | none | stops after this many epochs without a better validation loss |
/// | `clip` | none | largest norm of a parameter's gradient |
/// | `checkpoints` | none | folder of checkpoints; a run found there is resumed |
/// | `checkpoint_every` | 10 | epochs between checkpoints |
/// | `metrics` | none | file of the epochs' figures, CSV or, by its name, JSON |
/// | `augment` | none | images moved and mirrored at random |
/// | `progress` | false | loss, bounds, step time and time left: a bar on a terminal, else a line every half minute |
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Passes through the table.
    pub epochs: usize,
    /// Rows of a mini-batch.
    pub batch: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// Length of the schedule in steps; `None` takes the run's own.
    pub schedule_steps: Option<usize>,
    /// What is minimized.
    pub loss: Loss,
    /// By what.
    pub optimizer: OptimizerKind,
    /// Seed of the order of batches.
    pub seed: u64,
    /// Epochs without improvement of the validation loss before the run stops.
    pub patience: Option<usize>,
    /// Largest Euclidean norm of a parameter tensor's gradient.
    pub clip: Option<f64>,
    /// Where checkpoints are written, and looked for.
    pub checkpoints: Option<PathBuf>,
    /// Epochs between checkpoints.
    pub checkpoint_every: usize,
    /// Where the figures of every epoch are written, as a CSV table or, if the name ends in `.json`, as JSON.
    pub metrics: Option<PathBuf>,
    /// Changes of the inputs, if they are images, at random in every step.
    pub augment: Option<Augment>,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 100,
            batch: 100,
            schedule: Schedule::one_cycle(1e-3, (0.25, 0.7, 10.0, 100.0)),
            schedule_steps: None,
            loss: Loss::HalfMse,
            optimizer: OptimizerKind::Adam(Adam::default()),
            seed: 0,
            patience: None,
            clip: None,
            checkpoints: None,
            checkpoint_every: 10,
            metrics: None,
            augment: None,
            progress: false,
        }
    }
}

/// One epoch of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Mean training loss over its batches, as seen while stepping.
    pub train_loss: f64,
    /// Loss on the validation table after it.
    pub validation_loss: Option<f64>,
    /// Learning rate of its last step.
    pub rate: f64,
    /// The bounds after it.
    pub bounds: Option<Bounds>,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Trained<M> {
    /// The model after the last epoch.
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

impl<M> Trained<M> {
    /// The history as a CSV table.
    pub fn csv(&self) -> String {
        csv(&self.history)
    }
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

fn csv(history: &[Epoch]) -> String {
    let mut text = String::from("epoch,train_loss,validation_loss,rate,mu,nu\n");
    for e in history {
        let number = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        text += &format!(
            "{},{},{},{},{},{}\n",
            e.epoch,
            e.train_loss,
            number(e.validation_loss),
            e.rate,
            number(e.bounds.map(|b| b.mu())),
            number(e.bounds.map(|b| b.nu()))
        );
    }
    text
}

/// Writes the history so that there is always a whole one.
fn write_metrics(path: &Path, history: &[Epoch]) -> Result<()> {
    let text = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
        serde_json::to_string_pretty(history).map_err(|e| Error::Io {
            path: path.display().to_string(),
            source: e.into(),
        })? + "\n"
    } else {
        csv(history)
    };
    Ok(bilip::write_file(path, text.as_bytes())?)
}

/// What a checkpoint remembers besides the records. Batches are drawn from the seed and the epoch alone, so there is
/// no state of a random generator to keep.
#[derive(Serialize, Deserialize)]
struct State {
    history: Vec<Epoch>,
    best: Option<f64>,
    since_best: usize,
    /// Spent so far.
    #[serde(default)]
    seconds: f64,
}

/// Seconds of training behind the newest checkpoint in a folder, with those before resumptions; 0 where there is none.
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

/// Trains a model on a table, validating on another where there is one.
///
/// Two runs with the same model, table and settings on the same machine give the same numbers, bit for bit, whether or
/// not one of them was stopped and resumed from a checkpoint. Dropout is the exception: its random numbers are the
/// backend's own.
///
/// # Errors
/// On settings out of range, tables that do not fit the model, files that cannot be written, and a loss that is no
/// longer a number.
pub fn train<B, M>(
    model: M,
    table: &Table,
    validation: Option<&Table>,
    config: &TrainConfig,
) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
{
    check(&model, table, validation, config)?;
    let clip = config
        .clip
        .map(|norm| GradientClippingConfig::Norm(norm as f32).init());
    match config.optimizer {
        OptimizerKind::Adam(adam) => {
            let mut optimizer = adam.init::<B, M>();
            if let Some(clip) = clip {
                optimizer = optimizer.with_grad_clipping(clip);
            }
            run(model, optimizer, table, validation, config)
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
            run(model, optimizer, table, validation, config)
        }
    }
}

fn check<B: Backend, M: Predict<B>>(
    model: &M,
    table: &Table,
    validation: Option<&Table>,
    config: &TrainConfig,
) -> Result<()> {
    config.schedule.check()?;
    for (name, value) in [
        ("epochs", config.epochs),
        ("batch", config.batch),
        ("checkpoint_every", config.checkpoint_every),
    ] {
        if value == 0 {
            return Err(Error::setting(name, value, "must be at least 1"));
        }
    }
    if let Some(clip) = config.clip
        && !(clip > 0.0 && clip.is_finite())
    {
        return Err(Error::setting("clip", clip, "must be positive and finite"));
    }
    if config.patience.is_some() && validation.is_none() {
        return Err(Error::setting(
            "patience",
            config.patience,
            "needs a validation table",
        ));
    }
    let (n, p, t) = model.columns();
    for table in [Some(table), validation].into_iter().flatten() {
        let (inputs, parameters, targets) = table.columns();
        let wanted = match config.loss {
            Loss::HalfMse => t,
            Loss::CrossEntropy => Some(1),
        };
        if n.is_some_and(|n| n != inputs) || p != parameters || wanted.is_some_and(|t| t != targets) {
            return Err(Error::setting(
                "table",
                table.columns(),
                format!("the model takes {n:?} inputs, {p} parameters and {wanted:?} targets"),
            ));
        }
    }
    Ok(())
}

fn run<B, M, O>(
    mut model: M,
    mut optimizer: O,
    table: &Table,
    validation: Option<&Table>,
    config: &TrainConfig,
) -> Result<Trained<M>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<B::InnerBackend>,
    O: Optimizer<M, B>,
{
    let device = model.devices().into_iter().next().unwrap_or_default();
    let batches = table.rows().div_ceil(config.batch);
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
    let resident = Resident::<B>::new(table, config.loss, &device);
    let held_out = validation.map(|table| Resident::<B::InnerBackend>::new(table, config.loss, &device));
    let mut progress = Progress::new(config.progress, state.history.len(), config.epochs, "epochs");
    let mut metrics_clock = Instant::now();
    if let Some(path) = &config.metrics {
        // A place that cannot be written is better known before the work than after it.
        write_metrics(path, &state.history)?;
    }
    let mut stopped_early = config.patience.is_some_and(|p| state.since_best >= p);
    while state.history.len() < config.epochs && !stopped_early {
        let epoch = state.history.len();
        let clock = Instant::now();
        let order = shuffled(
            table.rows(),
            &mut Rng::new(config.seed ^ ((epoch as u64 + 1) << 32)),
        );
        let order = resident.indices(&order, &device);
        let mut chance = Rng::new(config.seed ^ ((epoch as u64 + 1) << 32) ^ 1);
        let (mut losses, mut rate) = (Vec::with_capacity(batches), 0.0);
        for k in 0..batches {
            let rows = k * config.batch..((k + 1) * config.batch).min(table.rows());
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
            sum += value * config.batch.min(table.rows() - k * config.batch) as f64;
        }
        let validation_loss = held_out.as_ref().map(|data| evaluate(&model.valid(), data));
        if let Some(v) = validation_loss {
            if state.best.is_none_or(|best| v < best) {
                state.best = Some(v);
                state.since_best = 0;
            } else {
                state.since_best += 1;
            }
        }
        let bounds = model.current_bounds();
        state.history.push(Epoch {
            epoch: epoch + 1,
            train_loss: sum / table.rows() as f64,
            validation_loss,
            rate,
            bounds,
        });
        progress.advance(&format!(
            "loss {:.3e}{}, {:.2} ms a step",
            sum / table.rows() as f64,
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
            write_metrics(path, &state.history)?;
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
    Ok(Trained {
        parameters: trained_numbers::<B>(&model),
        model,
        history: state.history,
        stopped_early,
        resumed_from,
        warnings,
    })
}

/// Rows as a tensor in single precision.
fn rows<B: Backend>(values: &[f64], columns: usize, device: &B::Device) -> Tensor<B, 2> {
    let data: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(
        TensorData::new(data, [values.len() / columns, columns]),
        (device, DType::F32),
    )
}

/// A table in the memory of the device; the targets are numbers or classes.
struct Resident<B: Backend> {
    inputs: Tensor<B, 2>,
    parameters: Option<Tensor<B, 2>>,
    targets: Targets<B>,
}

enum Targets<B: Backend> {
    Numbers(Tensor<B, 2>),
    Classes(Tensor<B, 2, Int>),
}

impl<B: Backend> Resident<B> {
    fn new(table: &Table, loss: Loss, device: &B::Device) -> Self {
        let (n, p, t) = table.columns();
        let targets = match loss {
            Loss::HalfMse => Targets::Numbers(rows(table.targets(), t, device)),
            Loss::CrossEntropy => {
                let classes: Vec<i32> = table.targets().iter().map(|v| *v as i32).collect();
                let count = classes.len();
                Targets::Classes(Tensor::from_data(TensorData::new(classes, [count, 1]), device))
            }
        };
        Resident {
            inputs: rows(table.inputs(), n, device),
            parameters: (p > 0).then(|| rows(table.parameters(), p, device)),
            targets,
        }
    }

    fn indices(&self, order: &[usize], device: &B::Device) -> Tensor<B, 1, Int> {
        let order: Vec<i32> = order.iter().map(|r| *r as i32).collect();
        let count = order.len();
        Tensor::from_data(TensorData::new(order, [count]), device)
    }

    fn select(&self, rows: Tensor<B, 1, Int>) -> Self {
        Resident {
            inputs: self.inputs.clone().select(0, rows.clone()),
            parameters: self.parameters.clone().map(|p| p.select(0, rows.clone())),
            targets: match &self.targets {
                Targets::Numbers(t) => Targets::Numbers(t.clone().select(0, rows)),
                Targets::Classes(t) => Targets::Classes(t.clone().select(0, rows)),
            },
        }
    }

    fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        Resident {
            inputs: self.inputs.clone().slice(rows.clone()),
            parameters: self.parameters.clone().map(|p| p.slice(rows.clone())),
            targets: match &self.targets {
                Targets::Numbers(t) => Targets::Numbers(t.clone().slice(rows)),
                Targets::Classes(t) => Targets::Classes(t.clone().slice(rows)),
            },
        }
    }

    fn rows(&self) -> usize {
        self.inputs.dims()[0]
    }
}

fn loss<B: Backend, M: Predict<B>>(model: &M, batch: Resident<B>) -> Tensor<B, 1> {
    let predicted = model.predict(batch.inputs, batch.parameters);
    match batch.targets {
        Targets::Numbers(targets) => {
            let error = predicted - targets;
            (error.clone() * error).mean().mul_scalar(0.5)
        }
        Targets::Classes(classes) => log_softmax(predicted, 1).gather(1, classes).mean().neg(),
    }
}

/// The loss over a whole table, in blocks.
fn evaluate<B: Backend, M: Predict<B>>(model: &M, table: &Resident<B>) -> f64 {
    let count = table.rows();
    let sum: f64 = (0..count)
        .step_by(2_048)
        .map(|start| {
            let rows = start..(start + 2_048).min(count);
            let size = rows.len() as f64;
            let value: f64 = loss(model, table.slice(rows)).into_scalar().elem();
            value * size
        })
        .sum();
    sum / count as f64
}
