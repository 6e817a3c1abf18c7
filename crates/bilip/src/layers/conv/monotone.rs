//! The layer on images as solvers see it: every product goes through the Fourier transform.

use std::borrow::Cow;

use faer::linalg::solvers::Solve;
use faer::{Mat, MatMut, MatRef};

use super::fourier::{Complex, Spectrum};
use super::{ConvMonLip, Frequency};
use crate::base::bounds::Bounds;
use crate::base::parallel;
use crate::certify::{self, Norms};
use crate::layers::activation::Activation;
use crate::layers::monotone::{Monotone, Resolvent};

impl ConvMonLip<f64> {
    /// The spectrum of the images in the columns of a matrix.
    fn spectrum(&self, columns: MatRef<'_, f64>) -> Spectrum<f64> {
        let mut images = Vec::with_capacity(columns.nrows() * columns.ncols());
        for j in 0..columns.ncols() {
            images.extend(columns.col(j).iter());
        }
        self.fourier.forward(&images, columns.nrows() / self.pixels())
    }

    /// Adds the images of a spectrum to the columns of a matrix.
    fn add_images(&self, spectrum: &Spectrum<f64>, mut to: MatMut<'_, f64>) {
        let images = self.fourier.inverse(spectrum);
        for (j, image) in images.chunks_exact(to.nrows()).enumerate() {
            for (to, value) in to.as_mut().col_mut(j).iter_mut().zip(image) {
                *to += value;
            }
        }
    }
}

impl Monotone for ConvMonLip<f64> {
    fn formula(&self) -> Bounds {
        self.explicit.bounds
    }

    fn sigma(&self) -> Activation {
        self.explicit.activation
    }

    fn widths(&self) -> &[usize] {
        &self.widths
    }

    fn per_hidden_number<'a>(&self, values: &'a [f64]) -> Cow<'a, [f64]> {
        let pixels = self.pixels();
        Cow::Owned(
            values
                .iter()
                .flat_map(|v| std::iter::repeat_n(*v, pixels))
                .collect(),
        )
    }

    fn scalings(&self) -> Option<Cow<'_, [f64]>> {
        (self.explicit.psi.as_deref()).map(|psi| self.per_hidden_number(psi))
    }

    fn output_shift(&self) -> Cow<'_, [f64]> {
        // Channels of the output are repeated like hidden ones.
        self.per_hidden_number(&self.explicit.output_bias)
    }

    fn weight_norms(&self) -> &Norms {
        self.norms()
    }

    fn strong_convexity(&self) -> f64 {
        let e = &self.explicit;
        let units: Vec<usize> = e.units.iter().map(|m| 2 * m).collect();
        parallel::map(e.frequencies.len(), |f| {
            let (v, _) = e.frequencies[f].embedded(&e.units);
            certify::strong_monotonicity(&v, &units)
        })
        .into_iter()
        .fold(f64::INFINITY, f64::min)
    }

    fn add_s(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        self.add_images(&self.s_times(&self.spectrum(x), factor), to);
    }

    fn add_s_transposed(&self, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        let mut out = Spectrum::zeros(self.explicit.frequencies.len(), self.channels(), z.ncols());
        let mut at = 0;
        for (k, &width) in self.widths.iter().enumerate() {
            self.add_s_adjoint(&mut out, k, factor, &self.spectrum(z.subrows(at, width)));
            at += width;
        }
        self.add_images(&out, to);
    }

    fn add_v(&self, k: usize, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        let units = self.explicit.units[k + 1];
        let mut out = Spectrum::zeros(self.explicit.frequencies.len(), units, z.ncols());
        ConvMonLip::add_v(self, &mut out, 0..units, k + 1, false, &self.spectrum(z));
        out.scale(factor);
        self.add_images(&out, to);
    }

    fn resolvent(&self, alpha: f64) -> Box<dyn Resolvent + '_> {
        Box::new(ConvResolvent::new(self, alpha))
    }

    /// In between what suits the directions that S sees most and those that it does not.
    fn splitting_step(&self) -> f64 {
        let bounds = self.explicit.bounds;
        (bounds.mu() / bounds.gap()).powf(0.75)
    }
}

/// `W = K⁻¹S` with `K = (1 + α)I − αV`, and `(I + α(γ/μ)SᴴW)⁻¹`, at every frequency.
struct ConvResolvent<'a> {
    layer: &'a ConvMonLip<f64>,
    solved: Vec<Complex<f64>>,
    core: Vec<Complex<f64>>,
}

impl<'a> ConvResolvent<'a> {
    fn new(layer: &'a ConvMonLip<f64>, alpha: f64) -> Self {
        let e = &layer.explicit;
        let ratio = e.bounds.gap() / e.bounds.mu();
        let parts = parallel::map(e.frequencies.len(), |f| {
            let Frequency { v, s } = &e.frequencies[f];
            let (m, c) = s.re.shape();
            let mut solved: Complex<f64> = Complex::zeros(m, c);
            for k in 0..e.units.len() {
                let units = layer.units_of(k);
                let mut own = s.rows(units.start, units.len());
                if k > 0 {
                    let before = layer.units_of(k - 1);
                    let from = v[k - 1].times(&solved.rows(before.start, before.len()));
                    own.re += alpha * &from.re;
                    own.im += alpha * &from.im;
                }
                for (to, own) in [(&mut solved.re, own.re), (&mut solved.im, own.im)] {
                    to.as_mut()
                        .subrows_mut(units.start, units.len())
                        .copy_from(&own * (1.0 / (1.0 + alpha)));
                }
            }
            let mut system = s.adjoint().times(&solved).embedded() * (alpha * ratio);
            (0..2 * c).for_each(|i| system[(i, i)] += 1.0);
            let core = system.partial_piv_lu().solve(Mat::<f64>::identity(2 * c, 2 * c));
            (solved, Complex::from_embedded(core.as_ref()))
        });
        let (solved, core) = parts.into_iter().unzip();
        ConvResolvent { layer, solved, core }
    }
}

impl Resolvent for ConvResolvent<'_> {
    fn solve(&self, t: MatRef<'_, f64>, mut x: MatMut<'_, f64>) {
        let channels = self.layer.channels();
        let mut out = Spectrum::zeros(self.core.len(), channels, t.ncols());
        let core = |f: usize| (self.core[f].parts(), false);
        out.add_product(0..channels, 1.0, core, &self.layer.spectrum(t), 0..channels);
        x.fill(0.0);
        self.layer.add_images(&out, x);
    }

    fn add_w(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        let (channels, hidden) = (self.layer.channels(), self.layer.explicit.hidden_bias.len());
        let mut out = Spectrum::zeros(self.solved.len(), hidden, x.ncols());
        let solved = |f: usize| (self.solved[f].parts(), false);
        out.add_product(0..hidden, factor, solved, &self.layer.spectrum(x), 0..channels);
        self.layer.add_images(&out, to);
    }
}
