//! Products that keep all threads busy.

use bilip::Real;
use bilip::faer::linalg::matmul::matmul;
use bilip::faer::{Accum, MatMut, MatRef, Par};

/// Runs `work` on `0..count`, in parallel when `flops` says that it pays, results in order.
pub(crate) fn map<R: Send>(count: usize, flops: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    // Below about a million operations one core is done before a second has woken up.
    if count < 2 || flops < 1 << 20 || rayon::current_num_threads() < 2 {
        return (0..count).map(work).collect();
    }
    (0..count).into_par_iter().with_max_len(1).map(work).collect()
}

/// `dst ← [dst +] alpha·lhs·rhs`, split in halves that an idle thread can take over.
///
/// Transforms of different sizes never divide evenly among threads; with their products split like
/// this, whoever is done first helps the others.
pub(crate) fn gemm<T: Real>(
    dst: MatMut<'_, T>,
    accum: Accum,
    lhs: MatRef<'_, T>,
    rhs: MatRef<'_, T>,
    alpha: T,
) {
    let (rows, cols) = dst.shape();
    // Halves of less than this are not worth a hand-over.
    const SPLIT: usize = 1 << 21;
    if rows * cols * lhs.ncols() < SPLIT || rayon::current_num_threads() < 2 {
        return matmul(dst, accum, lhs, rhs, alpha, Par::Seq);
    }
    if cols >= rows {
        let (a, b) = dst.split_at_col_mut(cols / 2);
        let (left, right) = rhs.split_at_col(cols / 2);
        rayon::join(
            || gemm(a, accum, lhs, left, alpha),
            || gemm(b, accum, lhs, right, alpha),
        );
    } else {
        let half = (rows / 2).next_multiple_of(16).min(rows - 1);
        let (a, b) = dst.split_at_row_mut(half);
        let (top, bottom) = lhs.split_at_row(half);
        rayon::join(
            || gemm(a, accum, top, rhs, alpha),
            || gemm(b, accum, bottom, rhs, alpha),
        );
    }
}

/// Products of as many matrices on either side, `a` or `b` transposed or neither, all row by row:
/// `[rows, columns]` of each, and of what comes out.
pub(crate) fn products<T: Real>(
    (a, [m, k]): (&[T], [usize; 2]),
    (b, [p, q]): (&[T], [usize; 2]),
    (turn_a, turn_b): (bool, bool),
) -> (Vec<T>, [usize; 2]) {
    use rayon::prelude::*;
    let rows = if turn_a { k } else { m };
    let columns = if turn_b { p } else { q };
    let count = a.len() / (m * k).max(1);
    let mut y = vec![T::zero(); count * rows * columns];
    (y.par_chunks_mut((rows * columns).max(1)))
        .zip(a.par_chunks((m * k).max(1)))
        .zip(b.par_chunks((p * q).max(1)))
        .for_each(|((y, a), b)| {
            let (a, b) = (
                MatRef::from_row_major_slice(a, m, k),
                MatRef::from_row_major_slice(b, p, q),
            );
            gemm(
                MatMut::from_row_major_slice_mut(y, rows, columns),
                Accum::Replace,
                if turn_a { a.transpose() } else { a },
                if turn_b { b.transpose() } else { b },
                T::one(),
            );
        });
    (y, [rows, columns])
}
