//! The arithmetic of training on a CPU: plain functions on slices and matrices, forward and hand-derived backward.
//!
//! Nothing here knows of Burn. Batches are row-major `[batch, n]`, which is the column-major `n × batch` that the
//! products below work on.

pub(crate) mod adam;
pub(crate) mod cayley;
pub(crate) mod monlip;

/// Runs `work` on `0..count`, in parallel when `flops` says that it pays, results in order.
pub(crate) fn map<R: Send>(count: usize, flops: usize, work: impl Fn(usize) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    // Waking a second thread costs about 5 µs: below a megaflop a core is done by then.
    if count < 2 || flops < 1 << 20 || rayon::current_num_threads() < 2 {
        return (0..count).map(work).collect();
    }
    (0..count).into_par_iter().with_max_len(1).map(work).collect()
}
