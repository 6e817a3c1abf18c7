//! Linear maps that rearrange numbers of complex matrices, real parts above imaginary ones, and
//! their adjoints; all row by row.

use bilip::Real;
use rayon::prelude::*;

use crate::spec::Strips;

/// Every matrix of `from` numbers to one of `to` numbers.
fn each<T: Real>(x: &[T], from: usize, to: usize, work: impl Fn(&[T], &mut [T]) + Sync + Send) -> Vec<T> {
    let count = x.len() / from.max(1);
    let mut y = vec![T::zero(); count * to];
    (y.par_chunks_mut(to.max(1)))
        .zip(x.par_chunks(from.max(1)))
        .for_each(|(y, x)| work(x, y));
    y
}

/// `[[Re, −Im], [Im, Re]]`: `[count, 2·rows, columns] → [count, 2·rows, 2·columns]`.
pub(crate) fn embed<T: Real>(z: &[T], twice: usize, columns: usize) -> Vec<T> {
    each(z, twice * columns, 2 * twice * columns, |z, y| {
        let rows = twice / 2;
        for (k, y) in y.chunks_exact_mut(2 * columns).enumerate() {
            let (left, right) = y.split_at_mut(columns);
            left.copy_from_slice(&z[k * columns..][..columns]);
            if k < rows {
                for (to, from) in right.iter_mut().zip(&z[(k + rows) * columns..]) {
                    *to = -*from;
                }
            } else {
                right.copy_from_slice(&z[(k - rows) * columns..][..columns]);
            }
        }
    })
}

/// The adjoint of [`embed`]: `[count, 2·rows, 2·columns] → [count, 2·rows, columns]`.
pub(crate) fn fold_embedded<T: Real>(d: &[T], twice: usize, columns: usize) -> Vec<T> {
    each(d, 2 * twice * columns, twice * columns, |d, y| {
        let rows = twice / 2;
        for (k, y) in y.chunks_exact_mut(columns).enumerate() {
            let left = &d[2 * k * columns..][..columns];
            let partner = if k < rows { k + rows } else { k - rows };
            let right = &d[(2 * partner + 1) * columns..][..columns];
            for ((y, a), b) in y.iter_mut().zip(left).zip(right) {
                *y = if k < rows { *a + *b } else { *a - *b };
            }
        }
    })
}

/// `G − Gᴴ`, and the identity if it is asked for: `[count, 2n, n]` to the same. It is its own
/// adjoint, without the identity.
pub(crate) fn skew<T: Real>(g: &[T], n: usize, identity: bool) -> Vec<T> {
    each(g, 2 * n * n, 2 * n * n, |g, w| {
        for (part, (g, w)) in g.chunks_exact(n * n).zip(w.chunks_exact_mut(n * n)).enumerate() {
            // Tile by tile: a transpose that jumps from row to row misses the cache.
            const TILE: usize = 16;
            for first in (0..n).step_by(TILE) {
                for i in 0..n {
                    for j in first..(first + TILE).min(n) {
                        let other = g[j * n + i];
                        w[i * n + j] = g[i * n + j] + if part == 0 { -other } else { other };
                    }
                }
            }
            if identity && part == 0 {
                for i in 0..n {
                    w[i * n + i] += T::one();
                }
            }
        }
    })
}

impl Strips {
    /// Calls `work` with the place of every run of rows in the matrix, and in the pieces.
    fn places(self, mut work: impl FnMut(usize, usize)) {
        for piece in 0..self.pieces {
            for part in 0..2 {
                let row = part * self.rows + self.first + piece * self.stride + self.from;
                work(row, (2 * piece + part) * self.height);
            }
        }
    }
}

/// `[count, 2·rows, columns] → [count·pieces, 2·height, columns]`.
pub(crate) fn strips<T: Real>(z: &[T], s: Strips, columns: usize) -> Vec<T> {
    let (whole, taken) = (2 * s.rows * columns, 2 * s.pieces * s.height * columns);
    each(z, whole, taken, |z, y| {
        let run = s.height * columns;
        s.places(|from, to| y[to * columns..][..run].copy_from_slice(&z[from * columns..][..run]));
    })
}

/// The adjoint of [`strips`]: pieces where they came from, zeros elsewhere.
pub(crate) fn laid_back<T: Real>(d: &[T], s: Strips, columns: usize) -> Vec<T> {
    let (whole, taken) = (2 * s.rows * columns, 2 * s.pieces * s.height * columns);
    each(d, taken, whole, |d, y| {
        let run = s.height * columns;
        s.places(|to, from| y[to * columns..][..run].copy_from_slice(&d[from * columns..][..run]));
    })
}

/// `[outer, a, b, inner] → [outer, b, a, inner]`.
pub(crate) fn exchanged<T: Real>(x: &[T], [_, a, b, inner]: [usize; 4]) -> Vec<T> {
    let mut y = vec![T::zero(); x.len()];
    (y.par_chunks_mut((a * inner).max(1)))
        .enumerate()
        .for_each(|(k, y)| {
            let (outer, column) = (k / b, k % b);
            for (row, y) in y.chunks_exact_mut(inner).enumerate() {
                let from = ((outer * a + row) * b + column) * inner;
                y.copy_from_slice(&x[from..from + inner]);
            }
        });
    y
}
