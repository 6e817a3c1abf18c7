//! The minimum of a PL network in a box, with a proved gap.
//!
//! Without a box the minimum is known: the minimizer `x*` is `G⁻¹(g)`. In a box that does not
//! contain it, an answer is a point and a lower bound: `F(x) = ½‖G(x) − g‖²` is made small by a
//! projected Levenberg–Marquardt method from several starts, and a branch and bound proves that it
//! is nowhere much smaller. A cell of the search is bounded by
//! - `½μ²·dist(x*, cell)²`,
//! - `½(‖G(m) − g‖ − νr)²` with its middle m and half its diagonal r,
//! - cuts (see [`cells`](super::cells)), which close the gap.
//!
//! A box around the best point in which cuts alone reach the tolerance is found first and taken
//! out, so that no cells gather there. All of it happens in the variables behind the network's
//! change of variables, in which it has its bounds.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use faer::Mat;
use faer::linalg::solvers::Solve;
use serde::{Deserialize, Serialize};

use super::bundle::Bundle;
use super::cells::{Block, Potential};
use crate::base::error::{Error, Result, check_batch};
use crate::base::parallel;
use crate::base::random::Rng;
use crate::base::real::{Real, UNIT_ROUNDOFF};
use crate::base::rounding::{SAFETY, gamma, norm, norm_up};
use crate::certify::Proved;
use crate::inverse::{InverseOptions, invert};
use crate::layers::bias::RowBiases;
use crate::layers::evaluate::{EvaluateBuffers, accurate_residual, evaluate_block};
use crate::layers::layer::Direction;
use crate::layers::stack::{LayerRef, Stack, Workspace, with_f64};
use crate::networks::map::BiLipschitz;
use crate::networks::partial::PartialPlNet;
use crate::networks::plnet::PlNet;

/// Settings of a minimum in a box.
///
/// | setting | default | range | effect |
/// |---|---|---|---|
/// | `tolerance` | 1e-6 | > 0 | gap to reach, as a share of the spread of values in the box |
/// | `max_cells` | 50,000 | ≥ 1 | cells of the search after which the gap is stated as it is |
#[derive(Clone, Debug, PartialEq)]
pub struct BoxOptions {
    /// The gap to reach, as a share of [`BoundedMinimum::spread`].
    pub tolerance: f64,
    /// Largest number of cells.
    pub max_cells: usize,
}

impl Default for BoxOptions {
    fn default() -> Self {
        BoxOptions {
            tolerance: 1e-6,
            max_cells: 50_000,
        }
    }
}

impl BoxOptions {
    fn check(&self) -> Result<()> {
        if !(self.tolerance > 0.0 && self.tolerance.is_finite()) {
            return Err(Error::setting(
                "tolerance",
                self.tolerance,
                "must be a finite number above 0",
            ));
        }
        if self.max_cells == 0 {
            return Err(Error::setting("max_cells", 0, "must be at least 1"));
        }
        Ok(())
    }
}

/// How the search for a minimum in a box ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BoxStatus {
    /// The proved gap is within the tolerance.
    Converged,
    /// The limit on cells came first; the gap is proved all the same.
    MaxCells,
    /// The gap cannot be proved any smaller in f64: it is dominated by rounding.
    PrecisionLimit,
}

impl BoxStatus {
    /// The name as in JSON: `converged`, `max_cells` or `precision_limit`.
    pub fn name(&self) -> &'static str {
        match self {
            BoxStatus::Converged => "converged",
            BoxStatus::MaxCells => "max_cells",
            BoxStatus::PrecisionLimit => "precision_limit",
        }
    }
}

/// The minimum of a PL network in a box, with what is proved about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundedMinimum {
    /// The best point found, in the box.
    pub x: Vec<f64>,
    /// An upper bound on the value there, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub value: f64,
    /// A proved lower bound of all values in the box, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub lower: f64,
    /// `value − lower`, rounded up.
    #[serde(with = "crate::base::decimal::json")]
    pub gap: f64,
    /// The largest value met (at corners of the box, for few inputs) less the smallest: what a gap
    /// is to be compared with. Not a bound.
    #[serde(with = "crate::base::decimal::json")]
    pub spread: f64,
    /// Cells that were bounded.
    pub cells: usize,
    /// How the search ended.
    pub status: BoxStatus,
    /// Whether the minimizer without a box is proved to lie in the box, and is the answer.
    pub free_minimizer_inside: bool,
}

impl<T: Real> PlNet<T> {
    /// The minimum in a box, `limits[i] = (low, high)` for every input: either may be infinite, and
    /// equal ones fix the input.
    ///
    /// The gap closes for few inputs that are not fixed (up to four or so); for more of them it is
    /// what it is after `max_cells` cells. Results do not depend on the number of threads.
    ///
    /// ```
    /// # use bilip::{BiLipNet, BiLipNetFree, Bounds, BoxOptions, PlNet, RandomLayer, Rng};
    /// # let layer = RandomLayer::new(2, &[8, 8], Bounds::new(0.5, 2.0)?).with_bias(1.0);
    /// # let net = BiLipNet::<f64>::from_free(&BiLipNetFree::random(&layer, 1, &mut Rng::new(1))?)?;
    /// let f = PlNet::new(net, 3.0)?;
    /// let minimum = f.minimize_in(&[(1.0, 2.0), (4.0, f64::INFINITY)], &BoxOptions::default())?;
    /// assert!(minimum.gap <= 1e-6 * minimum.spread);
    /// assert!(f.value(&[1.5, 4.5])?[0] >= minimum.lower);
    /// # Ok::<(), bilip::Error>(())
    /// ```
    ///
    /// # Errors
    /// On a box of another dimension, with NaN, with `low > high` or with no finite point, and on
    /// settings out of range.
    pub fn minimize_in(&self, limits: &[(f64, f64)], options: &BoxOptions) -> Result<BoundedMinimum> {
        check_box(limits, self.dim())?;
        options.check()?;
        let known: Option<Vec<f64>> = self.minimizer().map(|x| x.iter().map(|v| v.as_f64()).collect());
        with_f64(&self.net().layers(), |layers| {
            let stack = Stack::new(layers, None);
            let (target, error) = match &known {
                None => (vec![0.0; stack.n], 0.0),
                Some(x) => {
                    stack.prepare();
                    let (residual, error) = accurate_residual(&stack, x, &vec![0.0; stack.n]);
                    (residual, error)
                }
            };
            Search::new(stack, (target, error), known.as_deref(), limits)?.run((self.offset(), 0.0), options)
        })
    }
}

impl<T: Real> PartialPlNet<T> {
    /// The minimum over x in a box for every row of p; see [`PlNet::minimize_in`].
    ///
    /// # Errors
    /// As there, and on a batch of the wrong size or with NaN or infinity.
    pub fn minimize_in(
        &self,
        p: &[f64],
        limits: &[(f64, f64)],
        options: &BoxOptions,
    ) -> Result<Vec<BoundedMinimum>> {
        let n = self.net().dim();
        check_box(limits, n)?;
        options.check()?;
        let rows = check_batch("p", p, self.net().parameters())?;
        let biases = self.net().certified_biases(p)?;
        let offsets = self.offsets(p)?;
        with_f64(&self.net().net().layers(), |layers| {
            let all = Stack::new(layers, Some(biases));
            (0..rows)
                .map(|row| {
                    let target = (vec![0.0; n], 0.0);
                    Search::new(all.rows(row..row + 1), target, None, limits)?.run(offsets[row], options)
                })
                .collect()
        })
    }
}

fn check_box(limits: &[(f64, f64)], n: usize) -> Result<()> {
    if limits.len() != n {
        return Err(Error::shape("box", format!("{n} intervals"), limits.len()));
    }
    for (i, (low, high)) in limits.iter().enumerate() {
        let point = low <= high && *low < f64::INFINITY && *high > f64::NEG_INFINITY;
        if !point {
            return Err(Error::setting(
                "box",
                format!("{low}:{high}"),
                format!("the interval of input {i} holds no number"),
            ));
        }
    }
    Ok(())
}

/// A box in the variables of the search.
#[derive(Clone)]
struct Cell {
    low: Vec<f64>,
    high: Vec<f64>,
}

/// What is found over a cell.
struct Bounded {
    lower: f64,
    /// The input to split along.
    split: usize,
    /// The best point met in it, and its value as computed.
    point: Vec<f64>,
    value: f64,
}

/// A cell that waits; the one with the smallest bound comes first.
struct Waiting {
    lower: f64,
    number: usize,
    split: usize,
    cell: Cell,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.lower.total_cmp(&self.lower)).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

/// The best point so far.
#[derive(Clone)]
struct Best {
    /// In the user's variables, in the box.
    x: Vec<f64>,
    /// In those of the search.
    at: Vec<f64>,
    /// Bounds on F there.
    upper: f64,
    lower: f64,
}

/// Cells bounded together on one thread. Fixed, so that results do not depend on their number.
const CHUNK: usize = 16;

/// Cells split at a time.
const BATCH: usize = 128;

/// Cuts of a cell in the search, and of one around the best point.
const ROUNDS: usize = 8;
const MORE_ROUNDS: usize = 60;

struct Search<'a> {
    /// The whole network.
    full: Stack<'a, f64>,
    /// The network behind its change of variables, for one point and for a chunk of them.
    inner: Stack<'a, f64>,
    many: Stack<'a, f64>,
    potential: Potential<'a>,
    scale: Vec<f64>,
    shift: Vec<f64>,
    limits: Vec<(f64, f64)>,
    bounds: Proved,
    /// The minimizer without a box, and a bound on its error.
    free_minimizer: (Vec<f64>, f64),
}

impl<'a> Search<'a> {
    fn new(
        full: Stack<'a, f64>,
        (target, target_error): (Vec<f64>, f64),
        known: Option<&[f64]>,
        limits: &[(f64, f64)],
    ) -> Result<Self> {
        full.prepare();
        let n = full.n;
        let input = match full.layers.first() {
            Some(LayerRef::Scaling(s)) if full.layers.len() > 1 => Some(*s),
            _ => None,
        };
        let from = usize::from(input.is_some());
        let biases = full.biases.as_ref().map(|b| RowBiases {
            layers: b.layers[from..].to_vec(),
            errors: b.errors[from..].to_vec(),
        });
        let repeated = biases.as_ref().map(|b| RowBiases {
            layers: (b.layers.iter())
                .map(|(dim, data)| (*dim, data.repeat(CHUNK)))
                .collect(),
            errors: b.errors.iter().map(|e| e.repeat(CHUNK)).collect(),
        });
        let layers = full.layers[from..].to_vec();
        let inner = Stack::new(layers.clone(), biases);
        let (scale, shift) = match input {
            Some(s) => (s.scale().to_vec(), s.shift().to_vec()),
            None => (vec![1.0; n], vec![0.0; n]),
        };
        let free_minimizer = match known {
            Some(x) => {
                let at: Vec<f64> = (0..n).map(|i| scale[i] * x[i] + shift[i]).collect();
                let sizes: Vec<f64> = (0..n).map(|i| (scale[i] * x[i]).abs() + shift[i].abs()).collect();
                (at, 2.0 * UNIT_ROUNDOFF * norm_up(&sizes))
            }
            None => {
                let inverse = invert(&inner, &target, &InverseOptions::default())?;
                let row = &inverse.rows[0];
                (inverse.x.clone(), row.error_bound)
            }
        };
        if free_minimizer.0.iter().any(|v| !v.is_finite()) || !free_minimizer.1.is_finite() {
            return Err(Error::setting(
                "box",
                "minimum",
                "the numbers leave the range of double precision on the way to the minimum",
            ));
        }
        Ok(Search {
            potential: Potential::new(&inner, target, target_error)?,
            bounds: Proved::product(inner.layers.iter().map(|l| l.bounds())),
            many: Stack::new(layers, repeated),
            full,
            inner,
            scale,
            shift,
            limits: limits.to_vec(),
            free_minimizer,
        })
    }

    /// The search, for an offset c and a bound on its error.
    fn run(&self, (offset, offset_error): (f64, f64), options: &BoxOptions) -> Result<BoundedMinimum> {
        let mut outer = self.whole();
        let mut whole = outer.clone();
        let (star, distance) = (&self.free_minimizer.0, self.free_minimizer.1);
        let inside = (0..self.inner.n).all(|i| {
            let (low, high) = self.inner_limits(i, true);
            star[i] - distance >= low && star[i] + distance <= high
        });
        let mut best = self.candidate(&clamped(star, &whole))?;
        // Beyond this distance from the free minimizer, every value is larger than that.
        let reach = ((2.0 * best.upper).sqrt() / self.bounds.mu() + distance) * (1.0 + 1e-9);
        for i in 0..self.inner.n {
            whole.low[i] = whole.low[i].max(star[i] - reach).min(whole.high[i]);
            whole.high[i] = whole.high[i].min(star[i] + reach).max(whole.low[i]);
            // What is open is measured as far as the search goes.
            for (outer, whole) in [(&mut outer.low, &whole.low), (&mut outer.high, &whole.high)] {
                outer[i] = if outer[i].is_finite() { outer[i] } else { whole[i] };
            }
        }
        let free: Vec<usize> = (0..self.inner.n)
            .filter(|&i| self.limits[i].0 < self.limits[i].1 && whole.low[i] < whole.high[i])
            .collect();
        let largest = (self.starts(&outer, &free, &best.at).iter())
            .map(|at| self.linearized(at, false).0)
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        if !inside {
            let starts = self.starts(&whole, &free, &best.at);
            let found = parallel::map(starts.len(), |k| self.descend(&starts[k], &whole, &free));
            for at in found {
                self.improve(&mut best, &at)?;
            }
        }
        let spread = (largest - best.upper).max(0.0);
        let asked = options.tolerance * spread;
        // What rounding takes from a cut cannot be won back by smaller cells.
        let mut tolerance = asked;
        if !free.is_empty() {
            let point = Cell {
                low: best.at.clone(),
                high: best.at.clone(),
            };
            let there = &self.bound(&[point], &free, &best, f64::INFINITY, 1)[0];
            tolerance = tolerance.max(2.0 * (best.upper - there.lower));
        }
        let mut cells = 0;
        let mut status = BoxStatus::Converged;
        let mut lower = 0.0;
        if best.upper > tolerance && !free.is_empty() && !inside {
            (lower, cells, status) = self.branch(&whole, &free, &mut best, tolerance, options.max_cells)?;
        } else if free.is_empty() {
            lower = best.lower;
        }
        let lower = lower.min(best.lower).max(0.0);
        // f = F + c, with a rounding or two each.
        let value = ((offset + offset_error).next_up() + best.upper).next_up();
        let lower = ((offset - offset_error).next_down() + lower).next_down();
        let gap = (value - lower).next_up().max(0.0);
        let met = free.is_empty() || gap <= asked || gap <= 1e-12 * value.abs();
        if status == BoxStatus::Converged && !met {
            status = BoxStatus::PrecisionLimit;
        }
        Ok(BoundedMinimum {
            x: best.x,
            value,
            lower,
            gap,
            spread,
            cells,
            status,
            free_minimizer_inside: inside,
        })
    }

    /// The limits of an input in the variables of the search, rounded inwards or outwards.
    fn inner_limits(&self, i: usize, inwards: bool) -> (f64, f64) {
        let at = |v: f64, up: bool| {
            let product = self.scale[i] * v;
            let sum = product + self.shift[i];
            match (sum - product == self.shift[i] && sum - self.shift[i] == product) || !sum.is_finite() {
                true => sum,
                false if up => sum.next_up(),
                false => sum.next_down(),
            }
        };
        (at(self.limits[i].0, inwards), at(self.limits[i].1, !inwards))
    }

    /// The box, rounded outwards.
    fn whole(&self) -> Cell {
        let limits: Vec<(f64, f64)> = (0..self.inner.n).map(|i| self.inner_limits(i, false)).collect();
        Cell {
            low: limits.iter().map(|l| l.0).collect(),
            high: limits.iter().map(|l| l.1).collect(),
        }
    }

    /// A point in the user's box, with bounds on F there.
    fn candidate(&self, at: &[f64]) -> Result<Best> {
        let x: Vec<f64> = (0..at.len())
            .map(|i| {
                let (low, high) = self.limits[i];
                ((at[i] - self.shift[i]) / self.scale[i]).clamp(low, high)
            })
            .collect();
        if x.iter().any(|v| !v.is_finite()) {
            return Err(Error::setting(
                "box",
                "a point",
                "its numbers leave the range of f64",
            ));
        }
        let (residual, error) = accurate_residual(&self.full, &x, &self.potential.target);
        let error = (error + self.potential.target_error) * SAFETY;
        let upper = norm_up(&residual) + error;
        let lower = (norm(&residual) * (1.0 - 2.0 * gamma(x.len() + 8)) - error).max(0.0);
        let at = (0..x.len())
            .map(|i| self.scale[i] * x[i] + self.shift[i])
            .collect();
        let upper = 0.5 * upper * upper * (1.0 + 1e-14);
        Ok(Best {
            x,
            at,
            // What is not a number is no bound.
            upper: if upper.is_nan() { f64::INFINITY } else { upper },
            lower: 0.5 * lower * lower * (1.0 - 1e-14),
        })
    }

    /// Takes a point if it is better.
    fn improve(&self, best: &mut Best, at: &[f64]) -> Result<bool> {
        let candidate = self.candidate(at)?;
        let better = candidate.upper < best.upper;
        if better {
            *best = candidate;
        }
        Ok(better)
    }

    /// Where to descend from: the projected free minimizer, the middle, corners of boxes of few
    /// dimensions, some points at random.
    fn starts(&self, whole: &Cell, free: &[usize], first: &[f64]) -> Vec<Vec<f64>> {
        let middle: Vec<f64> = (0..first.len())
            .map(|i| 0.5 * (whole.low[i] + whole.high[i]))
            .collect();
        let mut starts = vec![clamped(first, whole), middle.clone()];
        if free.len() <= 4 {
            for corner in 0..1usize << free.len() {
                let mut at = middle.clone();
                for (k, &i) in free.iter().enumerate() {
                    at[i] = if corner >> k & 1 == 1 {
                        whole.high[i]
                    } else {
                        whole.low[i]
                    };
                }
                starts.push(at);
            }
        }
        let mut rng = Rng::new(0);
        for _ in 0..8 {
            let mut at = middle.clone();
            for &i in free {
                at[i] = whole.low[i] + rng.uniform() * (whole.high[i] - whole.low[i]);
            }
            starts.push(at);
        }
        starts
    }

    /// F, `G − g` and the columns of J at a point.
    fn linearized(&self, at: &[f64], jacobian: bool) -> (f64, Vec<f64>, Vec<f64>) {
        let mut g = at.to_vec();
        let mut workspace = Workspace::default();
        let columns = match jacobian {
            true => self
                .inner
                .jacobian_rows(&mut g, 1, Direction::Forward, &mut workspace),
            false => {
                self.inner.forward_block(&mut g, &mut workspace);
                Vec::new()
            }
        };
        for (g, target) in g.iter_mut().zip(&self.potential.target) {
            *g -= target;
        }
        let value = 0.5 * g.iter().map(|g| g * g).sum::<f64>();
        (value, g, columns)
    }

    /// Levenberg–Marquardt, projected onto a cell.
    fn descend(&self, start: &[f64], cell: &Cell, free: &[usize]) -> Vec<f64> {
        let n = self.inner.n;
        let mut at = start.to_vec();
        let (mut value, mut residual, mut columns) = self.linearized(&at, true);
        let mut damping = 1e-3;
        for _ in 0..100 {
            let column = |i: usize| &columns[i * n..(i + 1) * n];
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let gradient: Vec<f64> = (0..n).map(|i| dot(column(i), &residual)).collect();
            let moving: Vec<usize> = (free.iter().copied())
                .filter(|&i| {
                    let blocked = (at[i] <= cell.low[i] && gradient[i] > 0.0)
                        || (at[i] >= cell.high[i] && gradient[i] < 0.0);
                    !blocked
                })
                .collect();
            let d = moving.len();
            if d == 0 {
                break;
            }
            let normal = Mat::from_fn(d, d, |a, b| dot(column(moving[a]), column(moving[b])));
            let mut accepted = false;
            for _ in 0..12 {
                let damped = Mat::from_fn(d, d, |a, b| {
                    normal[(a, b)]
                        + if a == b {
                            damping * (normal[(a, a)] + 1e-300)
                        } else {
                            0.0
                        }
                });
                let right = Mat::from_fn(d, 1, |a, _| -gradient[moving[a]]);
                let step = damped.partial_piv_lu().solve(right);
                let mut next = at.clone();
                for (a, &i) in moving.iter().enumerate() {
                    let moved = at[i] + step[(a, 0)];
                    next[i] = match moved.is_finite() {
                        true => moved.clamp(cell.low[i], cell.high[i]),
                        false => at[i],
                    };
                }
                let there = self.linearized(&next, true);
                if there.0 < value {
                    accepted = value - there.0 > 1e-13 * value;
                    at = next;
                    (value, residual, columns) = there;
                    damping = (damping * 0.2).max(1e-12);
                    break;
                }
                damping = (damping * 5.0).min(1e12);
            }
            if !accepted {
                break;
            }
        }
        at
    }

    /// The search: a lower bound of F in the box, how many cells it took, how it ended.
    fn branch(
        &self,
        whole: &Cell,
        free: &[usize],
        best: &mut Best,
        tolerance: f64,
        max_cells: usize,
    ) -> Result<(f64, usize, BoxStatus)> {
        let mut cells = 0;
        let (inner, mut settled) = self.surround(whole, free, best, tolerance, &mut cells)?;
        let mut queue = BinaryHeap::new();
        let mut status = BoxStatus::Converged;
        let mut limited;
        let mut number = 0;
        let mut fresh = match inner {
            Some(inner) => without(whole, &inner, free),
            None => vec![whole.clone()],
        };
        let mut known = vec![0.0; fresh.len()];
        loop {
            let threshold = best.upper - tolerance;
            cells += fresh.len();
            let bounded = self.bound(&fresh, free, best, threshold, ROUNDS);
            let mut promising: Option<usize> = None;
            for (k, b) in bounded.iter().enumerate() {
                if b.value < promising.map_or(best.upper - 1e-2 * tolerance, |p| bounded[p].value) {
                    promising = Some(k);
                }
            }
            if let Some(k) = promising {
                self.improve(best, &bounded[k].point)?;
                let polished = self.descend(&bounded[k].point, whole, free);
                self.improve(best, &polished)?;
            }
            for ((cell, parent), found) in fresh.drain(..).zip(&known).zip(bounded) {
                let lower = found.lower.max(*parent);
                if lower >= best.upper - tolerance {
                    settled = settled.min(lower);
                    continue;
                }
                number += 1;
                queue.push(Waiting {
                    lower,
                    number,
                    split: found.split,
                    cell,
                });
            }
            known.clear();
            limited = false;
            let threshold = best.upper - tolerance;
            while fresh.len() < 2 * BATCH {
                let Some(waiting) = queue.pop_if_below(threshold) else {
                    break;
                };
                if cells + fresh.len() + 2 > max_cells {
                    queue.push(waiting);
                    limited = true;
                    break;
                }
                match waiting.cell.halves(waiting.split, free) {
                    Some(halves) => {
                        fresh.extend(halves);
                        known.extend([waiting.lower; 2]);
                    }
                    None => {
                        settled = settled.min(waiting.lower);
                        status = BoxStatus::PrecisionLimit;
                    }
                }
            }
            if fresh.is_empty() {
                settled = queue.iter().map(|w| w.lower).fold(settled, f64::min);
                break;
            }
        }
        if limited {
            status = BoxStatus::MaxCells;
        }
        Ok((settled, cells, status))
    }

    /// A box around the best point in which cuts reach the tolerance, as large as it is found, and
    /// the lower bound there.
    fn surround(
        &self,
        whole: &Cell,
        free: &[usize],
        best: &mut Best,
        tolerance: f64,
        cells: &mut usize,
    ) -> Result<(Option<Cell>, f64)> {
        for _ in 0..6 {
            let around: Vec<Cell> = (0..CHUNK)
                .map(|k| {
                    let share = 0.5f64.powi(k as i32);
                    let mut cell = whole.clone();
                    for &i in free {
                        let width = share * (whole.high[i] - whole.low[i]);
                        let at = best.at[i].clamp(whole.low[i], whole.high[i]);
                        cell.low[i] = whole.low[i].max(at - width);
                        cell.high[i] = whole.high[i].min(at + width);
                    }
                    cell
                })
                .collect();
            *cells += around.len();
            let bounded = self.bound(&around, free, best, best.upper - tolerance, MORE_ROUNDS);
            let before = best.upper;
            for found in &bounded {
                if found.value < best.upper {
                    self.improve(best, &found.point)?;
                }
            }
            let polished = self.descend(&best.at, whole, free);
            self.improve(best, &polished)?;
            let threshold = best.upper - tolerance;
            if let Some(k) = bounded.iter().position(|b| b.lower >= threshold) {
                return Ok((Some(around[k].clone()), bounded[k].lower));
            }
            if best.upper > before - 0.1 * tolerance {
                break;
            }
        }
        Ok((None, f64::INFINITY))
    }

    /// Bounds over cells, in chunks of fixed size.
    fn bound(
        &self,
        cells: &[Cell],
        free: &[usize],
        best: &Best,
        threshold: f64,
        rounds: usize,
    ) -> Vec<Bounded> {
        let chunks: Vec<&[Cell]> = cells.chunks(CHUNK).collect();
        parallel::map(chunks.len(), |k| {
            self.bound_chunk(chunks[k], free, best, threshold, rounds)
        })
        .into_iter()
        .flatten()
        .collect()
    }

    fn bound_chunk(
        &self,
        cells: &[Cell],
        free: &[usize],
        best: &Best,
        threshold: f64,
        rounds: usize,
    ) -> Vec<Bounded> {
        let n = self.inner.n;
        let mids: Vec<Vec<f64>> = cells.iter().map(Cell::middle).collect();
        let halves: Vec<Vec<f64>> = cells.iter().zip(&mids).map(|(c, m)| c.half(m)).collect();
        let mut found = self.by_distances(cells, &mids, &halves, free);
        let open: Vec<usize> = (0..cells.len()).filter(|&k| found[k].lower < threshold).collect();
        if open.is_empty() {
            return found;
        }
        let block = |of: &[Vec<f64>]| Block::from_columns(n, open.iter().map(|&k| &of[k][..]));
        let enclosure = self.potential.enclose(block(&mids), block(&halves), free);
        let d = free.len();
        let mut bundles: Vec<Bundle> = (0..open.len())
            .map(|c| Bundle::new(|j| enclosure.slopes.col(c * d + j), d))
            .collect();
        let mut points: Vec<Vec<f64>> = (0..open.len())
            .map(|c| {
                let k = open[c];
                if cells[k].contains(&best.at) {
                    return (free.iter())
                        .map(|&i| match halves[k][i] > 0.0 {
                            true => ((best.at[i] - mids[k][i]) / halves[k][i]).clamp(-1.0, 1.0),
                            false => 0.0,
                        })
                        .collect();
                }
                let residual: Vec<f64> = (enclosure.center.col(c).iter())
                    .zip(&self.potential.target)
                    .map(|(a, b)| a - b)
                    .collect();
                let gradient: Vec<f64> = (0..d)
                    .map(|j| {
                        let column = enclosure.slopes.col(c * d + j);
                        column.iter().zip(&residual).map(|(a, b)| a * b).sum()
                    })
                    .collect();
                bundles[c].model_minimizer(&gradient, &vec![0.0; d])
            })
            .collect();
        let mut active: Vec<usize> = (0..open.len()).collect();
        for round in 0..rounds {
            let place = |c: usize, e: &[f64]| -> Vec<f64> {
                let mut at = mids[open[c]].clone();
                for (j, &i) in free.iter().enumerate() {
                    let cell = &cells[open[c]];
                    at[i] = (at[i] + e[j] * halves[open[c]][i]).clamp(cell.low[i], cell.high[i]);
                }
                at
            };
            let places: Vec<Vec<f64>> = active.iter().map(|&c| place(c, &points[c])).collect();
            let block = Block::from_columns(n, places.iter().map(|p| &p[..]));
            let touches = self.potential.touch(&enclosure, &active, &block);
            let mut next = Vec::with_capacity(active.len());
            for ((&c, touch), at) in active.iter().zip(touches).zip(places) {
                let k = open[c];
                let before = found[k].lower;
                if round == 0 {
                    found[k].split = cells[k].widest(free, &touch.scores);
                }
                if touch.value < found[k].value {
                    found[k].value = touch.value;
                    found[k].point = at;
                }
                bundles[c].add(touch.cut, &points[c], touch.value);
                found[k].lower = found[k].lower.max(bundles[c].bound());
                let lower = found[k].lower;
                if lower >= threshold {
                    continue;
                }
                // Half the way to the threshold in the rounds that are left, or it is not worth it.
                let rest = (threshold - lower) / (rounds - round) as f64;
                if round >= 2 && lower - before < 0.25 * rest {
                    continue;
                }
                points[c] = bundles[c].next();
                next.push(c);
            }
            active = next;
            if active.is_empty() {
                break;
            }
        }
        found
    }

    /// What the bounds of the network say of cells.
    fn by_distances(
        &self,
        cells: &[Cell],
        mids: &[Vec<f64>],
        halves: &[Vec<f64>],
        free: &[usize],
    ) -> Vec<Bounded> {
        let n = self.inner.n;
        let mut values = mids.concat();
        let mut errors = vec![0.0; cells.len()];
        evaluate_block(
            &self.many,
            &mut values,
            &mut errors,
            &mut EvaluateBuffers::default(),
        );
        let (star, distance) = (&self.free_minimizer.0, self.free_minimizer.1);
        let half_square = |v: f64| 0.5 * v.max(0.0).powi(2) * (1.0 - 1e-12);
        (0..cells.len())
            .map(|k| {
                let cell = &cells[k];
                let residual: Vec<f64> = (values[k * n..(k + 1) * n].iter())
                    .zip(&self.potential.target)
                    .map(|(a, b)| a - b)
                    .collect();
                let size = norm(&residual);
                let value = 0.5 * size * size;
                let error = errors[k] + self.potential.target_error;
                let radius = norm_up(&halves[k]);
                let near = half_square(size * (1.0 - 1e-12) - (error + self.bounds.nu() * radius) * SAFETY);
                let apart: Vec<f64> = (0..n)
                    .map(|i| (cell.low[i] - star[i]).max(star[i] - cell.high[i]).max(0.0))
                    .collect();
                let far = half_square(self.bounds.mu() * (norm(&apart) * (1.0 - 1e-12) - distance));
                Bounded {
                    // `max` passes over what is not a number.
                    lower: 0.0f64.max(near).max(far),
                    split: cell.widest(free, &[]),
                    point: mids[k].clone(),
                    value: if value.is_nan() { f64::INFINITY } else { value },
                }
            })
            .collect()
    }
}

impl Cell {
    fn middle(&self) -> Vec<f64> {
        (self.low.iter().zip(&self.high))
            .map(|(a, b)| (a + 0.5 * (b - a)).clamp(*a, *b))
            .collect()
    }

    /// Half widths around a middle, rounded up.
    fn half(&self, middle: &[f64]) -> Vec<f64> {
        (0..middle.len())
            .map(|i| {
                let reach = (self.high[i] - middle[i]).max(middle[i] - self.low[i]);
                if reach == 0.0 { 0.0 } else { reach.next_up() }
            })
            .collect()
    }

    fn contains(&self, at: &[f64]) -> bool {
        (0..at.len()).all(|i| self.low[i] <= at[i] && at[i] <= self.high[i])
    }

    /// The free input with the largest score, of those not much narrower than the widest; the
    /// widest without scores.
    fn widest(&self, free: &[usize], scores: &[f64]) -> usize {
        let width = |i: usize| self.high[i] - self.low[i];
        let largest = free.iter().map(|&i| width(i)).fold(0.0, f64::max);
        let mut choice = (free[0], f64::NEG_INFINITY);
        for (j, &i) in free.iter().enumerate() {
            let score = match scores.get(j) {
                Some(score) if width(i) > largest / 16.0 => *score,
                Some(_) => -1.0,
                None => width(i),
            };
            if score > choice.1 {
                choice = (i, score);
            }
        }
        match choice.1 > 0.0 || scores.is_empty() {
            true => choice.0,
            false => self.widest(free, &[]),
        }
    }

    /// The two halves along an input, or along the widest; `None` when no number lies between.
    fn halves(&self, split: usize, free: &[usize]) -> Option<[Cell; 2]> {
        for i in [split, self.widest(free, &[])] {
            let middle = self.low[i] + 0.5 * (self.high[i] - self.low[i]);
            if self.low[i] < middle && middle < self.high[i] {
                let (mut left, mut right) = (self.clone(), self.clone());
                left.high[i] = middle;
                right.low[i] = middle;
                return Some([left, right]);
            }
        }
        None
    }
}

trait PopBelow {
    fn pop_if_below(&mut self, threshold: f64) -> Option<Waiting>;
}

impl PopBelow for BinaryHeap<Waiting> {
    /// The first cell, if its bound is below the threshold.
    fn pop_if_below(&mut self, threshold: f64) -> Option<Waiting> {
        match self.peek() {
            Some(waiting) if waiting.lower < threshold => self.pop(),
            _ => None,
        }
    }
}

fn clamped(at: &[f64], cell: &Cell) -> Vec<f64> {
    (0..at.len())
        .map(|i| at[i].clamp(cell.low[i], cell.high[i]))
        .collect()
}

/// Cells that cover a box but for a box in it.
fn without(whole: &Cell, inner: &Cell, free: &[usize]) -> Vec<Cell> {
    let mut rest = whole.clone();
    let mut cells = Vec::new();
    for &i in free {
        if rest.low[i] < inner.low[i] {
            let mut cell = rest.clone();
            cell.high[i] = inner.low[i];
            cells.push(cell);
            rest.low[i] = inner.low[i];
        }
        if inner.high[i] < rest.high[i] {
            let mut cell = rest.clone();
            cell.low[i] = inner.high[i];
            cells.push(cell);
            rest.high[i] = inner.high[i];
        }
    }
    cells
}
