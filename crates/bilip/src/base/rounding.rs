//! Upper bounds on floating-point sums and norms.

use crate::base::real::UNIT_ROUNDOFF;

/// Guards the norms and sums below, themselves computed in f64: layers have at most [`MAX_UNITS`]
/// terms to a sum.
pub(crate) const SAFETY: f64 = 1.0 + 1e-9;

/// Largest number of hidden units and inputs of a layer together; sums of this many terms are
/// within [`SAFETY`].
pub(crate) const MAX_UNITS: usize = 4_000_000;

/// Numbers so small that squares, products or quotients by ψ may have underflowed are counted at
/// this size.
const FLOOR: f64 = 1e-150;

/// `γ_k = ku/(1 − ku)`, rounded up: relative error of `k` chained operations (Higham, Accuracy and
/// Stability, §3.1).
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

/// Euclidean norm, computed without overflow or underflow of the squares.
pub(crate) fn norm(v: &[f64]) -> f64 {
    let sum = v.iter().map(|v| v * v).sum::<f64>();
    if (1e-280..1e280).contains(&sum) {
        return sum.sqrt();
    }
    if sum.is_nan() {
        return f64::NAN;
    }
    let largest = v.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * v.iter().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}

/// An upper bound on the Euclidean norm.
pub(crate) fn norm_up(v: &[f64]) -> f64 {
    norm(v) * (1.0 + 2.0 * gamma(v.len() + 8)) + f64::MIN_POSITIVE
}

/// What underflow may have taken from sums of `terms` terms.
pub(crate) fn floor(terms: usize) -> f64 {
    (terms + 16) as f64 * FLOOR
}
