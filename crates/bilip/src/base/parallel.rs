//! Threads, in one place: with the feature `rayon` off, every loop here runs on the caller's
//! thread.

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;

use faer::Par;

/// A value that is computed when it is first needed, and then kept.
///
/// **Nothing is locked while it is computed.** `OnceLock::get_or_init` with a closure that uses the
/// pool deadlocks: a worker that waits inside the closure takes up another job, which asks for the
/// same value and waits for itself; and a caller outside the pool that holds the lock waits for
/// workers that wait for the lock. Here threads that come at the same time each compute the value,
/// the first result is kept, and on a worker of the pool it is computed without the pool. This is
/// the only lazy cell of the crate; a test refuses others. Fill it before a parallel region where
/// that is possible (`Stack::prepare`), so that it is computed once and on all cores.
#[derive(Clone, Debug)]
pub(crate) struct Late<T>(OnceLock<T>);

impl<T> Late<T> {
    pub(crate) fn empty() -> Self {
        Late(OnceLock::new())
    }

    pub(crate) fn of(value: T) -> Self {
        Late(OnceLock::from(value))
    }

    pub(crate) fn get_or_compute(&self, compute: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.0.get() {
            return value;
        }
        let value = if on_worker() {
            sequential(compute)
        } else {
            compute()
        };
        // The closure only moves: the lock is held for the time of a copy.
        self.0.get_or_init(move || value)
    }
}

thread_local! {
    /// Whether this thread must leave the pool alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread, without handing anything to the pool.
fn sequential<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(true));
    work()
}

/// Whether this thread is one of the pool's.
fn on_worker() -> bool {
    #[cfg(feature = "rayon")]
    return rayon::current_thread_index().is_some();
    #[cfg(not(feature = "rayon"))]
    false
}

/// faer's parallelism for an operation of `work` multiply-adds: threads only where they pay.
pub(crate) fn par_for(work: usize) -> Par {
    #[cfg(feature = "rayon")]
    // Below ~100³ the join costs more than it saves (measured on 2 cores).
    if work >= 1 << 20 && threads() > 1 {
        return Par::rayon(0);
    }
    let _ = work;
    Par::Seq
}

/// Number of threads a loop over rows may use.
pub(crate) fn threads() -> usize {
    #[cfg(feature = "rayon")]
    if !ALONE.get() {
        return rayon::current_num_threads();
    }
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
        if count > 1 && threads() > 1 {
            return (0..count).into_par_iter().with_max_len(1).map(work).collect();
        }
    }
    (0..count).map(work).collect()
}

/// Runs `work` on every piece, in parallel if that pays: at a number of operations per piece.
pub(crate) fn for_each<P: Send>(pieces: Vec<P>, flops: usize, work: impl Fn(usize, P) + Sync + Send) {
    #[cfg(feature = "rayon")]
    if pieces.len() > 1 && pieces.len() * flops >= 1 << 20 && threads() > 1 {
        use rayon::prelude::*;
        // Less than a hundred thousand operations are not worth handing over.
        let together = ((1 << 17) / flops.max(1)).max(1);
        return (pieces.into_par_iter().enumerate())
            .with_min_len(together)
            .for_each(|(k, piece)| work(k, piece));
    }
    let _ = flops;
    for (k, piece) in pieces.into_iter().enumerate() {
        work(k, piece);
    }
}
