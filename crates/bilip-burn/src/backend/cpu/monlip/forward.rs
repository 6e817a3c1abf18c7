//! Forward: transforms, weights, then the batch in blocks.

use bilip::faer::{Accum, Mat, MatMut, MatRef};
use bilip::{Activation, Real};

use super::{Tape, block_rows, gains, q_rows};
use crate::backend::cpu::cayley;
use crate::backend::cpu::product::{gemm, map};
use crate::spec::Layout;

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
