//! Backward, in the opposite order: the batch, the weights, the transforms.

use bilip::Real;
use bilip::faer::{Accum, Mat, MatMut, MatRef};

use super::{Gradients, Tape, block_rows, gains, q_rows};
use crate::backend::cpu::cayley;
use crate::backend::cpu::product::{gemm, map};
use crate::spec::Layout;

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
                    // ∂(ψσ(v/ψ))/∂ln ψ = ẑ − vσ', with the cotangent of ẑ, before the slopes come
                    // in.
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
