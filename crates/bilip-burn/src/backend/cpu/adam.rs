//! One step of Adam on a flat vector, in one pass.

use bilip::Real;

use crate::spec::AdamStep;

/// `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `w ← w(1 − ηλ) − η m̂/(√v̂ + ε)`, in place.
pub(crate) fn step<T: Real>(w: &mut [T], g: &[T], m: &mut [T], v: &mut [T], step: AdamStep) {
    let (b1, b2) = (T::round_from(step.beta.0), T::round_from(step.beta.1));
    let (c1, c2) = (T::one() - b1, T::one() - b2);
    let correct = |beta: f64| 1.0 / (1.0 - beta.powi(step.time));
    let rate = T::round_from(step.rate * correct(step.beta.0));
    let second = T::round_from(correct(step.beta.1));
    let keep = T::round_from(1.0 - step.rate * step.decay);
    let epsilon = T::round_from(step.epsilon);
    let chunk = |w: &mut [T], g: &[T], m: &mut [T], v: &mut [T]| {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || {
                let n = w.len();
                let (g, m, v) = (&g[..n], &mut m[..n], &mut v[..n]);
                for i in 0..n {
                    m[i] = b1 * m[i] + c1 * g[i];
                    v[i] = b2 * v[i] + c2 * g[i] * g[i];
                    let root = num_traits::Float::sqrt(v[i] * second);
                    w[i] = w[i] * keep - rate * m[i] / (root + epsilon);
                }
            },
        );
    };
    use rayon::prelude::*;
    const CHUNK: usize = 1 << 16;
    if w.len() <= CHUNK {
        return chunk(w, g, m, v);
    }
    w.par_chunks_mut(CHUNK)
        .zip(g.par_chunks(CHUNK))
        .zip(m.par_chunks_mut(CHUNK))
        .zip(v.par_chunks_mut(CHUNK))
        .for_each(|(((w, g), m), v)| chunk(w, g, m, v));
}
