//! Threads, in one place: with the feature `rayon` off, every loop here runs on the caller's thread.

use std::ops::Range;

use faer::Par;

/// faer's parallelism for an operation of `work` multiply-adds: threads only where they pay.
pub(crate) fn par_for(work: usize) -> Par {
    #[cfg(feature = "rayon")]
    // Below ~100³ the join costs more than it saves (measured on 2 cores).
    if work >= 1 << 20 && rayon::current_num_threads() > 1 {
        return Par::rayon(0);
    }
    let _ = work;
    Par::Seq
}

/// Number of threads a loop over rows may use.
pub(crate) fn threads() -> usize {
    #[cfg(feature = "rayon")]
    return rayon::current_num_threads();
    #[cfg(not(feature = "rayon"))]
    1
}

/// Runs `work` on consecutive ranges of at most `largest` rows, in parallel, results in order.
pub(crate) fn map_chunks<R: Send>(
    rows: usize,
    largest: usize,
    work: impl Fn(Range<usize>) -> R + Sync + Send,
) -> Vec<R> {
    // Equal chunks, at least one a thread, so that no core waits for a last small one.
    let count = rows.div_ceil(largest.max(1)).max(threads().min(rows));
    let count = if count > 1 {
        count.next_multiple_of(threads()).min(rows)
    } else {
        count
    };
    let bounds = |i: usize| i * rows / count.max(1);
    map(count, |i| work(bounds(i)..bounds(i + 1)))
}

/// Runs `work` on `0..count` in parallel, results in order.
pub(crate) fn map<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    #[cfg(feature = "rayon")]
    {
        use rayon::prelude::*;
        if count > 1 {
            return (0..count).into_par_iter().with_max_len(1).map(work).collect();
        }
    }
    (0..count).map(work).collect()
}
