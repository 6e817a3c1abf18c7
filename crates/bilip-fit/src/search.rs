//! Search over settings: successive halving over a fixed budget of steps, then an ensemble.
//!
//! Candidates differ in distortion, activation, rate and width, all behind a linear front that was
//! found in closed form. Short runs on four fifths of the rows are compared on the others by what
//! the model is for: the error among low values of a potential, the error of the inverse of a map.
//! The better half gets twice the steps, and so on; what is left is trained once for each fifth of
//! the rows, stopped where it was best on the fifth that it did not see.
//!
//! Every run has its own seed and one thread, so the result depends on neither the number of
//! threads nor the order in which runs end.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bilip::{Activation, InverseOptions};
use bilip_burn::{BoundsMode, OnDevice, Progress};
use burn::tensor::backend::AutodiffBackend;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::free::Free;
use crate::linear::Front;
use crate::memory::{Memory, Outcome};
use crate::prepare::{Prepared, Rows};
use crate::quadratic::{Quadratic, feature_count};
use crate::recipe::{DEFAULT_BLOCKS, DEFAULT_HIDDEN, Recipe};
use crate::settings::{FitSettings, ModelKind};
use crate::work::{Fitted, Job, train_model};

/// Parts of the rows; each member of the ensemble does not see one of them.
pub(crate) const FOLDS: usize = 5;

/// Steps of the first runs at a budget of one; every later round has twice as many.
const FIRST_STEPS: f64 = 1_000.0;

/// Steps of a member of the ensemble at a budget of one, for tables of many rows, of few, and for
/// maps, which are calibrations with little noise more often than not.
const LAST_STEPS: (f64, f64, f64) = (8_000.0, 5_000.0, 48_000.0);

/// Members of a map: nothing is asked of their spread, and the better of two long runs is closer
/// than the best of five short ones.
const MAP_MEMBERS: usize = 2;

/// The last round has at most this many candidates.
const FINALISTS: usize = 3;

/// Tables with fewer rows are judged on several parts: one in the first round, and one more in each
/// up to this many.
const SMALL: usize = 1_000;
const MOST_PARTS: usize = 2;

/// Rows that a run is judged on at most.
const MOST_JUDGED: usize = 4_000;

/// The distortion of a front, with a network behind it and without.
const FRONT_DISTORTION: f64 = 10.0;
const LINEAR_DISTORTION: f64 = 100.0;

/// How far from the middle of the data, in standard deviations, a front may be centered, with a
/// network behind it and without. A slope without curvature is kept as a bowl that far away, which
/// a network can flatten.
const REACH: f64 = 3.0;
const LINEAR_REACH: f64 = 10.0;

/// The floor of what low rows are measured by, as a share of the deviation of the target.
const FLOOR: f64 = 0.005;

/// Settings that a search chooses.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Distortion of the network behind its linear front; none for the front alone, a quadratic
    /// function or a linear map.
    pub tau: Option<f64>,
    /// The activation.
    pub activation: Activation,
    /// Hidden widths.
    pub hidden: Vec<usize>,
    /// Learning rate.
    pub lr: f64,
    /// Whether there is a linear front.
    pub front: bool,
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(tau) = self.tau else {
            return f.write_str("the linear part alone, without a network");
        };
        let widths: Vec<String> = self.hidden.iter().map(usize::to_string).collect();
        write!(
            f,
            "{}, hidden {}, distortion {tau}",
            self.activation,
            widths.join(",")
        )?;
        match self.front {
            true => f.write_str(" behind a linear front"),
            false => Ok(()),
        }
    }
}

impl Candidate {
    /// How much it can bend, for a choice between equals.
    fn complexity(&self) -> f64 {
        self.tau.unwrap_or(1.0)
    }
}

/// What came of settings that a search tried.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The settings.
    pub candidate: Candidate,
    /// Steps of training.
    pub steps: usize,
    /// Mean square error on rows that were not seen, in standardized units: weighted towards low
    /// rows for a potential, of the inverse for a map. Infinite where training diverged.
    pub score: f64,
    /// The same row by row.
    #[serde(skip)]
    parts: Vec<f64>,
}

impl Trial {
    /// Whether another is better by more than the rows can be trusted to say: its mean is lower by a
    /// standard error of the differences. Against the linear part alone it takes two: networks were
    /// stopped where they were best on these very rows.
    fn is_clearly_worse_than(&self, other: &Trial) -> bool {
        if !self.score.is_finite() || self.parts.len() != other.parts.len() {
            return other.score < self.score;
        }
        let count = self.parts.len().max(1) as f64;
        let differences: Vec<f64> = self.parts.iter().zip(&other.parts).map(|(a, b)| a - b).collect();
        let mean = differences.iter().sum::<f64>() / count;
        let square = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>();
        let errors = if self.candidate.tau.is_none() { 2.0 } else { 1.0 };
        mean > errors * square.sqrt() / count
    }
}

/// A model of the ensemble.
pub(crate) struct Member {
    pub fitted: Fitted,
    /// On the rows that it did not see.
    pub score: f64,
    /// The part of the rows that it did not see; none if it has seen all of them.
    pub part: Option<usize>,
}

/// What a search has found.
pub(crate) struct Found {
    pub members: Vec<Member>,
    pub chosen: Candidate,
    pub trials: Vec<Trial>,
    /// Of a potential: weights of the kept rows, and the model without a guarantee.
    pub focus: Option<Focus>,
    /// Where the free model is the better judge of low values: one for each part of the rows.
    pub judges: Vec<Free>,
}

/// Which rows of a potential matter.
pub(crate) struct Focus {
    pub free: Free,
    /// `1/(ŷ − lowest ŷ + floor)`, with ŷ what the free model says of the row, so that a row is not
    /// taken for a low one because of its noise.
    pub weights: Vec<f64>,
    /// Weighted mean square error of the free model on rows that it has not seen.
    pub error: f64,
    /// Root mean square error of the free model among low rows that it has not seen.
    pub low_error: f64,
    /// Standard deviation of the values.
    pub spread: f64,
    low: f64,
    floor: f64,
}

impl Focus {
    /// The weights of other rows.
    pub fn weights_of(&self, prepared: &Prepared, rows: &Rows) -> Vec<f64> {
        let estimate = self.free.values(&joined(prepared, rows));
        estimate.iter().map(|v| self.weight(*v)).collect()
    }

    fn weight(&self, estimate: f64) -> f64 {
        self.spread / ((estimate - self.low).max(0.0) + self.floor)
    }
}

/// The rows of a part, and all others.
struct Split {
    train: Vec<usize>,
    judged: Vec<usize>,
}

/// The part after the last is none: all rows are seen.
fn split(count: usize, fold: usize) -> Split {
    let (mut train, mut judged) = (Vec::new(), Vec::new());
    for r in 0..count {
        if r % FOLDS == fold % FOLDS {
            judged.push(r);
        }
        if r % FOLDS != fold {
            train.push(r);
        }
    }
    judged.truncate(MOST_JUDGED);
    Split { train, judged }
}

/// A search on whichever device.
pub(crate) struct Search<'a> {
    pub settings: &'a FitSettings,
    pub prepared: &'a Prepared,
    pub memory: &'a Memory<'a>,
}

impl OnDevice for Search<'_> {
    type Output = Result<Found>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Result<Found> {
        search::<B>(&self, device)
    }
}

/// Rows of standardized inputs with parameters behind them.
pub(crate) fn joined(prepared: &Prepared, rows: &Rows) -> Vec<f64> {
    let (x, p) = (prepared.x.apply(&rows.x), prepared.p.apply(&rows.p));
    let (n, m) = (prepared.inputs.len(), prepared.parameters.len());
    (0..rows.count)
        .flat_map(|r| {
            x[r * n..(r + 1) * n]
                .iter()
                .chain(&p[r * m..(r + 1) * m])
                .copied()
        })
        .collect()
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Of the rows of a potential, how much each matters.
pub(crate) fn focus(prepared: &Prepared) -> Focus {
    let rows = &prepared.kept;
    let n = prepared.inputs.len() + prepared.parameters.len();
    let Split { train, judged } = split(rows.count, 0);
    let (seen, other) = (rows.select(&train), rows.select(&judged));
    let y = |rows: &Rows| prepared.y.apply(&rows.y);
    let free = Free::fit(
        (&joined(prepared, &seen), &y(&seen)),
        (&joined(prepared, &other), &y(&other)),
        n,
    );
    let estimate = free.values(&joined(prepared, rows));
    // The error among the lowest fifth of rows that the free model has not seen.
    let all = y(rows);
    let mut lowest = judged.clone();
    lowest.sort_by(|a, b| estimate[*a].total_cmp(&estimate[*b]));
    lowest.truncate((judged.len() / 5).max(5));
    let error = (lowest
        .iter()
        .map(|r| (estimate[*r] - all[*r]).powi(2))
        .sum::<f64>()
        / lowest.len().max(1) as f64)
        .sqrt();
    let spread = deviation(&all);
    let floor = error.min(spread).max(FLOOR * spread);
    let low = estimate.iter().copied().fold(f64::INFINITY, f64::min);
    let mut focus = Focus {
        weights: Vec::new(),
        free,
        error: 0.0,
        low_error: error,
        spread,
        low,
        floor,
    };
    focus.weights = estimate.iter().map(|v| focus.weight(*v)).collect();
    if let Some(given) = &rows.weights {
        focus.weights.iter_mut().zip(given).for_each(|(w, g)| *w *= g);
    }
    let weight = |r: &usize| focus.weights[*r];
    let total: f64 = judged.iter().map(weight).sum();
    let squares = judged
        .iter()
        .map(|r| weight(r) * (estimate[*r] - all[*r]).powi(2));
    focus.error = squares.sum::<f64>() / total;
    focus
}

fn search<B: AutodiffBackend>(search: &Search<'_>, device: &B::Device) -> Result<Found> {
    let Search {
        settings,
        prepared,
        memory,
    } = *search;
    let potential = settings.model == ModelKind::PlNet;
    let focus = potential.then(|| focus(prepared));
    let weights = match &focus {
        Some(focus) => Some(&focus.weights[..]),
        None => prepared.kept.weights.as_deref(),
    };
    let runs = Runs {
        settings,
        prepared,
        weights,
        is_quadratic: focus.as_ref().is_some_and(|f| f.free.is_quadratic()),
        penalty: focus.as_ref().and_then(|f| f.free.penalty()),
        device,
    };
    let mut left = candidates(settings, prepared);
    let mut steps = (FIRST_STEPS * settings.budget).max(1.0) as usize;
    let (mut trials, mut round) = (Vec::<Trial>::new(), 1);
    let small = prepared.kept.count < SMALL;
    let last_steps = match (potential, small) {
        (true, false) => LAST_STEPS.0,
        (true, true) => LAST_STEPS.1,
        (false, _) => LAST_STEPS.2,
    };
    let last_steps = (last_steps * settings.budget).max(1.0) as usize;
    let members = if potential { FOLDS } else { MAP_MEMBERS };
    let total = count_steps(left.len(), prepared.kept.count, steps) + members * last_steps;
    let mut progress = Progress::new(settings.progress, 0, total, "steps");
    let mut chosen = left[0].clone();
    let mut score = f64::INFINITY;
    while left.len() > 1 {
        let folds = if small { round.min(MOST_PARTS) } else { 1 };
        let jobs: Vec<(usize, usize)> = (0..left.len())
            .flat_map(|k| (0..folds).map(move |fold| (k, fold)))
            .collect();
        let scores = runs.all(jobs.len(), &mut progress, steps, |j| {
            let (k, fold) = jobs[j];
            let key = format!("round {round}, {steps} steps, part {fold}: {:?}", left[k]);
            if let Some((_, parts)) = memory.recall(&key, false) {
                return Ok(parts);
            }
            let outcome = runs.one::<B>(&left[k], fold, steps, settings.seed, None)?;
            memory.keep(&key, &outcome, false)?;
            Ok(outcome.1)
        })?;
        let mut ranked: Vec<Trial> = (left.iter().enumerate())
            .map(|(k, candidate)| {
                let parts: Vec<f64> = scores[k * folds..(k + 1) * folds].concat();
                Trial {
                    candidate: candidate.clone(),
                    steps,
                    score: mean(&parts),
                    parts,
                }
            })
            .collect();
        ranked.sort_by(|a, b| a.score.total_cmp(&b.score));
        // The simplest of those that are about as good as the best.
        let equal = ranked.iter().filter(|t| !t.is_clearly_worse_than(&ranked[0]));
        if let Some(trial) =
            equal.min_by(|a, b| a.candidate.complexity().total_cmp(&b.candidate.complexity()))
        {
            (chosen, score) = (trial.candidate.clone(), trial.score);
        }
        let mut better: Vec<Candidate> = (ranked.iter().take(left.len().div_ceil(2)))
            .map(|t| t.candidate.clone())
            .collect();
        // What costs nothing stays to the end.
        if let Some(linear) = left.iter().find(|c| c.tau.is_none() && !better.contains(c)) {
            better.pop();
            better.push(linear.clone());
        }
        trials.extend(ranked);
        if left.len() <= FINALISTS {
            break;
        }
        left = better;
        steps *= 2;
        round += 1;
    }
    let judges = match &focus {
        Some(focus) if focus.error <= score && settings.minimum.is_none() && settings.params.is_empty() => {
            runs.judges(focus)
        }
        _ => Vec::new(),
    };
    let known: Vec<Option<Vec<f64>>> = (0..FOLDS)
        .map(|fold| judges.get(fold).and_then(|judge| runs.lowest(judge, fold)))
        .collect();
    let known = if known.iter().all(|x| x.is_some()) {
        known
    } else {
        vec![None; FOLDS]
    };
    // What is found in closed form needs no rows to stop at: it is found on all of them, too.
    let mut parts: Vec<usize> = (0..members).collect();
    if chosen.tau.is_none() {
        parts.push(FOLDS);
    }
    let members = runs.all(parts.len(), &mut progress, last_steps, |k| {
        let fold = parts[k];
        let seed = settings.seed.wrapping_add(fold as u64);
        let key = format!("member, {last_steps} steps, part {fold}: {chosen:?}");
        if let Some(outcome) = memory.recall(&key, true) {
            return Ok(outcome);
        }
        let outcome = runs.one::<B>(
            &chosen,
            fold,
            last_steps,
            seed,
            known.get(fold).and_then(|x| x.as_deref()),
        )?;
        memory.keep(&key, &outcome, true)?;
        Ok(outcome)
    })?;
    progress.finish();
    if members.iter().all(|(fitted, _)| fitted.is_none()) {
        return Err(Error::Data(
            "training diverged with every setting; give a smaller --lr with --epochs".into(),
        ));
    }
    Ok(Found {
        members: (members.into_iter().zip(parts))
            .filter_map(|((fitted, scores), part)| {
                Some(Member {
                    fitted: fitted?,
                    score: mean(&scores),
                    part: Some(part).filter(|part| *part < FOLDS),
                })
            })
            .collect(),
        chosen,
        trials,
        judges: if known[0].is_some() { judges } else { Vec::new() },
        focus,
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// How many steps a search takes, those of the ensemble aside.
fn count_steps(candidates: usize, rows: usize, first: usize) -> usize {
    let (mut left, mut round, mut count, mut steps) = (candidates, 1, 0, first);
    while left > 1 {
        count += steps * left * if rows < SMALL { round.min(MOST_PARTS) } else { 1 };
        if left <= FINALISTS {
            break;
        }
        left = left.div_ceil(2);
        round += 1;
        steps *= 2;
    }
    count
}

fn candidates(settings: &FitSettings, prepared: &Prepared) -> Vec<Candidate> {
    // A front stands between standardized variables and the network: bounds given by hand are those
    // of both, and a partial or monotone network has none.
    let free_bounds = matches!(prepared.bounds, BoundsMode::Distortion(_));
    let front = free_bounds
        && settings.householder.is_none()
        && settings.params.is_empty()
        && settings.model != ModelKind::MonLip;
    let taus = match (prepared.bounds, settings.tau) {
        (BoundsMode::Fixed(bounds) | BoundsMode::Learned(bounds), _) => vec![bounds.nu() / bounds.mu()],
        (BoundsMode::Distortion(_), Some(tau)) => vec![tau],
        (BoundsMode::Distortion(_), None) => vec![5.0, 25.0, 100.0, 400.0],
    };
    let activations = match settings.activation {
        Some(activation) => vec![activation],
        None => vec![Activation::Relu, Activation::Tanh],
    };
    let hidden = settings.hidden.clone().unwrap_or(DEFAULT_HIDDEN.to_vec());
    let lr = settings.lr.unwrap_or(5e-3);
    let mut all = Vec::new();
    for tau in taus {
        for activation in &activations {
            all.push(Candidate {
                tau: Some(tau),
                activation: *activation,
                hidden: hidden.clone(),
                lr,
                front,
            });
        }
    }
    if front && settings.minimum.is_none() && settings.tau.is_none() {
        all.push(Candidate {
            tau: None,
            activation: Activation::Identity,
            hidden,
            lr,
            front,
        });
    }
    all
}

/// Runs on parts of the rows.
struct Runs<'a, D> {
    settings: &'a FitSettings,
    prepared: &'a Prepared,
    /// Weights of the kept rows.
    weights: Option<&'a [f64]>,
    /// Whether the free model is a quadratic function.
    is_quadratic: bool,
    /// The penalty of the free model's quadratic function, which was chosen on unseen rows.
    penalty: Option<f64>,
    device: &'a D,
}

impl<D: Sync> Runs<'_, D> {
    /// Does all jobs, several at a time, each on one thread.
    fn all<R: Send>(
        &self,
        jobs: usize,
        progress: &mut Progress,
        steps: usize,
        work: impl Fn(usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let threads = match self.settings.device {
            bilip_burn::Device::Cpu => rayon::current_num_threads(),
            _ => 1,
        };
        let next = AtomicUsize::new(0);
        let found = Mutex::new((0..jobs).map(|_| None).collect::<Vec<Option<Result<R>>>>());
        let progress = Mutex::new(progress);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(jobs) {
                scope.spawn(|| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
                    loop {
                        let job = next.fetch_add(1, Ordering::Relaxed);
                        if job >= jobs {
                            break;
                        }
                        let result = match &pool {
                            Ok(pool) => pool.install(|| work(job)),
                            Err(error) => Err(Error::Data(format!("threads: {error}"))),
                        };
                        if let Ok(mut found) = found.lock() {
                            found[job] = Some(result);
                        }
                        if let Ok(mut progress) = progress.lock() {
                            progress.advance_by(steps, "");
                        }
                    }
                });
            }
        });
        let found = found
            .into_inner()
            .map_err(|_| Error::Data("a run panicked".into()))?;
        found
            .into_iter()
            .map(|r| r.unwrap_or_else(|| Err(Error::Data("a run panicked".into()))))
            .collect()
    }

    /// One run: its model, none where training diverged, and its score on every row of the part that
    /// it did not see. The minimum may be known.
    fn one<B: AutodiffBackend<Device = D>>(
        &self,
        candidate: &Candidate,
        fold: usize,
        steps: usize,
        seed: u64,
        known: Option<&[f64]>,
    ) -> Result<Outcome> {
        let prepared = self.prepared;
        let Split { train, judged } = split(prepared.kept.count, fold);
        let (rows, others) = (prepared.kept.select(&train), prepared.kept.select(&judged));
        let pick = |rows: &[usize]| {
            self.weights
                .map(|w| rows.iter().map(|r| w[*r]).collect::<Vec<_>>())
        };
        let (weights, other_weights) = (pick(&train), pick(&judged));
        let mut recipe = self.recipe(candidate, &rows, weights.as_deref(), steps, seed);
        if let Some(x) = known.filter(|_| !recipe.untrained) {
            recipe.minimum = Some(x.to_vec());
        }
        let job = Job {
            settings: self.settings,
            prepared,
            recipe: &recipe,
            rows: &rows,
            weights: weights.as_deref(),
            watched: Some((&others, other_weights.as_deref())),
            keep_best: true,
            alone: false,
            folder: None,
        };
        match train_model::<B>(&job, self.device) {
            Ok(fitted) => {
                let parts = self.score(&fitted, &others, other_weights.as_deref())?;
                Ok((Some(fitted), parts))
            }
            Err(Error::Training(bilip_burn::Error::Diverged { .. })) => Ok((None, vec![f64::INFINITY])),
            Err(error) => Err(error),
        }
    }

    fn recipe(
        &self,
        candidate: &Candidate,
        rows: &Rows,
        weights: Option<&[f64]>,
        steps: usize,
        seed: u64,
    ) -> Recipe {
        let (settings, prepared) = (self.settings, self.prepared);
        let mut recipe = Recipe::plain(settings, prepared);
        recipe.seed = seed;
        recipe.hidden = candidate.hidden.clone();
        recipe.activation = candidate.activation;
        recipe.lr = candidate.lr;
        recipe.blocks = settings.blocks.unwrap_or(DEFAULT_BLOCKS);
        // Small tables take small batches, or there would be few steps in an epoch to shuffle.
        recipe.batch = settings
            .batch
            .unwrap_or((rows.count / 8).next_power_of_two().clamp(16, 128));
        recipe.epochs = steps.div_ceil(rows.count.div_ceil(recipe.batch)).max(1);
        let (x, y) = (prepared.x.apply(&rows.x), prepared.y.apply(&rows.y));
        let n = prepared.inputs.len();
        recipe.untrained = candidate.front && candidate.tau.is_none();
        if candidate.front {
            let (distortion, reach) = match candidate.tau {
                Some(_) => (FRONT_DISTORTION, REACH),
                None => (LINEAR_DISTORTION, LINEAR_REACH),
            };
            let front = match settings.model {
                ModelKind::PlNet => {
                    let few = rows.count < 2 * feature_count(n);
                    let penalty = self.penalty.unwrap_or(if few { 1e-1 } else { 1e-9 });
                    // A table that is quadratic and noise is best fitted as such.
                    let weights = weights.filter(|_| !(recipe.untrained && self.is_quadratic));
                    Quadratic::fit(&x, n, &y, weights, penalty).and_then(|q| {
                        let convex = q.convex(&x, &y, weights, distortion, reach)?;
                        Front::of_quadratic(&convex, distortion, reach)
                    })
                }
                _ => Front::of_map(&x, &prepared.p.apply(&rows.p), &y, n, distortion),
            };
            recipe.front = front.map(Arc::new);
        }
        recipe.untrained &= recipe.front.is_some();
        if let Some(front) = &recipe.front {
            // A front has the orientation of the data.
            recipe.reversed = false;
            if settings.model == ModelKind::PlNet {
                // The level that fits best above the front's quadratic function.
                let z = front.before(&x);
                let (mut sum, mut total) = (0.0, 0.0);
                for (r, z) in z.chunks_exact(n).enumerate() {
                    let weight = weights.map_or(1.0, |w| w[r]);
                    sum += weight * (y[r] - 0.5 * z.iter().map(|v| v * v).sum::<f64>());
                    total += weight;
                }
                recipe.level = sum / total;
            }
        }
        let learned = matches!(prepared.bounds, BoundsMode::Distortion(_));
        if let Some(tau) = candidate.tau.filter(|_| learned) {
            let front = recipe.front.as_ref().map_or(1.0, |f| f.distortion());
            let asked = self.settings.tau.map(|tau| tau / front * (1.0 - 1e-6));
            recipe.bounds = BoundsMode::Distortion(asked.unwrap_or(tau).max(1.0 + 1e-3));
        }
        recipe
    }

    /// The free model on the rows of every part.
    fn judges(&self, focus: &Focus) -> Vec<Free> {
        (0..FOLDS)
            .map(|fold| {
                let rows = self
                    .prepared
                    .kept
                    .select(&split(self.prepared.kept.count, fold).train);
                focus
                    .free
                    .refit(&joined(self.prepared, &rows), &self.prepared.y.apply(&rows.y))
            })
            .collect()
    }

    /// Where a free model has its lowest value, in the user's units; none at the edge of the data.
    fn lowest(&self, judge: &Free, fold: usize) -> Option<Vec<f64>> {
        let prepared = self.prepared;
        let n = prepared.inputs.len();
        let rows = prepared.kept.select(&split(prepared.kept.count, fold).train);
        let x = prepared.x.apply(&rows.x);
        let values = judge.values(&x);
        let mut order: Vec<usize> = (0..rows.count).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let starts: Vec<Vec<f64>> = (order.iter().take(10))
            .map(|r| x[r * n..(r + 1) * n].to_vec())
            .collect();
        let bounds: Vec<(f64, f64)> = (prepared.ranges.iter().enumerate())
            .map(|(k, (low, high))| {
                let (center, scale) = (prepared.x.center[k], prepared.x.scale[k]);
                ((low - center) / scale, (high - center) / scale)
            })
            .collect();
        let (z, _) = judge.lowest(&starts, &bounds, n);
        let inside = z.iter().zip(&bounds).all(|(v, (low, high))| {
            let margin = 0.01 * (high - low);
            *v > low + margin && *v < high - margin
        });
        inside.then(|| {
            (z.iter().enumerate())
                .map(|(k, v)| v * prepared.x.scale[k] + prepared.x.center[k])
                .collect()
        })
    }

    /// How far off a model is where it matters, row by row; the mean is its score.
    fn score(&self, fitted: &Fitted, rows: &Rows, weights: Option<&[f64]>) -> Result<Vec<f64>> {
        let (model, prepared) = (&fitted.model, self.prepared);
        if self.settings.model == ModelKind::PlNet {
            let predicted = prepared.y.apply(&model.evaluate(&rows.x, &rows.p)?);
            let y = prepared.y.apply(&rows.y);
            let weight = |r: usize| weights.map_or(1.0, |w| w[r]);
            let mean = (0..rows.count).map(weight).sum::<f64>() / rows.count.max(1) as f64;
            let part = |r: usize| weight(r) / mean * (predicted[r] - y[r]).powi(2);
            return Ok((0..rows.count).map(part).collect());
        }
        let options = InverseOptions {
            tolerance: model.natural_tolerance(),
            ..Default::default()
        };
        let inverse = model.invert(&rows.y, &rows.p, &options)?;
        let (found, x) = (prepared.x.apply(&inverse.x), prepared.x.apply(&rows.x));
        let n = prepared.inputs.len();
        let part = |(a, b): (&[f64], &[f64])| match a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
        {
            sum if sum.is_finite() => sum,
            _ => f64::INFINITY,
        };
        Ok(found.chunks_exact(n).zip(x.chunks_exact(n)).map(part).collect())
    }
}
