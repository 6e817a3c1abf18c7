//! Forward, tangent and cotangent passes over the columns of a block (one column is one row of the batch).
//!
//! Everything runs on the caller's thread: callers hand out blocks of columns to threads, which keeps the hidden
//! state of a block in cache and needs no synchronisation inside a layer.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use super::MonLip;
use crate::bias::Bias;
use crate::real::Real;

/// Reusable hidden-state buffers; they grow to the largest block seen and are then never reallocated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers<T> {
    current: Vec<T>,
    previous: Vec<T>,
}

impl<T: Real> Buffers<T> {
    fn ensure(&mut self, len: usize) {
        if self.current.len() < len {
            self.current.resize(len, T::zero());
            self.previous.resize(len, T::zero());
        }
    }
}

/// Where a forward pass leaves what later passes need.
#[derive(Default)]
pub(crate) struct Record<'a, T> {
    /// `m × c`: slopes σ̂' at every hidden unit.
    pub(crate) slopes: Option<MatMut<'a, T>>,
    /// Per column: `‖ẑ‖²` over all hidden layers.
    pub(crate) hidden_norm2: Option<&'a mut [f64]>,
}

impl<T: Real> MonLip<T> {
    fn widest(&self) -> usize {
        self.weights.units.iter().copied().max().unwrap_or(0)
    }

    /// `y ← F(x)` for the columns of `x`.
    pub(crate) fn forward_cols(
        &self,
        x: MatRef<'_, T>,
        mut y: MatMut<'_, T>,
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        mut record: Record<'_, T>,
    ) {
        let w = &*self.weights;
        let columns = x.ncols();
        let mu = T::round_from(w.design.mu());
        let (gain_in, gain_out) = self.gains();
        let (gain_in, gain_out) = (T::round_from(gain_in), T::round_from(gain_out));
        buffers.ensure(self.widest() * columns);
        if let Some(norms) = record.hidden_norm2.as_deref_mut() {
            norms.fill(0.0);
        }
        for j in 0..columns {
            for i in 0..w.n {
                y[(i, j)] = mu * x[(i, j)] + w.output_bias[i];
            }
        }
        for (k, &m) in w.units.iter().enumerate() {
            let s = w.s.as_ref().subrows(w.offsets[k], m);
            let Buffers { current, previous } = buffers;
            let mut z = MatMut::from_column_major_slice_mut(&mut current[..m * columns], m, columns);
            matmul(z.as_mut(), Accum::Replace, s, x, gain_in, Par::Seq);
            if k > 0 {
                let before = w.units[k - 1];
                let z_before =
                    MatRef::from_column_major_slice(&previous[..before * columns], before, columns);
                matmul(
                    z.as_mut(),
                    Accum::Add,
                    w.v[k - 1].as_ref(),
                    z_before,
                    T::one(),
                    Par::Seq,
                );
            }
            let range = w.offsets[k]..w.offsets[k] + m;
            let psi = w.psi.as_ref().map(|psi| &psi[range.clone()]);
            for (j, z) in current[..m * columns].chunks_exact_mut(m).enumerate() {
                let slopes = record.slopes.as_mut().and_then(|all| {
                    all.as_mut()
                        .col_mut(j)
                        .try_as_col_major_mut()
                        .map(|column| &mut column.as_slice_mut()[range.clone()])
                });
                w.activation
                    .apply_column(z, &bias.column(j)[range.clone()], psi, slopes);
                if let Some(norms) = record.hidden_norm2.as_deref_mut() {
                    norms[j] += z.iter().map(|z| z.as_f64() * z.as_f64()).sum::<f64>();
                }
            }
            let z = MatRef::from_column_major_slice(&current[..m * columns], m, columns);
            matmul(y.as_mut(), Accum::Add, s.transpose(), z, gain_out, Par::Seq);
            std::mem::swap(current, previous);
        }
    }

    /// `dy ← J dx`, `directions` tangent columns for every column of `slopes`.
    pub(crate) fn jvp_cols(
        &self,
        slopes: MatRef<'_, T>,
        dx: MatRef<'_, T>,
        mut dy: MatMut<'_, T>,
        directions: usize,
        buffers: &mut Buffers<T>,
    ) {
        let w = &*self.weights;
        let columns = dx.ncols();
        let mu = T::round_from(w.design.mu());
        let (gain_in, gain_out) = self.gains();
        let (gain_in, gain_out) = (T::round_from(gain_in), T::round_from(gain_out));
        buffers.ensure(self.widest() * columns);
        for j in 0..columns {
            for i in 0..w.n {
                dy[(i, j)] = mu * dx[(i, j)];
            }
        }
        for (k, &m) in w.units.iter().enumerate() {
            let s = w.s.as_ref().subrows(w.offsets[k], m);
            let Buffers { current, previous } = buffers;
            let mut dz = MatMut::from_column_major_slice_mut(&mut current[..m * columns], m, columns);
            matmul(dz.as_mut(), Accum::Replace, s, dx, gain_in, Par::Seq);
            if k > 0 {
                let before = w.units[k - 1];
                let dz_before =
                    MatRef::from_column_major_slice(&previous[..before * columns], before, columns);
                matmul(
                    dz.as_mut(),
                    Accum::Add,
                    w.v[k - 1].as_ref(),
                    dz_before,
                    T::one(),
                    Par::Seq,
                );
            }
            scale_by_slopes(&mut current[..m * columns], m, slopes, w.offsets[k], directions);
            let dz = MatRef::from_column_major_slice(&current[..m * columns], m, columns);
            matmul(dy.as_mut(), Accum::Add, s.transpose(), dz, gain_out, Par::Seq);
            std::mem::swap(current, previous);
        }
    }

    /// `out ← Jᵀ w`, `directions` cotangent columns for every column of `slopes`.
    pub(crate) fn vjp_cols(
        &self,
        slopes: MatRef<'_, T>,
        cotangent: MatRef<'_, T>,
        mut out: MatMut<'_, T>,
        directions: usize,
        buffers: &mut Buffers<T>,
    ) {
        let w = &*self.weights;
        let columns = cotangent.ncols();
        let mu = T::round_from(w.design.mu());
        let (gain_in, gain_out) = self.gains();
        let (gain_in, gain_out) = (T::round_from(gain_in), T::round_from(gain_out));
        buffers.ensure(self.widest() * columns);
        for j in 0..columns {
            for i in 0..w.n {
                out[(i, j)] = mu * cotangent[(i, j)];
            }
        }
        for (k, &m) in w.units.iter().enumerate().rev() {
            let s = w.s.as_ref().subrows(w.offsets[k], m);
            let Buffers { current, previous } = buffers;
            let mut g = MatMut::from_column_major_slice_mut(&mut current[..m * columns], m, columns);
            matmul(g.as_mut(), Accum::Replace, s, cotangent, gain_out, Par::Seq);
            if k + 1 < w.units.len() {
                let after = w.units[k + 1];
                let delta = MatRef::from_column_major_slice(&previous[..after * columns], after, columns);
                matmul(
                    g.as_mut(),
                    Accum::Add,
                    w.v[k].as_ref().transpose(),
                    delta,
                    T::one(),
                    Par::Seq,
                );
            }
            scale_by_slopes(&mut current[..m * columns], m, slopes, w.offsets[k], directions);
            let delta = MatRef::from_column_major_slice(&current[..m * columns], m, columns);
            matmul(out.as_mut(), Accum::Add, s.transpose(), delta, gain_in, Par::Seq);
            std::mem::swap(current, previous);
        }
    }
}

fn scale_by_slopes<T: Real>(
    block: &mut [T],
    m: usize,
    slopes: MatRef<'_, T>,
    offset: usize,
    directions: usize,
) {
    pulp::Arch::new().dispatch(|| {
        for (j, column) in block.chunks_exact_mut(m).enumerate() {
            let slopes = slopes.col(j / directions).subrows(offset, m);
            if let Some(slopes) = slopes.try_as_col_major() {
                for (z, d) in column.iter_mut().zip(slopes.as_slice()) {
                    *z *= *d;
                }
            } else {
                for (i, z) in column.iter_mut().enumerate() {
                    *z *= slopes[i];
                }
            }
        }
    });
}
