//! A model without any guarantee, to compare with: a quadratic function, and a Gaussian process on
//! what it leaves over. It says how much of a table can be explained at all, which rows are low
//! apart from their noise, and whether one minimum is too little.

use crate::process::{Process, Smoothness};
use crate::quadratic::{Quadratic, feature_count};

/// Penalties of the quadratic function that are tried.
const PENALTIES: [f64; 6] = [1e-9, 1e-4, 1e-2, 1e-1, 1.0, 10.0];

/// Parts of the rows that penalties are compared on, and rows per coefficient from which on there is
/// nothing to compare.
const PARTS: usize = 5;
const MANY: usize = 20;

/// Predictions of standardized y from standardized inputs (and parameters, as further inputs).
#[derive(Clone, Debug)]
pub(crate) struct Free {
    quadratic: Option<Quadratic>,
    mean: f64,
    process: Option<Process>,
    penalty: f64,
    n: usize,
}

fn mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for v in values {
        sum += v * v;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

/// The penalty of a quadratic function that predicts rows best from others, part by part; the
/// lightest where there are many rows for every coefficient.
fn best_penalty(x: &[f64], y: &[f64], n: usize) -> f64 {
    let (rows, count) = (y.len(), feature_count(n));
    if rows >= MANY * count {
        return PENALTIES[0];
    }
    // More coefficients than rows are for heavy penalties only.
    let lightest = if rows < 2 * count { 2 } else { 0 };
    let error = |penalty: f64| -> f64 {
        (0..PARTS)
            .map(|part| {
                let pick = |inside: bool| -> (Vec<f64>, Vec<f64>) {
                    let chosen = (0..rows).filter(|r| (r % PARTS == part) == inside);
                    let values = chosen.clone().map(|r| y[r]).collect();
                    let rows = chosen.flat_map(|r| &x[r * n..(r + 1) * n]);
                    (rows.copied().collect(), values)
                };
                let ((seen_x, seen_y), (other_x, other_y)) = (pick(false), pick(true));
                match Quadratic::fit(&seen_x, n, &seen_y, None, penalty) {
                    None => f64::INFINITY,
                    Some(q) => {
                        let found = q.values(&other_x);
                        found.iter().zip(&other_y).map(|(a, b)| (a - b).powi(2)).sum()
                    }
                }
            })
            .sum()
    };
    let errors: Vec<f64> = PENALTIES[lightest..].iter().map(|p| error(*p)).collect();
    let best = (0..errors.len()).min_by(|a, b| errors[*a].total_cmp(&errors[*b]));
    PENALTIES[lightest + best.unwrap_or(0)]
}

impl Free {
    /// Fits rows of `n` inputs, choosing its parts on other rows. Both are in random order.
    pub fn fit((x, y): (&[f64], &[f64]), (other_x, other_y): (&[f64], &[f64]), n: usize) -> Self {
        let mean = y.iter().sum::<f64>() / y.len().max(1) as f64;
        let mut free = Free {
            quadratic: None,
            mean,
            process: None,
            penalty: 0.0,
            n,
        };
        let error = |free: &Free| {
            let predicted = free.values(other_x);
            mean_square(predicted.iter().zip(other_y).map(|(a, b)| a - b))
        };
        let mut best = error(&free);
        let penalty = best_penalty(x, y, n);
        let candidate = Free {
            quadratic: Quadratic::fit(x, n, y, None, penalty),
            penalty,
            ..free.clone()
        };
        let found = error(&candidate);
        if candidate.quadratic.is_some() && found < best {
            (free, best) = (candidate, found);
        }
        let left: Vec<f64> = free.values(x).iter().zip(y).map(|(a, b)| b - a).collect();
        for smoothness in [Smoothness::All, Smoothness::Two] {
            let candidate = Free {
                process: Process::fit(x, &left, n, smoothness),
                ..free.clone()
            };
            let found = error(&candidate);
            if candidate.process.is_some() && found < best {
                (free, best) = (candidate, found);
            }
        }
        free
    }

    /// Whether the quadratic function is all of it.
    pub fn is_quadratic(&self) -> bool {
        self.quadratic.is_some() && self.process.is_none()
    }

    /// The penalty of the quadratic function, if there is one.
    pub fn penalty(&self) -> Option<f64> {
        self.quadratic.as_ref().map(|_| self.penalty)
    }

    /// The same model on other rows, its settings kept.
    pub fn refit(&self, x: &[f64], y: &[f64]) -> Self {
        let mut free = self.clone();
        free.mean = y.iter().sum::<f64>() / y.len().max(1) as f64;
        if self.quadratic.is_some() {
            free.quadratic = Quadratic::fit(x, self.n, y, None, self.penalty);
        }
        free.process = None;
        let left: Vec<f64> = free.values(x).iter().zip(y).map(|(a, b)| b - a).collect();
        free.process = self.process.as_ref().and_then(|p| p.refit(x, &left));
        free
    }

    /// Predictions at rows.
    pub fn values(&self, x: &[f64]) -> Vec<f64> {
        let mut values = match &self.quadratic {
            Some(quadratic) => quadratic.values(x),
            None => vec![self.mean; x.len() / self.n],
        };
        if let Some(process) = &self.process {
            let more = process.values(x);
            values.iter_mut().zip(more).for_each(|(v, m)| *v += m);
        }
        values
    }

    /// The gradient of the prediction at a point.
    pub fn gradient(&self, x: &[f64]) -> Vec<f64> {
        let mut gradient = match &self.quadratic {
            Some(quadratic) => quadratic.gradient(x),
            None => vec![0.0; self.n],
        };
        if let Some(process) = &self.process {
            let more = process.gradient(x);
            gradient.iter_mut().zip(more).for_each(|(v, m)| *v += m);
        }
        gradient
    }

    /// The lowest prediction that projected descent finds in a box from several starts, and where.
    /// Only the first `free` coordinates move.
    pub fn lowest(&self, starts: &[Vec<f64>], bounds: &[(f64, f64)], free: usize) -> (Vec<f64>, f64) {
        let mut best = (starts[0].clone(), f64::INFINITY);
        for start in starts {
            let found = self.descend(start, bounds, free);
            if found.1 < best.1 {
                best = found;
            }
        }
        best
    }

    /// Projected gradient descent with a step of Barzilai and Borwein (1988) and halving.
    pub fn descend(&self, start: &[f64], bounds: &[(f64, f64)], free: usize) -> (Vec<f64>, f64) {
        let clamp = |x: &mut Vec<f64>| {
            for (k, (low, high)) in bounds.iter().enumerate().take(free) {
                x[k] = x[k].clamp(*low, *high);
            }
        };
        let mut x = start.to_vec();
        clamp(&mut x);
        let mut value = self.values(&x)[0];
        let mut gradient = self.gradient(&x);
        let size = gradient[..free].iter().map(|g| g * g).sum::<f64>().sqrt();
        let mut step = 0.1 / size.max(1e-12);
        for _ in 0..200 {
            let mut moved = None;
            for _ in 0..30 {
                let mut next = x.clone();
                for k in 0..free {
                    next[k] -= step * gradient[k];
                }
                clamp(&mut next);
                let found = self.values(&next)[0];
                if found < value {
                    moved = Some((next, found));
                    break;
                }
                step *= 0.5;
            }
            let Some((next, found)) = moved else {
                break;
            };
            let new = self.gradient(&next);
            let (mut ss, mut sy) = (0.0, 0.0);
            for k in 0..free {
                let s = next[k] - x[k];
                ss += s * s;
                sy += s * (new[k] - gradient[k]);
            }
            step = if sy > 1e-300 { ss / sy } else { 2.0 * step };
            let gained = value - found;
            (x, value, gradient) = (next, found, new);
            if gained <= 1e-12 * value.abs().max(1e-12) || ss.sqrt() < 1e-9 {
                break;
            }
        }
        (x, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn it_explains_functions_that_are_not_quadratic() {
        let mut rng = Rng::new(7);
        let x: Vec<f64> = (0..2 * 800).map(|_| 4.0 * rng.uniform() - 2.0).collect();
        let y: Vec<f64> = (x.chunks_exact(2))
            .map(|x| (3.0 * x[0]).sin() + x[1].powi(2))
            .collect();
        let (inside, outside) = ((&x[..1_200], &y[..600]), (&x[1_200..], &y[600..]));
        let free = Free::fit(inside, outside, 2);
        let left = mean_square(free.values(outside.0).iter().zip(outside.1).map(|(a, b)| a - b));
        assert!(left < 1e-4, "{left}");
    }
}
