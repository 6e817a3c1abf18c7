//! Upper bounds on floating-point sums.

use crate::real::UNIT_ROUNDOFF;

/// `γ_k = ku/(1 − ku)`, rounded up: relative error of `k` chained operations (Higham, Accuracy and Stability, §3.1).
pub(crate) fn gamma(k: usize) -> f64 {
    let ku = k as f64 * UNIT_ROUNDOFF;
    if ku >= 0.5 {
        return f64::INFINITY;
    }
    ku / (1.0 - ku) * (1.0 + 8.0 * f64::EPSILON)
}

/// An upper bound on a sum of `count` non-negative terms whose computed value is `computed`.
pub(crate) fn sum_up(computed: f64, count: usize) -> f64 {
    (computed * (1.0 + 2.0 * gamma(count + 2))).next_up()
}
