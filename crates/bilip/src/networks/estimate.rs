//! Measured slopes. These are *estimates*: true of the points looked at, and no bound for any
//! other.

use serde::{Deserialize, Serialize};

use crate::base::error::{Result, check_batch, check_rows};
use crate::base::real::Real;
use crate::base::rounding::norm;
use crate::layers::layer::Direction;
use crate::layers::stack::Workspace;
use crate::networks::map::{BiLipschitz, stack};

/// The range of a quantity over the points it was measured at. Not a bound:
/// [`Bounds`](crate::Bounds) are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The smallest value seen.
    pub smallest: f64,
    /// The largest value seen.
    pub largest: f64,
    /// How many values were looked at.
    pub samples: usize,
}

impl Estimate {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        values.fold(None, |seen: Option<Estimate>, v| {
            Some(match seen {
                None => Estimate {
                    smallest: v,
                    largest: v,
                    samples: 1,
                },
                Some(e) => Estimate {
                    smallest: e.smallest.min(v),
                    largest: e.largest.max(v),
                    samples: e.samples + 1,
                },
            })
        })
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "measured {:.4} .. {:.4} over {} samples",
            self.smallest, self.largest, self.samples
        )
    }
}

/// `‖G(x) − G(x')‖/‖x − x'‖` over pairs of rows; pairs of equal points are passed over.
///
/// `None` when no pair of different points is left.
///
/// # Errors
/// On batches that do not fit together or hold NaN or infinity.
pub fn measured_slopes<T: Real, M: BiLipschitz<T> + ?Sized>(
    map: &M,
    x: &[T],
    other: &[T],
) -> Result<Option<Estimate>> {
    let n = map.dim();
    let rows = check_batch("x", x, n)?;
    check_rows("x'", other, rows, n)?;
    let (a, b) = (map.forward(x)?, map.forward(other)?);
    let distance = |u: &[T], v: &[T]| {
        let d: Vec<f64> = u.iter().zip(v).map(|(u, v)| u.as_f64() - v.as_f64()).collect();
        norm(&d)
    };
    Ok(Estimate::of((0..rows).filter_map(|r| {
        let slice = r * n..(r + 1) * n;
        let dx = distance(&x[slice.clone()], &other[slice.clone()]);
        (dx > 0.0).then(|| distance(&a[slice.clone()], &b[slice]) / dx)
    })))
}

/// The largest singular value of the Jacobian at every row, estimated by `iterations` steps of
/// power iteration on `JᵀJ` from below.
///
/// `None` for an empty batch.
///
/// # Errors
/// On a batch of the wrong size or with NaN or infinity.
pub fn local_lipschitz<T: Real, M: BiLipschitz<T> + ?Sized>(
    map: &M,
    x: &[T],
    iterations: usize,
) -> Result<Option<Estimate>> {
    let n = map.dim();
    let rows = check_batch("x", x, n)?;
    let stack = stack(map);
    let parts = crate::base::parallel::map_chunks(rows, 64, |range| {
        let columns = range.len();
        let mut workspace = Workspace::default();
        let mut at = x[range.start * n..range.end * n].to_vec();
        let slopes = stack.linearize(&mut at, columns, &mut workspace);
        let mut v: Vec<T> = (0..columns * n)
            .map(|i| T::round_from(1.0 + 0.5 * ((i % n) as f64 * 2.4).sin()))
            .collect();
        let mut gains = vec![0.0; columns];
        for _ in 0..iterations.max(1) {
            for column in v.chunks_exact_mut(n) {
                let size = norm(&column.iter().map(|v| v.as_f64()).collect::<Vec<_>>());
                if size > 0.0 {
                    column.iter_mut().for_each(|v| *v /= T::round_from(size));
                }
            }
            stack.apply_linear(&slopes, &mut v, 1, Direction::Forward, &mut workspace);
            for (gain, column) in gains.iter_mut().zip(v.chunks_exact(n)) {
                *gain = norm(&column.iter().map(|v| v.as_f64()).collect::<Vec<_>>());
            }
            stack.apply_linear(&slopes, &mut v, 1, Direction::Reverse, &mut workspace);
        }
        gains
    });
    Ok(Estimate::of(parts.into_iter().flatten()))
}
