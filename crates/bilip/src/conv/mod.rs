//! The monotone and Lipschitz layer on images: its linear maps are circular convolutions.
//!
//! Circular convolutions of `c` channels are, at each frequency of the Fourier transform, complex matrices of size c; the transform is unitary up to a factor. So the
//! layer is that of [`MonLip`](crate::MonLip) with `V` and `S` block-diagonal over the frequencies,
//! ```text
//! ẑ_k = σ̂(V_k ∗ ẑ_{k−1} + √(2γ) S_k ∗ x + b̂_k),   y = μx + √(γ/2) Σ S_kᴴ ∗ ẑ_k + b_y,
//! ```
//! and its condition `I − (V+Vᴴ)/2 − SSᴴ ⪰ 0` holds if and only if it holds at every frequency. Kernels of free parameters are small; those of V and S are as large as
//! the image, and stored by frequency. At −f everything is conjugate to f, so half of the frequencies are enough.

mod accurate;
pub(crate) mod fourier;
mod free;
mod inverse;

use std::ops::Range;

use faer::Mat;

pub use free::{ConvFree, Kernels};

use crate::activation::Activation;
use crate::bounds::{Bounds, Claimed};
use crate::certificate::{Certificate, LayerCertificate, Norms, Proved, certify_blocks};
use crate::error::{Error, Result, check_batch, check_finite, check_rows};
use crate::monlip::check_psi;
use crate::orthogonal::to_f64;
use crate::parallel;
use crate::real::Real;
use fourier::{Complex, Fourier, Spectrum};
use inverse::Sizes;

/// Rows of a batch that are transformed together.
const BLOCK_ROWS: usize = 16;

/// The weights at a frequency.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frequency<T> {
    /// `V_2 … V_L`.
    v: Vec<Complex<T>>,
    /// `S`, all hidden channels × input channels.
    s: Complex<T>,
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
    bounds: Bounds,
    activation: Activation,
    image: usize,
    units: Vec<usize>,
    frequencies: Vec<Frequency<T>>,
    /// ψ of every hidden channel.
    psi: Option<Vec<T>>,
    hidden_bias: Vec<T>,
    output_bias: Vec<T>,
    /// The published code scales x by √γ before it goes into the skip connection ½(μ + ν)x of its form of the layer, which is `½(μ + ν)(√γ − 1)x` too
    /// much.
    published: bool,
}

impl<T: Real> ConvExplicit<T> {
    /// The factor of x in y; μ unless the layer is the published one, whose factor is this number as it is rounded here.
    fn skip(&self) -> f64 {
        let (mu, nu) = (self.bounds.mu(), self.bounds.nu());
        match self.published {
            true => mu + 0.5 * (mu + nu) * (self.bounds.gap().sqrt() - 1.0),
            false => mu,
        }
    }

    /// What a proved condition with this margin says.
    fn certificate(&self, margin: f64) -> LayerCertificate {
        let skip = self.skip();
        match self.published {
            false => LayerCertificate::of_condition(self.bounds, margin),
            // Rounded outwards; a negative skip leaves nothing.
            true => {
                let low = (skip * (1.0 - 1e-14)).max(0.0);
                let high = (skip + self.bounds.gap()) * (1.0 + 1e-14);
                LayerCertificate::of_interval(self.bounds, low, high, margin)
            }
        }
    }
}

/// A μ-strongly monotone, ν-Lipschitz layer on images `[channels, size, size]`, by circular convolutions.
///
/// Built from free kernels by [`ConvMonLip::from_free`], which rounds the weights so that the bounds hold *exactly* for the numbers stored.
///
/// ```
/// use bilip::{Activation, Bounds, ConvFree, ConvMonLip, InverseOptions, Rng};
///
/// // Images of 3 channels, 8 × 8; two hidden layers of 4 channels, kernels of 3 × 3.
/// let (bounds, mut rng) = (Bounds::new(0.2, 4.0)?, Rng::new(1));
/// let free = ConvFree::random(3, 8, &[4, 4], 3, bounds, Activation::Relu, 0.1, &mut rng)?;
/// let layer = ConvMonLip::<f32>::from_free(&free)?;
/// assert!(layer.verify().holds());
///
/// // There and back: two images, one after the other.
/// let images = rng.normals(2 * layer.dim());
/// let y = layer.to_f64().forward(&images)?;
/// let inverse = layer.inverse(&y, &InverseOptions::default())?;
/// assert!(inverse.converged() && inverse.max_error_bound() <= 1e-8);
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConvMonLip<T> {
    explicit: ConvExplicit<T>,
    fourier: Fourier<T>,
    certificate: LayerCertificate,
}

/// Slopes of the activation at every hidden pixel of some rows, `[layer][rows, m_k, size, size]`.
type Slopes<T> = Vec<Vec<T>>;

impl<T: Real> ConvMonLip<T> {
    fn assemble(explicit: ConvExplicit<T>, certificate: LayerCertificate) -> Result<Self> {
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
        Ok(ConvMonLip {
            fourier: Fourier::new(explicit.image),
            explicit,
            certificate,
        })
    }

    /// Number of input and output channels.
    pub fn channels(&self) -> usize {
        self.explicit.output_bias.len()
    }

    /// The side of the images.
    pub fn image(&self) -> usize {
        self.explicit.image
    }

    /// Numbers of a row: channels times pixels.
    pub fn dim(&self) -> usize {
        self.channels() * self.image() * self.image()
    }

    /// Hidden channels, layer by layer.
    pub fn units(&self) -> &[usize] {
        &self.explicit.units
    }

    /// The bounds the layer was designed for.
    pub fn claim(&self) -> Claimed {
        self.explicit.bounds.into()
    }

    /// Proved bounds.
    pub fn bounds(&self) -> Proved {
        self.certificate.proved()
    }

    /// What has been proved of the stored numbers.
    pub fn certificate(&self) -> Certificate {
        Certificate::from_layers(vec![self.certificate.clone()], self.claim())
    }

    /// Proves the bounds of the stored numbers anew, frequency by frequency.
    pub fn verify(&self) -> Certificate {
        let e = &self.explicit;
        let block = |f: usize| e.frequencies[f].to_f64().embedded(&e.units);
        let proved = certify_blocks(e.frequencies.len(), block, e.bounds);
        let certificate = match (proved.holds(), e.published) {
            (true, _) => e.certificate(proved.margin()),
            (false, false) => proved,
            // What a defect leaves of the design says nothing of another skip connection.
            (false, true) => LayerCertificate::of_interval(e.bounds, 0.0, f64::INFINITY, proved.margin()),
        };
        Certificate::from_layers(vec![certificate], self.claim())
    }

    /// The same layer in f64; exact.
    pub fn to_f64(&self) -> ConvMonLip<f64> {
        let e = &self.explicit;
        let wide = |v: &[T]| v.iter().map(|v| v.as_f64()).collect::<Vec<f64>>();
        ConvMonLip {
            explicit: ConvExplicit {
                bounds: e.bounds,
                activation: e.activation,
                image: e.image,
                units: e.units.clone(),
                frequencies: e.frequencies.iter().map(Frequency::to_f64).collect(),
                psi: e.psi.as_deref().map(wide),
                hidden_bias: wide(&e.hidden_bias),
                output_bias: wide(&e.output_bias),
                published: e.published,
            },
            fourier: Fourier::new(e.image),
            certificate: self.certificate.clone(),
        }
    }

    /// Largest norms over the frequencies.
    pub(crate) fn norms(&self) -> Norms {
        let e = &self.explicit;
        let units: Vec<usize> = e.units.iter().map(|m| 2 * m).collect();
        Norms::largest(parallel::map(e.frequencies.len(), |f| {
            let (v, s) = e.frequencies[f].to_f64().embedded(&e.units);
            Norms::new(&v, s.as_ref(), &units)
        }))
    }

    /// `F(x)` for every row, `[batch, channels, size, size] → [batch, channels, size, size]`.
    ///
    /// # Errors
    /// On a batch whose size is no multiple of [`dim`](Self::dim) or that holds NaN or infinity.
    pub fn forward(&self, x: &[T]) -> Result<Vec<T>> {
        let y = self.in_blocks(x, x, |x, _| self.evaluate(x, None))?;
        check_finite("result (numbers out of range)", &y)?;
        Ok(y)
    }

    /// `J(x) dx` for every row.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward), and when the two batches differ in size.
    pub fn jvp(&self, x: &[T], dx: &[T]) -> Result<Vec<T>> {
        self.in_blocks(x, dx, |x, dx| self.tangent(&self.slopes(x), dx))
    }

    /// `J(x)ᵀ w` for every row.
    ///
    /// # Errors
    /// As for [`jvp`](Self::jvp).
    pub fn vjp(&self, x: &[T], w: &[T]) -> Result<Vec<T>> {
        self.in_blocks(x, w, |x, w| self.cotangent(&self.slopes(x), w))
    }

    fn in_blocks(
        &self,
        x: &[T],
        w: &[T],
        work: impl Fn(&[T], &[T]) -> Vec<T> + Sync + Send,
    ) -> Result<Vec<T>> {
        let n = self.dim();
        let rows = check_batch("x", x, n)?;
        check_rows("tangent or cotangent", w, rows, n)?;
        let parts = parallel::map_chunks(rows, BLOCK_ROWS, |range| {
            let slice = range.start * n..range.end * n;
            work(&x[slice.clone()], &w[slice])
        });
        Ok(parts.concat())
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

    /// Adds `V_k z` (of the layer before) or `V_kᴴ z` (of the layer after) to the channels of a hidden layer.
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

    fn psi(&self, unit: usize) -> T {
        self.explicit.psi.as_ref().map_or(T::one(), |psi| psi[unit])
    }

    /// `F` of some rows; slopes of the activation are put where they are asked for.
    fn evaluate(&self, x: &[T], slopes: Option<&mut Slopes<T>>) -> Vec<T> {
        self.evaluate_recorded(x, slopes, None)
    }

    /// The same, with what proofs need to know of it.
    fn evaluate_recorded(
        &self,
        x: &[T],
        mut slopes: Option<&mut Slopes<T>>,
        mut sizes: Option<&mut Sizes>,
    ) -> Vec<T> {
        let e = &self.explicit;
        let pixels = e.image * e.image;
        let gamma = e.bounds.gap();
        let (gain_in, gain_out) = (
            T::round_from((2.0 * gamma).sqrt()),
            T::round_from((0.5 * gamma).sqrt()),
        );
        let mut inputs = self.s_times(&self.fourier.forward(x, self.channels()), gain_in);
        let mut out = Spectrum::zeros(e.frequencies.len(), self.channels(), inputs.rows);
        let mut before: Option<Spectrum<T>> = None;
        for k in 0..e.units.len() {
            let units = self.units_of(k);
            if let Some(z) = &before {
                self.add_v(&mut inputs, units.clone(), k, false, z);
            }
            let mut v = self.images(&inputs, units.clone());
            let square = |v: &[T]| v.iter().map(|v| v.as_f64() * v.as_f64()).sum::<f64>() * (1.0 + 1e-9);
            if let Some(sizes) = &mut sizes {
                sizes.before += square(&v);
            }
            let mut slope = Vec::with_capacity(if slopes.is_some() { v.len() } else { 0 });
            for (n, image) in v.chunks_exact_mut(pixels).enumerate() {
                let unit = units.start + n % units.len();
                let (bias, psi) = (e.hidden_bias[unit], self.psi(unit));
                for value in image {
                    let at = (*value + bias) / psi;
                    if slopes.is_some() {
                        slope.push(e.activation.derivative(at));
                    }
                    *value = psi * e.activation.value(at);
                }
            }
            if let Some(slopes) = &mut slopes {
                slopes.push(slope);
            }
            if let Some(sizes) = &mut sizes {
                sizes.after += square(&v);
                if let Some(keep) = &mut sizes.keep {
                    keep.push(v.iter().map(|v| v.as_f64()).collect());
                }
            }
            let z = self.fourier.forward(&v, units.len());
            self.add_s_adjoint(&mut out, k, gain_out, &z);
            before = Some(z);
        }
        let mut y = self.fourier.inverse(&out);
        let skip = T::round_from(e.skip());
        for (n, (y, x)) in y.chunks_exact_mut(pixels).zip(x.chunks_exact(pixels)).enumerate() {
            let bias = e.output_bias[n % self.channels()];
            y.iter_mut().zip(x).for_each(|(y, x)| *y = *y + skip * *x + bias);
        }
        y
    }

    fn slopes(&self, x: &[T]) -> Slopes<T> {
        let mut slopes = Vec::new();
        self.evaluate(x, Some(&mut slopes));
        slopes
    }

    fn tangent(&self, slopes: &Slopes<T>, dx: &[T]) -> Vec<T> {
        let e = &self.explicit;
        let gamma = T::round_from(e.bounds.gap());
        let mut inputs = self.s_times(&self.fourier.forward(dx, self.channels()), T::one());
        let mut out = Spectrum::zeros(e.frequencies.len(), self.channels(), inputs.rows);
        let mut before: Option<Spectrum<T>> = None;
        for (k, slopes) in slopes.iter().enumerate() {
            let units = self.units_of(k);
            if let Some(z) = &before {
                self.add_v(&mut inputs, units.clone(), k, false, z);
            }
            let mut v = self.images(&inputs, units.clone());
            v.iter_mut().zip(slopes).for_each(|(v, s)| *v *= *s);
            let z = self.fourier.forward(&v, units.len());
            // √(2γ)·√(γ/2) = γ.
            self.add_s_adjoint(&mut out, k, gamma, &z);
            before = Some(z);
        }
        self.with_skip(self.fourier.inverse(&out), dx)
    }

    fn cotangent(&self, slopes: &Slopes<T>, w: &[T]) -> Vec<T> {
        let e = &self.explicit;
        let gamma = T::round_from(e.bounds.gap());
        let mut inputs = self.s_times(&self.fourier.forward(w, self.channels()), T::one());
        let mut out = Spectrum::zeros(e.frequencies.len(), self.channels(), inputs.rows);
        let mut after: Option<Spectrum<T>> = None;
        for k in (0..e.units.len()).rev() {
            let units = self.units_of(k);
            if let Some(delta) = &after {
                self.add_v(&mut inputs, units.clone(), k + 1, true, delta);
            }
            let mut u = self.images(&inputs, units.clone());
            u.iter_mut().zip(&slopes[k]).for_each(|(u, s)| *u *= *s);
            let delta = self.fourier.forward(&u, units.len());
            self.add_s_adjoint(&mut out, k, gamma, &delta);
            after = Some(delta);
        }
        self.with_skip(self.fourier.inverse(&out), w)
    }

    fn with_skip(&self, mut y: Vec<T>, x: &[T]) -> Vec<T> {
        let skip = T::round_from(self.explicit.skip());
        y.iter_mut().zip(x).for_each(|(y, x)| *y += skip * *x);
        y
    }
}

#[cfg(test)]
mod tests;
