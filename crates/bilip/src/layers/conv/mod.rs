//! The monotone and Lipschitz layer on images: its linear maps are circular convolutions.
//!
//! Circular convolutions of `c` channels are, at each frequency of the Fourier transform, complex
//! matrices of size c; the transform is unitary up to a factor. So the layer is that of
//! [`MonLip`](crate::MonLip) with `V` and `S` block-diagonal over the frequencies,
//! ```text
//! ẑ_k = σ̂(V_k ∗ ẑ_{k−1} + √(2γ) S_k ∗ x + b̂_k),   y = μx + √(γ/2) Σ S_kᴴ ∗ ẑ_k + b_y,
//! ```
//! and its condition `I − (V+Vᴴ)/2 − SSᴴ ⪰ 0` holds if and only if it holds at every frequency.
//! Kernels of free parameters are small; those of V and S are as large as the image, and stored by
//! frequency. At −f everything is conjugate to f, so half of the frequencies are enough.

mod accurate;
pub(crate) mod fourier;
mod free;
mod monotone;
mod passes;

use std::ops::Range;
use std::sync::Arc;

use faer::Mat;

pub use free::{ConvFree, Kernels, RandomConvLayer};

use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::to_f64;
use crate::base::parallel::{self, Late};
use crate::base::real::Real;
use crate::base::rounding::MAX_UNITS;
use crate::certify::{LayerCertificate, Norms};
use crate::layers::activation::Activation;
use crate::layers::layer::Layer;
use crate::layers::monlip::check_psi;
use fourier::{Complex, Fourier, Spectrum};

/// Refuses images that are too large: sums over them are bounded for at most [`MAX_UNITS`] terms,
/// and a small file must not ask for much work.
pub(crate) fn check_numbers(channels: usize, image: usize) -> Result<()> {
    let numbers = (image.checked_mul(image)).and_then(|pixels| pixels.checked_mul(channels));
    match numbers.is_some_and(|n| n <= MAX_UNITS) {
        true => Ok(()),
        false => Err(Error::shape(
            "images",
            format!("at most {MAX_UNITS} numbers, hidden ones included"),
            format!("{channels} channels of side {image}"),
        )),
    }
}

/// Rows of a batch that are transformed together.
pub(super) const BLOCK_ROWS: usize = 16;

/// The weights at a frequency.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frequency<T> {
    /// `V_2 … V_L`.
    pub(crate) v: Vec<Complex<T>>,
    /// `S`, all hidden channels × input channels.
    pub(crate) s: Complex<T>,
}

impl<T: Real> Frequency<T> {
    /// As the weights of a real layer of twice the width, hidden layer by hidden layer.
    fn embedded(&self, units: &[usize]) -> (Vec<Mat<T>>, Mat<T>) {
        let v = self.v.iter().map(Complex::embedded).collect();
        let columns = 2 * self.s.re.ncols();
        let mut s = Mat::zeros(2 * self.s.re.nrows(), columns);
        let mut at = 0;
        for &m in units {
            let part = self.s.rows(at, m).embedded();
            s.as_mut().subrows_mut(2 * at, 2 * m).copy_from(&part);
            at += m;
        }
        (v, s)
    }

    fn from_embedded(v: &[Mat<T>], s: &Mat<T>, units: &[usize]) -> Self {
        let mut whole = Complex::zeros(s.nrows() / 2, s.ncols() / 2);
        let mut at = 0;
        for &m in units {
            let part = Complex::from_embedded(s.subrows(2 * at, 2 * m));
            whole.re.as_mut().subrows_mut(at, m).copy_from(&part.re);
            whole.im.as_mut().subrows_mut(at, m).copy_from(&part.im);
            at += m;
        }
        Frequency {
            v: v.iter().map(|v| Complex::from_embedded(v.as_ref())).collect(),
            s: whole,
        }
    }

    fn to_f64(&self) -> Frequency<f64> {
        let wide = |m: &Complex<T>| Complex {
            re: to_f64(m.re.as_ref()),
            im: to_f64(m.im.as_ref()),
        };
        Frequency {
            v: self.v.iter().map(wide).collect(),
            s: wide(&self.s),
        }
    }
}

/// Everything that a [`ConvMonLip`] is made of.
#[derive(Clone, Debug)]
pub(crate) struct ConvExplicit<T> {
    pub(crate) bounds: Bounds,
    pub(crate) activation: Activation,
    pub(crate) image: usize,
    pub(crate) units: Vec<usize>,
    pub(crate) frequencies: Vec<Frequency<T>>,
    /// ψ of every hidden channel.
    pub(crate) psi: Option<Vec<T>>,
    pub(crate) hidden_bias: Vec<T>,
    pub(crate) output_bias: Vec<T>,
}

/// A μ-strongly monotone, ν-Lipschitz layer on images `[channels, size, size]`, by circular
/// convolutions.
///
/// Built from free kernels by [`ConvMonLip::from_free`], which rounds the weights so that the
/// bounds hold *exactly* for the numbers stored.
///
/// ```
/// use bilip::{BiLipschitz, Bounds, ConvFree, ConvMonLip, InverseOptions, RandomConvLayer, Rng};
///
/// // Images of 3 channels, 8 × 8; two hidden layers of 4 channels, kernels of 3 × 3.
/// let (bounds, mut rng) = (Bounds::new(0.2, 4.0)?, Rng::new(1));
/// let free = ConvFree::random(&RandomConvLayer::new(3, 8, &[4, 4], bounds).with_bias(0.1), &mut rng)?;
/// let layer = ConvMonLip::<f32>::from_free(&free)?;
/// assert!(layer.verify().holds());
///
/// // There and back: two images, one after the other.
/// let images = rng.normals(2 * layer.dim());
/// let (y, _) = layer.forward_with_error(&images)?;
/// let inverse = layer.inverse(&y, &InverseOptions::default())?;
/// assert!(inverse.converged() && inverse.max_error_bound() <= 1e-8);
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConvMonLip<T> {
    pub(crate) explicit: Arc<ConvExplicit<T>>,
    fourier: Arc<Fourier<T>>,
    /// Numbers of each hidden layer: channels times pixels.
    widths: Vec<usize>,
    certificate: Late<LayerCertificate>,
    norms: Late<Norms>,
}

impl<T: Real> ConvMonLip<T> {
    fn assemble(explicit: ConvExplicit<T>, certificate: Late<LayerCertificate>) -> Result<Self> {
        if explicit.bounds.gap() <= 0.0 {
            return Err(Error::setting(
                "nu",
                explicit.bounds.nu(),
                format!(
                    "must be larger than mu = {} in a monotone layer",
                    explicit.bounds.mu()
                ),
            ));
        }
        check_finite("hidden bias", &explicit.hidden_bias)?;
        check_finite("output bias", &explicit.output_bias)?;
        if let Some(psi) = &explicit.psi {
            check_psi(psi)?;
        }
        check_numbers(
            explicit.hidden_bias.len() + explicit.output_bias.len(),
            explicit.image,
        )?;
        let pixels = explicit.image * explicit.image;
        Ok(ConvMonLip {
            fourier: Arc::new(Fourier::new(explicit.image)),
            widths: explicit.units.iter().map(|m| m * pixels).collect(),
            explicit: Arc::new(explicit),
            certificate,
            norms: Late::empty(),
        })
    }

    /// A layer from stored weights, of which nothing is proved yet: that happens when its bounds
    /// are first asked for.
    ///
    /// # Errors
    /// As for free parameters, and where the weights at a real frequency are not real.
    pub(crate) fn unproved(explicit: ConvExplicit<T>) -> Result<Self> {
        let layer = Self::assemble(explicit, Late::empty())?;
        for (f, weights) in layer.explicit.frequencies.iter().enumerate() {
            let zero = |m: &Complex<T>| m.im.col_iter().all(|c| c.iter().all(|v| *v == T::zero()));
            if layer.fourier.is_real(f) && !(zero(&weights.s) && weights.v.iter().all(zero)) {
                return Err(Error::file(format!(
                    "weights at frequency {f} of a layer on images have to be real"
                )));
            }
        }
        Ok(layer)
    }

    /// Number of input and output channels.
    pub fn channels(&self) -> usize {
        self.explicit.output_bias.len()
    }

    /// The side of the images.
    pub fn image(&self) -> usize {
        self.explicit.image
    }

    /// Hidden channels, layer by layer.
    pub fn units(&self) -> &[usize] {
        &self.explicit.units
    }

    /// The activation σ.
    pub fn activation(&self) -> Activation {
        self.explicit.activation
    }

    /// The (μ, ν) in the layer's formula.
    pub fn design(&self) -> Bounds {
        self.explicit.bounds
    }

    /// Number of stored weights.
    pub fn weights(&self) -> usize {
        let e = &self.explicit;
        let frequency = e.frequencies.first().map_or(0, |f| {
            let size = |m: &Complex<T>| 2 * m.re.nrows() * m.re.ncols();
            size(&f.s) + f.v.iter().map(size).sum::<usize>()
        });
        frequency * e.frequencies.len()
            + e.hidden_bias.len()
            + e.output_bias.len()
            + e.psi.as_ref().map_or(0, Vec::len)
    }

    /// What is proved of the stored weights; the proof is made when it is first asked for.
    pub fn layer_certificate(&self) -> &LayerCertificate {
        self.certificate.get_or_compute(|| self.prove_again())
    }

    pub(crate) fn claimed(&self) -> Claimed {
        self.explicit.bounds.into()
    }

    /// The same layer in f64; exact.
    pub fn to_f64(&self) -> ConvMonLip<f64> {
        let e = &self.explicit;
        let wide = |v: &[T]| v.iter().map(|v| v.as_f64()).collect::<Vec<f64>>();
        ConvMonLip {
            explicit: Arc::new(ConvExplicit {
                bounds: e.bounds,
                activation: e.activation,
                image: e.image,
                units: e.units.clone(),
                frequencies: e.frequencies.iter().map(Frequency::to_f64).collect(),
                psi: e.psi.as_deref().map(wide),
                hidden_bias: wide(&e.hidden_bias),
                output_bias: wide(&e.output_bias),
            }),
            fourier: Arc::new(Fourier::new(e.image)),
            widths: self.widths.clone(),
            certificate: self.certificate.clone(),
            norms: self.norms.clone(),
        }
    }

    /// Largest norms over the frequencies, computed once.
    pub(crate) fn norms(&self) -> &Norms {
        self.norms.get_or_compute(|| {
            let e = &self.explicit;
            let units: Vec<usize> = e.units.iter().map(|m| 2 * m).collect();
            Norms::largest(parallel::map(e.frequencies.len(), |f| {
                let (v, s) = e.frequencies[f].to_f64().embedded(&e.units);
                Norms::new(&v, s.as_ref(), &units)
            }))
        })
    }

    fn pixels(&self) -> usize {
        self.explicit.image * self.explicit.image
    }

    /// The hidden channels of a layer.
    fn units_of(&self, k: usize) -> Range<usize> {
        let start = self.explicit.units[..k].iter().sum();
        start..start + self.explicit.units[k]
    }

    /// `S x` for all hidden channels.
    fn s_times(&self, x: &Spectrum<T>, factor: T) -> Spectrum<T> {
        let e = &self.explicit;
        let m = e.hidden_bias.len();
        let mut out = Spectrum::zeros(e.frequencies.len(), m, x.rows);
        let s = |f: usize| {
            let s = &e.frequencies[f].s;
            ((s.re.as_ref(), s.im.as_ref()), false)
        };
        out.add_product(0..m, factor, s, x, 0..x.channels);
        out
    }

    /// Adds `S_kᴴ z` for a hidden layer.
    fn add_s_adjoint(&self, to: &mut Spectrum<T>, k: usize, factor: T, z: &Spectrum<T>) {
        let e = &self.explicit;
        let units = self.units_of(k);
        let s = |f: usize| {
            let s = &e.frequencies[f].s;
            (
                (
                    s.re.subrows(units.start, units.len()),
                    s.im.subrows(units.start, units.len()),
                ),
                true,
            )
        };
        to.add_product(0..to.channels, factor, s, z, 0..z.channels);
    }

    /// Adds `V_k z` (of the layer before) or `V_kᴴ z` (of the layer after) to the channels of a
    /// hidden layer.
    fn add_v(&self, to: &mut Spectrum<T>, channels: Range<usize>, k: usize, adjoint: bool, z: &Spectrum<T>) {
        let e = &self.explicit;
        let v = |f: usize| {
            let v = &e.frequencies[f].v[k - 1];
            ((v.re.as_ref(), v.im.as_ref()), adjoint)
        };
        to.add_product(channels, T::one(), v, z, 0..z.channels);
    }

    /// Images of some channels of a spectrum.
    fn images(&self, spectrum: &Spectrum<T>, channels: Range<usize>) -> Vec<T> {
        let mut part = Spectrum::zeros(self.fourier.frequencies.len(), channels.len(), spectrum.rows);
        let (all, some) = (spectrum.channels, channels.len());
        for at in 0..self.fourier.frequencies.len() * spectrum.rows {
            let (from, to) = (at * all + channels.start, at * some);
            part.re[to..to + some].copy_from_slice(&spectrum.re[from..from + some]);
            part.im[to..to + some].copy_from_slice(&spectrum.im[from..from + some]);
        }
        self.fourier.inverse(&part)
    }
}

#[cfg(test)]
mod tests;
