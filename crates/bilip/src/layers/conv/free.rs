//! Free kernels, and the explicit layer they give.

use faer::Mat;

use super::fourier::{Complex, Fourier, cosine, sine};
use super::{ConvExplicit, ConvMonLip, Frequency};
use crate::base::bounds::Bounds;
use crate::base::error::{Error, Result, check_finite};
use crate::base::parallel::{self, Late};
use crate::base::random::{Rng, check_units};
use crate::base::real::Real;
use crate::certify::{LayerCertificate, round_certified};
use crate::layers::activation::Activation;
use crate::layers::cayley::cayley;

/// Square kernels between channels, `[outputs, inputs, size, size]`, the middle entry that of no
/// shift.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernels {
    /// Output channels.
    pub outputs: usize,
    /// Input channels.
    pub inputs: usize,
    /// The odd side of a kernel.
    pub size: usize,
    /// The numbers.
    pub values: Vec<f64>,
}

impl Kernels {
    /// Kernels from their numbers.
    ///
    /// # Errors
    /// When the side is even, a size is zero, or the numbers are not as many as they should be or
    /// not finite.
    pub fn new(outputs: usize, inputs: usize, size: usize, values: Vec<f64>) -> Result<Self> {
        if size.is_multiple_of(2) {
            return Err(Error::setting("kernel", size, "must be odd"));
        }
        let count = outputs * inputs * size * size;
        if count == 0 || values.len() != count {
            return Err(Error::shape(
                "kernels",
                format!("{outputs}×{inputs}×{size}×{size} numbers, at least one"),
                values.len(),
            ));
        }
        check_finite("kernels", &values)?;
        Ok(Kernels {
            outputs,
            inputs,
            size,
            values,
        })
    }

    /// Glorot-normal kernels.
    fn glorot(outputs: usize, inputs: usize, size: usize, rng: &mut Rng) -> Result<Self> {
        let deviation = (2.0 / ((outputs + inputs) * size * size) as f64).sqrt();
        let values = rng
            .normals(outputs * inputs * size * size)
            .iter()
            .map(|v| deviation * v)
            .collect();
        Self::new(outputs, inputs, size, values)
    }

    /// The matrix by which circular convolution on a torus of the given side acts on the channels
    /// at a frequency, `[[Re, −Im], [Im, Re]]`: its norm is that of the convolution there.
    pub fn embedded_at(&self, frequency: (usize, usize), side: usize) -> Mat<f64> {
        self.at((frequency.0 % side, frequency.1 % side), side).embedded()
    }

    /// The matrix by which circular convolution acts on the channels at a frequency: `Σ_d
    /// K[d]·exp(−2πi⟨f, d⟩/size)`.
    pub(crate) fn at(&self, (i, j): (usize, usize), image: usize) -> Complex<f64> {
        let k = self.size;
        let radius = (k - 1) / 2;
        // Shifts are taken modulo the image, so a kernel larger than it wraps around.
        let shift = |a: usize| (a + image * k - radius) % image;
        let turns: Vec<(f64, f64)> = (0..k * k)
            .map(|d| {
                let turn = (i * shift(d / k) + j * shift(d % k)) % image;
                (cosine(turn, image), sine(turn, image))
            })
            .collect();
        let mut out = Complex::zeros(self.outputs, self.inputs);
        for o in 0..self.outputs {
            for c in 0..self.inputs {
                let kernel = &self.values[(o * self.inputs + c) * k * k..][..k * k];
                let (mut re, mut im) = (0.0, 0.0);
                for (value, (cos, sin)) in kernel.iter().zip(&turns) {
                    re += value * cos;
                    im -= value * sin;
                }
                out.re[(o, c)] = re;
                out.im[(o, c)] = im;
            }
        }
        out
    }
}

/// Free parameters of a [`ConvMonLip`]: any numbers give a layer with the bounds asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvFree {
    /// The bounds (μ, ν).
    pub bounds: Bounds,
    /// The activation.
    pub activation: Activation,
    /// The side of the images.
    pub image: usize,
    /// `F^q`: from the input's channels to all hidden ones.
    pub q: Kernels,
    /// `F_k^{ab}`: `m_k + m_{k−1}` to `m_k` channels.
    pub ab: Vec<Kernels>,
    /// `ln ψ` of every hidden channel; `None` means zero.
    pub log_psi: Option<Vec<f64>>,
    /// Bias of every hidden channel.
    pub hidden_bias: Vec<f64>,
    /// Bias of every output channel.
    pub output_bias: Vec<f64>,
}

/// Settings of a random monotone layer on images.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomConvLayer<'a> {
    /// Number of input and output channels.
    pub channels: usize,
    /// The side of the images.
    pub image: usize,
    /// Hidden channels, layer by layer.
    pub units: &'a [usize],
    /// The bounds.
    pub bounds: Bounds,
    /// The odd side of the kernels; 3 unless told otherwise.
    pub kernel: usize,
    /// The activation; ReLU unless told otherwise.
    pub activation: Activation,
    /// Deviation of the biases; 0.5 unless told otherwise.
    pub bias: f64,
}

impl<'a> RandomConvLayer<'a> {
    /// A ReLU layer with kernels of 3 × 3.
    pub fn new(channels: usize, image: usize, units: &'a [usize], bounds: Bounds) -> Self {
        RandomConvLayer {
            channels,
            image,
            units,
            bounds,
            kernel: 3,
            activation: Activation::Relu,
            bias: 0.5,
        }
    }

    /// The same with kernels of another side.
    pub fn with_kernel(self, kernel: usize) -> Self {
        RandomConvLayer { kernel, ..self }
    }

    /// The same with another activation.
    pub fn with_activation(self, activation: Activation) -> Self {
        RandomConvLayer { activation, ..self }
    }

    /// The same with biases of another deviation.
    pub fn with_bias(self, bias: f64) -> Self {
        RandomConvLayer { bias, ..self }
    }
}

impl ConvFree {
    /// Glorot-normal kernels, normal biases, ψ = 1.
    ///
    /// # Errors
    /// When a size is zero or the kernel even.
    pub fn random(layer: &RandomConvLayer<'_>, rng: &mut Rng) -> Result<Self> {
        check_units(layer.units)?;
        let m: usize = layer.units.iter().sum();
        let mut before = 0;
        let mut ab = Vec::new();
        for &width in layer.units {
            ab.push(Kernels::glorot(width + before, width, layer.kernel, rng)?);
            before = width;
        }
        let scaled = |values: Vec<f64>| values.into_iter().map(|v| layer.bias * v).collect();
        Ok(ConvFree {
            bounds: layer.bounds,
            activation: layer.activation,
            image: layer.image,
            q: Kernels::glorot(m, layer.channels, layer.kernel, rng)?,
            ab,
            log_psi: None,
            hidden_bias: scaled(rng.normals(m)),
            output_bias: scaled(rng.normals(layer.channels)),
        })
    }

    /// Hidden widths, after checking that all parts fit together.
    ///
    /// # Errors
    /// On sizes that do not fit and numbers that are not finite.
    pub fn check(&self) -> Result<Vec<usize>> {
        let units: Vec<usize> = self.ab.iter().map(|k| k.inputs).collect();
        let mut before = 0;
        for (k, kernels) in self.ab.iter().enumerate() {
            if kernels.outputs != kernels.inputs + before {
                return Err(Error::shape(
                    format!("kernels of hidden layer {}", k + 1),
                    format!("{} outputs", kernels.inputs + before),
                    kernels.outputs,
                ));
            }
            before = kernels.inputs;
        }
        let m: usize = units.iter().sum();
        if m == 0 || self.q.outputs != m {
            return Err(Error::shape(
                "kernels of Q",
                format!("{m} outputs, at least one"),
                self.q.outputs,
            ));
        }
        if self.image == 0 {
            return Err(Error::setting("image", self.image, "must be at least 1"));
        }
        if self.hidden_bias.len() != m || self.log_psi.as_ref().is_some_and(|d| d.len() != m) {
            return Err(Error::shape("hidden bias and psi", m, self.hidden_bias.len()));
        }
        if self.output_bias.len() != self.q.inputs {
            return Err(Error::shape("output bias", self.q.inputs, self.output_bias.len()));
        }
        Ok(units)
    }
}

/// The Cayley transform of a complex matrix, by that of its real embedding.
fn complex_cayley(free: &Complex<f64>) -> Result<Complex<f64>> {
    let (rows, columns) = free.re.shape();
    if rows < columns {
        return Ok(complex_cayley(&free.adjoint())?.adjoint());
    }
    // The square part and the rest are embedded each by itself.
    let (top, rest) = (free.rows(0, columns), free.rows(columns, rows - columns));
    let (top, rest) = (top.embedded(), rest.embedded());
    let stacked = Mat::from_fn(2 * rows, 2 * columns, |i, j| {
        if i < 2 * columns {
            top[(i, j)]
        } else {
            rest[(i - 2 * columns, j)]
        }
    });
    let j = cayley(stacked.as_ref())?;
    let top = Complex::from_embedded(j.subrows(0, 2 * columns));
    let rest = Complex::from_embedded(j.subrows(2 * columns, 2 * (rows - columns)));
    let join = |a: &Mat<f64>, b: &Mat<f64>| {
        Mat::from_fn(rows, columns, |i, j| {
            if i < columns {
                a[(i, j)]
            } else {
                b[(i - columns, j)]
            }
        })
    };
    Ok(Complex {
        re: join(&top.re, &rest.re),
        im: join(&top.im, &rest.im),
    })
}

impl ConvFree {
    /// `V_2 … V_L` and `S` at a frequency, before rounding.
    fn explicit(
        &self,
        units: &[usize],
        frequency: (usize, usize),
    ) -> Result<(Vec<Complex<f64>>, Complex<f64>)> {
        let q = complex_cayley(&self.q.at(frequency, self.image))?;
        let j = self
            .ab
            .iter()
            .map(|kernels| complex_cayley(&kernels.at(frequency, self.image)))
            .collect::<Result<Vec<_>>>()?;
        let mut v = Vec::new();
        let mut s = Complex::zeros(q.re.nrows(), q.re.ncols());
        let mut at = 0;
        for (k, &m) in units.iter().enumerate() {
            // J = [Aᴴ; Bᴴ].
            let a = j[k].rows(0, m).adjoint();
            let mut part = a.times(&q.rows(at, m));
            if k > 0 {
                let before = units[k - 1];
                let b = j[k].rows(m, before).adjoint();
                let below = b.times(&q.rows(at - before, before));
                part.re -= &below.re;
                part.im -= &below.im;
                let mut weight = b.times(&j[k - 1].rows(0, before));
                weight.re *= faer::Scale(2.0);
                weight.im *= faer::Scale(2.0);
                v.push(weight);
            }
            s.re.as_mut().subrows_mut(at, m).copy_from(&part.re);
            s.im.as_mut().subrows_mut(at, m).copy_from(&part.im);
            at += m;
        }
        Ok((v, s))
    }
}

impl<T: Real> ConvMonLip<T> {
    /// The explicit layer of free kernels, with its bounds proved for the numbers stored.
    ///
    /// Every frequency by itself: weights in f64, then the certified rounding of
    /// [`MonLip::from_free`](crate::MonLip::from_free).
    ///
    /// # Errors
    /// On parts that do not fit together, numbers that are not finite, or ν = μ.
    pub fn from_free(free: &ConvFree) -> Result<Self> {
        let units = free.check()?;
        let fourier = Fourier::<T>::new(free.image);
        let stored = parallel::map(fourier.frequencies.len(), |f| -> Result<_> {
            let (mut v, mut s) = free.explicit(&units, fourier.frequencies[f])?;
            if fourier.is_real(f) {
                // What is real in exact arithmetic is so in the file.
                v.iter_mut().chain([&mut s]).for_each(|m| m.im.fill(0.0));
            }
            let (v, s) = Frequency { v, s }.embedded(&units);
            let (v, s, certificate) = round_certified::<T>(&v, s.as_ref(), free.bounds)?;
            Ok((Frequency::from_embedded(&v, &s, &units), certificate))
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
        let (frequencies, certificates): (Vec<_>, Vec<LayerCertificate>) = stored.into_iter().unzip();
        let narrow = |values: &[f64]| values.iter().map(|b| T::round_from(*b)).collect::<Vec<T>>();
        let psi = free
            .log_psi
            .as_ref()
            .filter(|_| !free.activation.is_homogeneous())
            .map(|d| d.iter().map(|d| T::round_from(d.exp())).collect());
        let explicit = ConvExplicit {
            bounds: free.bounds,
            activation: free.activation,
            image: free.image,
            units,
            frequencies,
            psi,
            hidden_bias: narrow(&free.hidden_bias),
            output_bias: narrow(&free.output_bias),
        };
        let margin = certificates
            .iter()
            .map(|c| c.margin())
            .fold(f64::INFINITY, f64::min);
        let certificate = LayerCertificate::of_condition(free.bounds, margin);
        Self::assemble(explicit, Late::of(certificate))
    }
}
