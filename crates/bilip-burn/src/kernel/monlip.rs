//! The monotone layer from its free parameters, forward and backward in one piece.
//!
//! All parameters but the hidden bias live in one flat vector φ, so that an optimizer step is one operation and a
//! layer is one node of the graph. In the forward pass the `L + 1` Cayley transforms run in parallel, then the weights
//! `V_k = 2J₂ₖᵀJ₁,ₖ₋₁` and `S_k = J_kᵀ[Q_k; −Q_{k−1}]` (with `J_k = [A_kᵀ; B_kᵀ]`), then blocks of the batch. The backward pass
//! goes backward in the same order: blocks of the batch, then `V̄_k` and `S̄_k` of all layers in parallel, then the transforms.

use std::ops::Range;

use bilip::faer::{Accum, Mat, MatMut, MatRef};
use bilip::{Activation, Real};

use super::{cayley, gemm, map};

/// The shape of a layer and where its parameters lie in φ.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub(crate) n: usize,
    pub(crate) units: Vec<usize>,
    pub(crate) offsets: Vec<usize>,
    pub(crate) activation: Activation,
    /// `F^q`, or `[F^p; F^q]` in the general form; rows × n, row-major.
    pub(crate) fq: Range<usize>,
    /// Rows of `F^p`: 0 or n.
    pub(crate) extra: usize,
    pub(crate) gain_q: usize,
    pub(crate) fab: Vec<Range<usize>>,
    pub(crate) gain_ab: Range<usize>,
    pub(crate) output_bias: Range<usize>,
    /// `d`, where the activation is not positively homogeneous.
    pub(crate) log_psi: Option<Range<usize>>,
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn new(n: usize, units: &[usize], activation: Activation, general: bool) -> Self {
        let m: usize = units.iter().sum();
        let extra = if general { n } else { 0 };
        let mut at = 0;
        let mut take = |count: usize| {
            at += count;
            at - count..at
        };
        let fq = take((extra + m) * n);
        let gain_q = take(1).start;
        let mut fab = Vec::with_capacity(units.len());
        let mut before = 0;
        for &width in units {
            fab.push(take((width + before) * width));
            before = width;
        }
        let gain_ab = take(units.len());
        let output_bias = take(n);
        let log_psi = (!activation.is_homogeneous()).then(|| take(m));
        let offsets = units
            .iter()
            .scan(0, |sum, width| {
                *sum += width;
                Some(*sum - width)
            })
            .collect();
        Layout {
            n,
            units: units.to_vec(),
            offsets,
            activation,
            fq,
            extra,
            gain_q,
            fab,
            gain_ab,
            output_bias,
            log_psi,
            len: at,
        }
    }

    /// Number of hidden units.
    pub(crate) fn hidden(&self) -> usize {
        self.units.iter().sum()
    }

    fn before(&self, k: usize) -> usize {
        if k == 0 { 0 } else { self.units[k - 1] }
    }

    /// Free matrix `k` of φ: `F_k^{ab}`, `(m_k + m_{k−1}) × m_k`.
    pub(crate) fn fab<'a, T: Real>(&self, phi: &'a [T], k: usize) -> MatRef<'a, T> {
        let width = self.units[k];
        MatRef::from_row_major_slice(&phi[self.fab[k].clone()], width + self.before(k), width)
    }

    /// `F^q` or `[F^p; F^q]`.
    pub(crate) fn fq<'a, T: Real>(&self, phi: &'a [T]) -> MatRef<'a, T> {
        MatRef::from_row_major_slice(&phi[self.fq.clone()], self.extra + self.hidden(), self.n)
    }

    /// Multiply-adds of the transforms, roughly: what decides whether threads pay.
    fn transform_flops(&self) -> usize {
        self.units.iter().map(|m| 8 * m * m * m).sum()
    }
}

/// What the backward pass needs.
#[derive(Debug)]
pub struct Tape<T> {
    q: cayley::Tape<T>,
    /// Whether `F^q` is wide (fewer hidden units than inputs) and was transposed.
    wide: bool,
    hidden: Vec<cayley::Tape<T>>,
    v: Vec<Mat<T>>,
    s: Mat<T>,
    psi: Option<Vec<T>>,
    mu: T,
    gamma: T,
    rows: usize,
    bias_rows: usize,
    x: Vec<T>,
    /// Hidden state and slopes, `m` a row of the batch.
    z: Vec<T>,
    slopes: Vec<T>,
    /// Pre-activations, only where ψ is learned.
    pre: Vec<T>,
}

/// Gradients of everything a layer depends on.
pub(crate) struct Gradients<T> {
    pub(crate) x: Vec<T>,
    pub(crate) phi: Vec<T>,
    /// Of μ and γ.
    pub(crate) bounds: [T; 2],
    pub(crate) bias: Vec<T>,
}

/// `√(2γ)` and `√(γ/2)`.
fn gains<T: Real>(gamma: T) -> (T, T) {
    let two = T::one() + T::one();
    let root = num_traits::Float::sqrt(two * gamma);
    (root, root / two)
}

/// Rows of a block of the batch: two blocks a thread at most, so that the products stay wide.
fn block_rows(rows: usize, flops: usize) -> usize {
    let threads = rayon::current_num_threads();
    if flops < 1 << 20 || threads < 2 {
        return rows.max(1);
    }
    rows.div_ceil(threads).clamp(16, 128).min(rows.max(1))
}

/// `y = F(x)` for every row of the batch. `bias` holds one hidden bias, or one per row.
pub(crate) fn forward<T: Real>(
    layout: &Layout,
    x: &[T],
    phi: &[T],
    mu: T,
    gamma: T,
    bias: &[T],
) -> (Vec<T>, Tape<T>) {
    let (n, m) = (layout.n, layout.hidden());
    let rows = x.len() / n;
    let layers = layout.units.len();
    let free_q = layout.fq(phi);
    let wide = free_q.nrows() < n;
    // Job 0 is the widest hidden transform's peer Q; the hidden layers follow.
    let mut transforms = map(layers + 1, layout.transform_flops(), |job| match job {
        0 => {
            let free = if wide { free_q.transpose() } else { free_q };
            cayley::forward(free, phi[layout.gain_q])
        }
        k => cayley::forward(layout.fab(phi, k - 1), phi[layout.gain_ab.start + k - 1]),
    });
    let q_tape = transforms.remove(0);
    let q = q_rows(&q_tape, wide, layout.extra);
    let blocks = map(layers, layout.transform_flops(), |k| {
        let width = layout.units[k];
        let j = &transforms[k].j;
        let mut s = Mat::<T>::zeros(width, n);
        let top = q.subrows(layout.offsets[k], width);
        gemm(
            s.as_mut(),
            Accum::Replace,
            j.subrows(0, width).transpose(),
            top,
            T::one(),
        );
        if k == 0 {
            return (None, s);
        }
        let before = layout.units[k - 1];
        let b = j.subrows(width, before).transpose();
        let above = q.subrows(layout.offsets[k - 1], before);
        gemm(s.as_mut(), Accum::Add, b, above, -T::one());
        let mut v = Mat::<T>::zeros(width, before);
        let two = T::one() + T::one();
        gemm(
            v.as_mut(),
            Accum::Replace,
            b,
            transforms[k - 1].j.subrows(0, before),
            two,
        );
        (Some(v), s)
    });
    let mut s = Mat::<T>::zeros(m, n);
    let mut v = Vec::with_capacity(layers);
    for (k, (vk, sk)) in blocks.into_iter().enumerate() {
        s.as_mut()
            .subrows_mut(layout.offsets[k], layout.units[k])
            .copy_from(&sk);
        v.extend(vk);
    }
    let psi: Option<Vec<T>> = layout
        .log_psi
        .clone()
        .map(|range| phi[range].iter().map(|d| num_traits::Float::exp(*d)).collect());
    let mut tape = Tape {
        q: q_tape,
        wide,
        hidden: transforms,
        v,
        s,
        psi,
        mu,
        gamma,
        rows,
        bias_rows: bias.len() / m,
        x: x.to_vec(),
        z: vec![T::zero(); m * rows],
        slopes: vec![T::zero(); m * rows],
        pre: Vec::new(),
    };
    let learned = tape.psi.is_some();
    if learned {
        tape.pre = vec![T::zero(); m * rows];
    }
    let mut y = vec![T::zero(); n * rows];
    let output_bias = &phi[layout.output_bias.clone()];
    let block = block_rows(rows, rows * m * layout.units.iter().max().copied().unwrap_or(1));
    let Tape {
        z,
        slopes,
        pre,
        v,
        s,
        psi,
        ..
    } = &mut tape;
    let (v, s, psi) = (&*v, &*s, psi.as_deref());
    let mut jobs: Vec<_> = z
        .chunks_mut(m * block)
        .zip(slopes.chunks_mut(m * block))
        .zip(y.chunks_mut(n * block))
        .enumerate()
        .map(|(i, ((z, slopes), y))| (i * block, z, slopes, y, &mut [][..]))
        .collect();
    if learned {
        for (job, pre) in jobs.iter_mut().zip(pre.chunks_mut(m * block)) {
            job.4 = pre;
        }
    }
    let run = |(start, z, slopes, y, pre): (usize, &mut [T], &mut [T], &mut [T], &mut [T])| {
        let columns = y.len() / n;
        let x = MatRef::from_column_major_slice(&x[start * n..(start + columns) * n], n, columns);
        let bias = |j: usize| {
            if bias.len() == m {
                bias
            } else {
                &bias[(start + j) * m..(start + j + 1) * m]
            }
        };
        block_forward(
            layout,
            v,
            s,
            psi,
            (mu, gamma),
            x,
            z,
            slopes,
            pre,
            bias,
            output_bias,
            y,
        );
    };
    if jobs.len() < 2 {
        jobs.into_iter().for_each(run);
    } else {
        use rayon::prelude::*;
        jobs.into_par_iter().for_each(run);
    }
    (y, tape)
}

/// The rows of Q that belong to the hidden units, `m × n`.
fn q_rows<T: Real>(tape: &cayley::Tape<T>, wide: bool, extra: usize) -> MatRef<'_, T> {
    let j = tape.j.as_ref();
    if wide {
        j.transpose()
    } else {
        j.subrows(extra, j.nrows() - extra)
    }
}

#[allow(clippy::too_many_arguments)]
fn block_forward<'b, T: Real + 'b>(
    layout: &Layout,
    v: &[Mat<T>],
    s: &Mat<T>,
    psi: Option<&[T]>,
    (mu, gamma): (T, T),
    x: MatRef<'_, T>,
    z: &mut [T],
    slopes: &mut [T],
    pre: &mut [T],
    bias: impl Fn(usize) -> &'b [T],
    output_bias: &[T],
    y: &mut [T],
) {
    let (n, m, columns) = (layout.n, layout.hidden(), x.ncols());
    let (gain_in, gain_out) = gains(gamma);
    for (k, &width) in layout.units.iter().enumerate() {
        let offset = layout.offsets[k];
        let (mut above, mut here) =
            MatMut::from_column_major_slice_mut(&mut *z, m, columns).split_at_row_mut(offset);
        let mut zk = here.as_mut().subrows_mut(0, width);
        gemm(zk.as_mut(), Accum::Replace, s.subrows(offset, width), x, gain_in);
        if k > 0 {
            let before = layout.units[k - 1];
            let previous = above.as_mut().subrows_mut(offset - before, before);
            gemm(
                zk.as_mut(),
                Accum::Add,
                v[k - 1].as_ref(),
                previous.as_ref(),
                T::one(),
            );
        }
        for j in 0..columns {
            let range = j * m + offset..j * m + offset + width;
            let bias = &bias(j)[offset..offset + width];
            let z = &mut z[range.clone()];
            let slopes = &mut slopes[range.clone()];
            match (layout.activation, psi) {
                (Activation::Relu, _) => {
                    for i in 0..width {
                        let v = z[i] + bias[i];
                        let on = v > T::zero();
                        z[i] = if on { v } else { T::zero() };
                        slopes[i] = if on { T::one() } else { T::zero() };
                    }
                }
                (activation, None) => {
                    for i in 0..width {
                        let v = z[i] + bias[i];
                        z[i] = activation.value(v);
                        slopes[i] = activation.derivative(v);
                    }
                }
                (activation, Some(psi)) => {
                    let pre = &mut pre[range];
                    for i in 0..width {
                        let psi = psi[offset + i];
                        let v = z[i] + bias[i];
                        pre[i] = v;
                        z[i] = psi * activation.value(v / psi);
                        slopes[i] = activation.derivative(v / psi);
                    }
                }
            }
        }
    }
    for j in 0..columns {
        for i in 0..n {
            y[j * n + i] = mu * x[(i, j)] + output_bias[i];
        }
    }
    gemm(
        MatMut::from_column_major_slice_mut(y, n, columns),
        Accum::Add,
        s.transpose(),
        MatRef::from_column_major_slice(&*z, m, columns),
        gain_out,
    );
}

/// Gradients of `Σ dy · y`.
pub(crate) fn backward<T: Real>(layout: &Layout, tape: &Tape<T>, phi: &[T], dy: &[T]) -> Gradients<T> {
    let (n, m, rows) = (layout.n, layout.hidden(), tape.rows);
    let layers = layout.units.len();
    let (gain_in, gain_out) = gains(tape.gamma);
    let two = T::one() + T::one();

    // 1. Down the batch: δ = cotangent of the pre-activations, and dx.
    let mut delta = vec![T::zero(); m * rows];
    let mut dx = vec![T::zero(); n * rows];
    let widest = layout.units.iter().max().copied().unwrap_or(1);
    let block = block_rows(rows, rows * m * widest);
    let jobs: Vec<_> = delta
        .chunks_mut(m * block)
        .zip(dx.chunks_mut(n * block))
        .enumerate()
        .map(|(i, (delta, dx))| (i * block, delta, dx))
        .collect();
    let run = |(start, delta, dx): (usize, &mut [T], &mut [T])| {
        let columns = dx.len() / n;
        let mut d_psi = vec![T::zero(); if tape.psi.is_some() { m } else { 0 }];
        let dy = MatRef::from_column_major_slice(&dy[start * n..(start + columns) * n], n, columns);
        let slopes = &tape.slopes[start * m..(start + columns) * m];
        let s = tape.s.as_ref();
        gemm(
            MatMut::from_column_major_slice_mut(&mut *delta, m, columns),
            Accum::Replace,
            s,
            dy,
            gain_out,
        );
        for k in (0..layers).rev() {
            let (offset, width) = (layout.offsets[k], layout.units[k]);
            if k + 1 < layers {
                let after = layout.units[k + 1];
                let (mut here, below) = MatMut::from_column_major_slice_mut(&mut *delta, m, columns)
                    .split_at_row_mut(layout.offsets[k + 1]);
                let here = here.as_mut().subrows_mut(offset, width);
                let below = below.as_ref().subrows(0, after);
                gemm(here, Accum::Add, tape.v[k].transpose(), below, T::one());
            }
            for j in 0..columns {
                let range = j * m + offset..j * m + offset + width;
                let (delta, slopes) = (&mut delta[range.clone()], &slopes[range.clone()]);
                if tape.psi.is_some() {
                    // ∂(ψσ(v/ψ))/∂ln ψ = ẑ − vσ', with the cotangent of ẑ, before the slopes come in.
                    let shifted = start * m + range.start..start * m + range.end;
                    let (z, pre) = (&tape.z[shifted.clone()], &tape.pre[shifted]);
                    for i in 0..width {
                        d_psi[offset + i] += delta[i] * (z[i] - pre[i] * slopes[i]);
                    }
                }
                for (d, s) in delta.iter_mut().zip(slopes) {
                    *d *= *s;
                }
            }
        }
        for j in 0..columns {
            for i in 0..n {
                dx[j * n + i] = tape.mu * dy[(i, j)];
            }
        }
        gemm(
            MatMut::from_column_major_slice_mut(dx, n, columns),
            Accum::Add,
            s.transpose(),
            MatRef::from_column_major_slice(&*delta, m, columns),
            gain_in,
        );
        d_psi
    };
    let d_psi: Vec<Vec<T>> = if jobs.len() < 2 {
        jobs.into_iter().map(run).collect()
    } else {
        use rayon::prelude::*;
        jobs.into_par_iter().map(run).collect()
    };

    // 2. Over the layers: V̄_k = δ_k z_{k−1}ᵀ, and S̄_k from both of its uses.
    let d = MatRef::from_column_major_slice(&delta, m, rows);
    let z = MatRef::from_column_major_slice(&tape.z, m, rows);
    let x = MatRef::from_column_major_slice(&tape.x, n, rows);
    let dy_matrix = MatRef::from_column_major_slice(dy, n, rows);
    let weights = map(layers, 4 * rows * m * widest, |k| {
        let (offset, width) = (layout.offsets[k], layout.units[k]);
        let mut dv = Mat::<T>::zeros(width, layout.before(k));
        let dk = d.subrows(offset, width);
        if k > 0 {
            let before = layout.units[k - 1];
            let previous = z.subrows(offset - before, before);
            gemm(dv.as_mut(), Accum::Replace, dk, previous.transpose(), T::one());
        }
        let (mut p, mut r) = (Mat::<T>::zeros(width, n), Mat::<T>::zeros(width, n));
        gemm(p.as_mut(), Accum::Replace, dk, x.transpose(), T::one());
        let zk = z.subrows(offset, width);
        gemm(r.as_mut(), Accum::Replace, zk, dy_matrix.transpose(), T::one());
        let sk = tape.s.subrows(offset, width);
        let mut dot = [T::zero(); 2];
        let mut ds = Mat::<T>::zeros(width, n);
        for j in 0..n {
            for i in 0..width {
                dot[0] += p[(i, j)] * sk[(i, j)];
                dot[1] += r[(i, j)] * sk[(i, j)];
                ds[(i, j)] = gain_in * p[(i, j)] + gain_out * r[(i, j)];
            }
        }
        (dv, ds, dot)
    });

    // 3. The transforms. J̄₁ₖ hears of V_k's successor, J̄₂ₖ of V_k; both of S_k.
    let q = q_rows(&tape.q, tape.wide, layout.extra);
    let mut gradient = vec![T::zero(); layout.len];
    let jobs = map(layers + 1, layout.transform_flops(), |job| {
        if job == 0 {
            let j_rows = tape.q.j.nrows();
            let mut dq = Mat::<T>::zeros(m, n);
            for k in 0..layers {
                let (offset, width) = (layout.offsets[k], layout.units[k]);
                let ds = &weights[k].1;
                let j = &tape.hidden[k].j;
                let here = dq.as_mut().subrows_mut(offset, width);
                gemm(here, Accum::Add, j.subrows(0, width), ds.as_ref(), T::one());
                if k > 0 {
                    let before = layout.units[k - 1];
                    let above = dq.as_mut().subrows_mut(offset - before, before);
                    gemm(
                        above,
                        Accum::Add,
                        j.subrows(width, before),
                        ds.as_ref(),
                        -T::one(),
                    );
                }
            }
            let free = layout.fq(phi);
            let mut out = vec![T::zero(); layout.fq.len()];
            let full = MatMut::from_row_major_slice_mut(&mut out, free.nrows(), n);
            let gain = if tape.wide {
                cayley::backward(&tape.q, free.transpose(), dq.transpose(), full.transpose_mut())
            } else {
                let mut cotangent = Mat::<T>::zeros(j_rows, n);
                cotangent.as_mut().subrows_mut(layout.extra, m).copy_from(&dq);
                cayley::backward(&tape.q, free, cotangent.as_ref(), full)
            };
            return (out, gain);
        }
        let k = job - 1;
        let (offset, width, before) = (layout.offsets[k], layout.units[k], layout.before(k));
        let (dv, ds, _) = &weights[k];
        let mut cotangent = Mat::<T>::zeros(width + before, width);
        let (mut top, mut bottom) = cotangent.as_mut().split_at_row_mut(width);
        let qk = q.subrows(offset, width);
        gemm(top.as_mut(), Accum::Replace, qk, ds.transpose(), T::one());
        if k + 1 < layers {
            let after = layout.units[k + 1];
            let j2 = tape.hidden[k + 1].j.subrows(after, width);
            gemm(top.as_mut(), Accum::Add, j2, weights[k + 1].0.as_ref(), two);
        }
        if k > 0 {
            let above = q.subrows(offset - before, before);
            gemm(bottom.as_mut(), Accum::Replace, above, ds.transpose(), -T::one());
            let j1 = tape.hidden[k - 1].j.subrows(0, before);
            gemm(bottom.as_mut(), Accum::Add, j1, dv.transpose(), two);
        }
        let mut out = vec![T::zero(); layout.fab[k].len()];
        let full = MatMut::from_row_major_slice_mut(&mut out, width + before, width);
        let gain = cayley::backward(&tape.hidden[k], layout.fab(phi, k), cotangent.as_ref(), full);
        (out, gain)
    });
    for (job, (block, gain)) in jobs.into_iter().enumerate() {
        let (range, at) = match job {
            0 => (layout.fq.clone(), layout.gain_q),
            k => (layout.fab[k - 1].clone(), layout.gain_ab.start + k - 1),
        };
        gradient[range].copy_from_slice(&block);
        gradient[at] = gain;
    }

    // 4. Biases, ψ and bounds.
    let mut d_mu = T::zero();
    for j in 0..rows {
        for i in 0..n {
            gradient[layout.output_bias.start + i] += dy[j * n + i];
            d_mu += tape.x[j * n + i] * dy[j * n + i];
        }
    }
    if let Some(range) = &layout.log_psi {
        // Summed in the order of the blocks, whichever thread was first.
        for part in &d_psi {
            for (g, d) in gradient[range.clone()].iter_mut().zip(part) {
                *g += *d;
            }
        }
    }
    let mut dot = [T::zero(); 2];
    for (_, _, d) in &weights {
        dot[0] += d[0];
        dot[1] += d[1];
    }
    let d_gamma = dot[0] / gain_in + dot[1] / (two * gain_in);
    let bias = if tape.bias_rows == 1 {
        let mut sum = vec![T::zero(); m];
        for column in delta.chunks_exact(m) {
            for (s, d) in sum.iter_mut().zip(column) {
                *s += *d;
            }
        }
        sum
    } else {
        delta
    };
    Gradients {
        x: dx,
        phi: gradient,
        bounds: [d_mu, d_gamma],
        bias,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    /// A random layer: φ, hidden bias (one, or one per row), batch.
    fn random(layout: &Layout, rows: usize, bias_rows: usize, seed: u64) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let mut rng = Rng::new(seed);
        let mut phi = rng.normals(layout.len);
        for v in &mut phi {
            *v *= 0.5;
        }
        for k in layout.gain_ab.clone().chain([layout.gain_q]) {
            phi[k] = 1.0 + rng.uniform();
        }
        (
            phi,
            rng.normals(bias_rows * layout.hidden()),
            rng.normals(rows * layout.n),
        )
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn every_gradient_matches_central_differences() {
        // n, widths, activation, general form, bias per row: ragged, wide (fewer units than inputs), with learned ψ.
        let cases = [
            (3, vec![5, 4, 6], Activation::Relu, false, false),
            (3, vec![5, 4, 6], Activation::Tanh, true, true),
            (6, vec![2, 2], Activation::Softplus, false, false),
            (6, vec![2, 1], Activation::Elu, true, true),
            (1, vec![7], Activation::Sigmoid, false, true),
            (2, vec![30, 40], Activation::Arctan, true, false),
        ];
        for (case, (n, units, activation, general, per_row)) in cases.into_iter().enumerate() {
            let layout = Layout::new(n, &units, activation, general);
            let rows = 5;
            let (phi, bias, x) = random(&layout, rows, if per_row { rows } else { 1 }, case as u64);
            let (mu, gamma) = (0.3, 2.1);
            let w = Rng::new(99).normals(rows * n);
            let (y, tape) = forward(&layout, &x, &phi, mu, gamma, &bias);
            assert_eq!(y.len(), rows * n);
            let g = backward(&layout, &tape, &phi, &w);
            let value = |x: &[f64], phi: &[f64], mu: f64, gamma: f64, bias: &[f64]| {
                dot(&forward(&layout, x, phi, mu, gamma, bias).0, &w)
            };
            let h = 1e-6;
            // A random direction in each argument tests all of its entries at once.
            let mut rng = Rng::new(7 + case as u64);
            let along = |v: &[f64], d: &[f64], s: f64| -> Vec<f64> {
                v.iter().zip(d).map(|(v, d)| v + s * d).collect()
            };
            for (what, exact, difference) in [
                {
                    let d = rng.normals(x.len());
                    let f = |s| value(&along(&x, &d, s), &phi, mu, gamma, &bias);
                    ("x", dot(&g.x, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let d = rng.normals(phi.len());
                    let f = |s| value(&x, &along(&phi, &d, s), mu, gamma, &bias);
                    ("phi", dot(&g.phi, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let d = rng.normals(bias.len());
                    let f = |s| value(&x, &phi, mu, gamma, &along(&bias, &d, s));
                    ("bias", dot(&g.bias, &d), (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let f = |s| value(&x, &phi, mu + s, gamma, &bias);
                    ("mu", g.bounds[0], (f(h) - f(-h)) / (2.0 * h))
                },
                {
                    let f = |s| value(&x, &phi, mu, gamma + s, &bias);
                    ("gamma", g.bounds[1], (f(h) - f(-h)) / (2.0 * h))
                },
            ] {
                let error = (exact - difference).abs() / (1.0 + difference.abs());
                assert!(error < 1e-7, "case {case} {what}: {exact} against {difference}");
            }
        }
    }

    #[test]
    fn large_batches_on_threads_agree_with_single_rows() {
        let layout = Layout::new(4, &[48, 64, 48], Activation::Relu, false);
        let rows = 300;
        let (phi, bias, x) = random(&layout, rows, 1, 3);
        let (y, tape) = forward(&layout, &x, &phi, 0.5, 1.5, &bias);
        let w = Rng::new(4).normals(rows * 4);
        let g = backward(&layout, &tape, &phi, &w);
        let mut sum = vec![0.0; layout.len];
        for r in 0..rows {
            let (single, tape) = forward(&layout, &x[r * 4..(r + 1) * 4], &phi, 0.5, 1.5, &bias);
            for i in 0..4 {
                assert!((single[i] - y[r * 4 + i]).abs() < 1e-12);
            }
            let part = backward(&layout, &tape, &phi, &w[r * 4..(r + 1) * 4]);
            sum.iter_mut().zip(&part.phi).for_each(|(s, p)| *s += p);
        }
        let scale = sum.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        for (a, b) in sum.iter().zip(&g.phi) {
            assert!((a - b).abs() < 1e-12 * scale);
        }
    }
}
