//! Forward, tangent and cotangent passes over images.

use faer::{MatMut, MatRef};

use super::fourier::Spectrum;
use super::{BLOCK_ROWS, ConvMonLip};
use crate::base::real::Real;
use crate::certify::{LayerCertificate, certify_blocks};
use crate::layers::bias::Bias;
use crate::layers::layer::{Buffers, Direction, Layer};

impl<T: Real> ConvMonLip<T> {
    fn psi(&self, unit: usize) -> T {
        self.explicit.psi.as_ref().map_or(T::one(), |psi| psi[unit])
    }

    /// `y ← F(x)`.
    fn forward_pass(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        mut slopes: Option<MatMut<'_, T>>,
    ) {
        let e = &self.explicit;
        let pixels = self.pixels();
        let gamma = e.bounds.gap();
        let (gain_in, gain_out) = (
            T::round_from((2.0 * gamma).sqrt()),
            T::round_from((0.5 * gamma).sqrt()),
        );
        let mut inputs = self.s_times(&self.fourier.forward(x, self.channels()), gain_in);
        let mut out = Spectrum::zeros(e.frequencies.len(), self.channels(), inputs.rows);
        let mut before: Option<Spectrum<T>> = None;
        buffers.hidden_norm2.clear();
        buffers.hidden_norm2.resize(inputs.rows, 0.0);
        let mut first = 0;
        for k in 0..e.units.len() {
            let units = self.units_of(k);
            if let Some(z) = &before {
                self.add_v(&mut inputs, units.clone(), k, false, z);
            }
            let mut v = self.images(&inputs, units.clone());
            for (n, plane) in v.chunks_exact_mut(pixels).enumerate() {
                let (row, channel) = (n / units.len(), n % units.len());
                let unit = units.start + channel;
                let (bias, psi) = (bias.column(row)[unit], self.psi(unit));
                let at = first + channel * pixels;
                let mut squares = 0.0;
                for (p, value) in plane.iter_mut().enumerate() {
                    let scaled = (*value + bias) / psi;
                    if let Some(slopes) = &mut slopes {
                        slopes[(at + p, row)] = e.activation.derivative(scaled);
                    }
                    *value = psi * e.activation.value(scaled);
                    squares += value.as_f64() * value.as_f64();
                }
                buffers.hidden_norm2[row] += squares;
            }
            first += units.len() * pixels;
            let z = self.fourier.forward(&v, units.len());
            self.add_s_adjoint(&mut out, k, gain_out, &z);
            before = Some(z);
        }
        y.copy_from_slice(&self.fourier.inverse(&out));
        let skip = T::round_from(e.bounds.mu());
        for (n, (y, x)) in y.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels)).enumerate() {
            let bias = e.output_bias[n % self.channels()];
            y.iter_mut().zip(x).for_each(|(y, x)| *y = *y + skip * *x + bias);
        }
    }

    /// `out ← J w` or `Jᵀ w`.
    fn linear(&self, slopes: MatRef<'_, T>, w: &[T], out: &mut [T], directions: usize, forward: bool) {
        let e = &self.explicit;
        let pixels = self.pixels();
        // √(2γ)·√(γ/2) = γ.
        let gamma = T::round_from(e.bounds.gap());
        let mut inputs = self.s_times(&self.fourier.forward(w, self.channels()), T::one());
        let mut sum = Spectrum::zeros(e.frequencies.len(), self.channels(), inputs.rows);
        let mut last: Option<Spectrum<T>> = None;
        let layers = e.units.len();
        for step in 0..layers {
            let k = if forward { step } else { layers - 1 - step };
            let units = self.units_of(k);
            if let Some(z) = &last {
                let (v, adjoint) = if forward { (k, false) } else { (k + 1, true) };
                self.add_v(&mut inputs, units.clone(), v, adjoint, z);
            }
            let mut values = self.images(&inputs, units.clone());
            let first = units.start * pixels;
            let width = units.len() * pixels;
            for (row, values) in values.chunks_exact_mut(width).enumerate() {
                let slopes = slopes.col(row / directions).subrows(first, width);
                values.iter_mut().zip(slopes.iter()).for_each(|(v, s)| *v *= *s);
            }
            let z = self.fourier.forward(&values, units.len());
            self.add_s_adjoint(&mut sum, k, gamma, &z);
            last = Some(z);
        }
        out.copy_from_slice(&self.fourier.inverse(&sum));
        let skip = T::round_from(e.bounds.mu());
        out.iter_mut().zip(w).for_each(|(y, x)| *y += skip * *x);
    }
}

impl<T: Real> Layer<T> for ConvMonLip<T> {
    fn size(&self) -> usize {
        self.channels() * self.pixels()
    }

    fn slopes(&self) -> usize {
        self.widths.iter().sum()
    }

    fn own_bias(&self) -> &[T] {
        &self.explicit.hidden_bias
    }

    fn proof(&self) -> &LayerCertificate {
        self.layer_certificate()
    }

    fn prove_again(&self) -> LayerCertificate {
        let e = &self.explicit;
        let block = |f: usize| e.frequencies[f].to_f64().embedded(&e.units);
        certify_blocks(e.frequencies.len(), block, e.bounds)
    }

    fn prepare(&self) {
        self.layer_certificate();
        self.norms();
    }

    fn block_rows(&self) -> usize {
        BLOCK_ROWS
    }

    fn forward_cols(
        &self,
        x: &[T],
        y: &mut [T],
        bias: Bias<'_, T>,
        buffers: &mut Buffers<T>,
        slopes: Option<MatMut<'_, T>>,
    ) {
        self.forward_pass(x, y, bias, buffers, slopes);
    }

    fn linear_cols(
        &self,
        slopes: MatRef<'_, T>,
        w: &[T],
        out: &mut [T],
        directions: usize,
        direction: Direction,
        _: &mut Buffers<T>,
    ) {
        self.linear(slopes, w, out, directions, direction == Direction::Forward);
    }
}
