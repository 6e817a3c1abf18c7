//! Forward, tangent and cotangent passes over the columns of a block (one column is one row of the
//! batch).
//!
//! Everything runs on the caller's thread: callers hand out blocks of columns to threads, which
//! keeps the hidden state of a block in cache and needs no synchronization inside a layer.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use super::MonLip;
use crate::base::matrix::to_f64;
use crate::base::real::Real;
use crate::certify::{LayerCertificate, certify_monlip};
use crate::layers::bias::Bias;
use crate::layers::layer::{Buffers, Direction, Layer};

impl<T: Real> MonLip<T> {
    fn widest(&self) -> usize {
        self.weights.units.iter().copied().max().unwrap_or(0)
    }

    /// `y ← F(x)` for the columns of `x`.
    fn forward_pass(
        &self,
        x: MatRef<'_, T>,
        mut y: MatMut<'_, T>,
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        mut record: Option<MatMut<'_, T>>,
    ) {
        let w = &*self.weights;
        let columns = x.ncols();
        let mu = T::round_from(w.design.mu());
        let (gain_in, gain_out) = self.gains();
        let (gain_in, gain_out) = (T::round_from(gain_in), T::round_from(gain_out));
        buffers.ensure(self.widest() * columns);
        buffers.hidden_norm2.clear();
        buffers.hidden_norm2.resize(columns, 0.0);
        for j in 0..columns {
            for i in 0..w.n {
                y[(i, j)] = mu * x[(i, j)] + w.output_bias[i];
            }
        }
        for (k, &m) in w.units.iter().enumerate() {
            let s = w.s.as_ref().subrows(w.offsets[k], m);
            let Buffers {
                current,
                previous,
                hidden_norm2,
            } = buffers;
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
                let slopes = record.as_mut().and_then(|all| {
                    all.as_mut()
                        .col_mut(j)
                        .try_as_col_major_mut()
                        .map(|column| &mut column.as_slice_mut()[range.clone()])
                });
                w.activation
                    .apply_column(z, &bias.column(j)[range.clone()], psi, slopes);
                hidden_norm2[j] += z.iter().map(|z| z.as_f64() * z.as_f64()).sum::<f64>();
            }
            let z = MatRef::from_column_major_slice(&current[..m * columns], m, columns);
            matmul(y.as_mut(), Accum::Add, s.transpose(), z, gain_out, Par::Seq);
            std::mem::swap(current, previous);
        }
    }

    /// `dy ← J dx`, `directions` tangent columns for every column of `slopes`.
    fn tangent(
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
            let Buffers {
                current, previous, ..
            } = buffers;
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
    fn cotangent(
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
            let Buffers {
                current, previous, ..
            } = buffers;
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

impl<T: Real> Layer<T> for MonLip<T> {
    fn size(&self) -> usize {
        self.weights.n
    }

    fn slopes(&self) -> usize {
        self.hidden()
    }

    fn own_bias(&self) -> &[T] {
        self.hidden_bias()
    }

    fn proof(&self) -> &LayerCertificate {
        self.layer_certificate()
    }

    fn prove_again(&self) -> LayerCertificate {
        let w = &self.weights;
        let v: Vec<_> = w.v.iter().map(|v| to_f64(v.as_ref())).collect();
        certify_monlip(&v, to_f64(w.s.as_ref()).as_ref(), w.design)
    }

    fn prepare(&self) {
        self.layer_certificate();
        self.norms();
    }

    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        slopes: Option<MatMut<'_, T>>,
    ) {
        let n = self.weights.n;
        let columns = x.len() / n;
        let x = MatRef::from_column_major_slice(x, n, columns);
        let y = MatMut::from_column_major_slice_mut(y, n, columns);
        self.forward_pass(x, y, bias, buffers, slopes);
    }

    fn linear_cols(
        &self,
        slopes: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        directions: usize,
        direction: Direction,
        buffers: &mut Buffers<T>,
    ) {
        let n = self.weights.n;
        let columns = w.len() / n;
        let w = MatRef::from_column_major_slice(w, n, columns);
        let out = MatMut::from_column_major_slice_mut(out, n, columns);
        match direction {
            Direction::Forward => self.tangent(slopes, w, out, directions, buffers),
            Direction::Reverse => self.cotangent(slopes, w, out, directions, buffers),
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
