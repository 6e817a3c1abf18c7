//! Monotone layers on images.
//!
//! Everything linear happens at the frequencies of the Fourier transform ([`bilip::ConvMonLip`] has
//! the mathematics), of which only one of each conjugate pair is kept. Complex matrices are stored
//! as real ones, real parts above imaginary ones; the left factor of a product is written out as
//! `[[Re, −Im], [Im, Re]]`, whose transpose is that of the adjoint. So all frequencies, and all
//! hidden layers of the same widths, go through every step as one batch of real matrices on every
//! backend.
//!
//! Inside, images are ordered channel by channel, `[channels, batch, pixels]`: the Fourier
//! transform is then one product with a table, which leaves its spectra as `[frequency, part and
//! channel, batch]`, ready for the next product.

use std::ops::Range;
use std::sync::Arc;

use bilip::{Activation, Bounds, ConvFree, Kernels, RandomConvLayer, Real, Rng};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::base::{Error, Result, numbers, vector};
use crate::ops::{self, FourierTable, HiddenChannels, ImagePass};
use crate::spec::{Strips, frequencies, weight};

/// Settings of a [`ConvMonLip`] layer.
#[derive(Config, Debug, PartialEq)]
pub struct ConvMonLipConfig {
    /// Number of input and output channels.
    pub channels: usize,
    /// The side of the images.
    pub image: usize,
    /// Hidden channels, layer by layer.
    pub units: Vec<usize>,
    /// The bounds.
    pub bounds: Bounds,
    /// The odd side of the free kernels.
    #[config(default = 3)]
    pub kernel: usize,
    /// The activation: a positively homogeneous one, which needs no ψ.
    #[config(default = "Activation::Relu")]
    pub activation: Activation,
    /// Seed of the initial parameters.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

impl ConvMonLipConfig {
    /// The layer with Glorot-normal kernels, their gains equal to their norms, and zero biases.
    ///
    /// # Errors
    /// On sizes of zero, even kernels, and activations that are not positively homogeneous.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<ConvMonLip<B>> {
        for (name, value) in [("channels", self.channels), ("image", self.image)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        if !self.activation.is_homogeneous() {
            return Err(Error::setting(
                "activation",
                self.activation,
                "convolutional layers are trained with relu, leaky_relu or identity",
            ));
        }
        let free = ConvFree::random(
            &RandomConvLayer::new(self.channels, self.image, &self.units, self.bounds)
                .with_kernel(self.kernel)
                .with_activation(self.activation)
                .with_bias(0.0),
            &mut Rng::new(self.seed),
        )?;
        let kernels = |k: &Kernels| {
            let data = TensorData::new(k.values.clone(), [k.outputs, k.inputs, k.size * k.size]);
            Param::from_tensor(Tensor::from_data(
                data.convert_dtype(self.dtype),
                (device, self.dtype),
            ))
        };
        let norm = |k: &Kernels| k.values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let gains: Vec<f64> = [&free.q].into_iter().chain(&free.ab).map(norm).collect();
        let m: usize = self.units.iter().sum();
        Ok(ConvMonLip {
            q: kernels(&free.q),
            ab: free.ab.iter().map(kernels).collect(),
            gains: Param::from_tensor(vector(gains, device, self.dtype)),
            bias: Param::from_tensor(vector(vec![0.0; m], device, self.dtype)),
            output_bias: Param::from_tensor(vector(vec![0.0; self.channels], device, self.dtype)),
            fourier: FourierTables::new(self.image, self.kernel, device, self.dtype),
            config: Arc::new(self.clone()),
        })
    }
}

/// The Fourier transform of images, as tables for products. Rows are frequencies, a real and an
/// imaginary one each.
#[derive(Module, Debug)]
struct FourierTables<B: Backend> {
    /// `[2·frequencies, size²]`.
    forward: Param<Tensor<B, 2>>,
    /// Of the inverse, `[2·frequencies, size²]`.
    backward: Param<Tensor<B, 2>>,
    /// Of the kernels' entries, `[2·frequencies, kernel²]`.
    kernel: Param<Tensor<B, 2>>,
}

impl<B: Backend> FourierTables<B> {
    fn new(size: usize, kernel: usize, device: &B::Device, dtype: DType) -> Self {
        let all = frequencies(size);
        let table = |columns: usize, f: &dyn Fn((usize, usize), usize, usize) -> f64| {
            let values: Vec<f64> = (0..2 * all.len() * columns)
                .map(|k| f(all[k / columns / 2], k / columns % 2, k % columns))
                .collect();
            let data = TensorData::new(values, [2 * all.len(), columns]).convert_dtype(dtype);
            Param::from_tensor(Tensor::from_data(data, (device, dtype))).set_require_grad(false)
        };
        // e^{−iθ} at pixel (p, q).
        let wave = |(i, j): (usize, usize), part: usize, (p, q): (usize, usize)| {
            let angle = std::f64::consts::TAU * ((i * p + j * q) % size) as f64 / size as f64;
            if part == 0 { angle.cos() } else { -angle.sin() }
        };
        let radius = (kernel - 1) / 2;
        let shift = |a: usize| (a + size * kernel - radius) % size;
        FourierTables {
            forward: table(size * size, &|f, part, at| wave(f, part, (at / size, at % size))),
            backward: table(size * size, &|f, part, at| {
                weight(size, f) * wave(f, part, (at / size, at % size))
            }),
            kernel: table(kernel * kernel, &|f, part, at| {
                wave(f, part, (shift(at / kernel), shift(at % kernel)))
            }),
        }
    }

    /// The number of frequencies.
    fn count(&self) -> usize {
        self.forward.val().dims()[0] / 2
    }

    /// Kernels at all frequencies.
    ///
    /// # Shapes
    /// `[outputs, inputs, kernel²] → [frequencies, 2·outputs, inputs]`
    fn of_kernels(&self, kernels: Tensor<B, 3>) -> Tensor<B, 3> {
        let [outputs, inputs, square] = kernels.dims();
        let kernels = kernels.reshape([outputs * inputs, square]).transpose();
        ops::matmul(self.kernel.val(), kernels).reshape([self.count(), 2 * outputs, inputs])
    }
}

/// The Cayley transforms of tall complex matrices, several above each other: the square parts, and
/// the rest.
///
/// # Shapes
/// `[count, 2·pieces·rows, n] → [count·pieces, 2·n, n]` and `[count·pieces, 2·(rows − n), n]`
fn cayley<B: Backend>(z: Tensor<B, 3>, pieces: usize) -> (Tensor<B, 3>, Option<Tensor<B, 3>>) {
    let [_, twice, n] = z.dims();
    let height = twice / 2 / pieces;
    let part = |rows: Range<usize>| {
        let strips = Strips {
            rows: twice / 2,
            first: 0,
            stride: height,
            pieces,
            from: rows.start,
            height: rows.len(),
        };
        ops::strips(z.clone(), strips)
    };
    let mut w = ops::skew(part(0..n));
    let below = (height > n).then(|| part(n..height));
    if let Some(h) = &below {
        w = w + ops::matmul(ops::embed(h.clone()).swap_dims(1, 2), h.clone());
    }
    let x = ops::complex_inverse(w);
    let below = below.map(|h| ops::matmul(ops::embed(h), x.clone()).mul_scalar(-2.0));
    let (device, dtype) = (z.device(), z.dtype());
    let eye = Tensor::<B, 2>::eye(n, &device).cast(dtype);
    let eye = Tensor::cat(vec![eye, Tensor::zeros([n, n], (&device, dtype))], 0);
    (x.mul_scalar(2.0) - eye.unsqueeze::<3>(), below)
}

/// A μ-strongly monotone, ν-Lipschitz layer on images, to be trained.
#[derive(Module, Debug)]
pub struct ConvMonLip<B: Backend> {
    /// `[m, channels, kernel²]`.
    q: Param<Tensor<B, 3>>,
    /// `[m_k + m_{k−1}, m_k, kernel²]`.
    ab: Vec<Param<Tensor<B, 3>>>,
    /// Of q, then of the hidden layers.
    gains: Param<Tensor<B, 1>>,
    bias: Param<Tensor<B, 1>>,
    output_bias: Param<Tensor<B, 1>>,
    fourier: FourierTables<B>,
    #[module(skip)]
    config: Arc<ConvMonLipConfig>,
}

impl<B: Backend> ConvMonLip<B> {
    /// The bounds that the layer is built for.
    pub fn bounds(&self) -> Bounds {
        self.config.bounds
    }

    /// Kernels above each other, each with the norm that its gain says.
    fn scaled(&self, kernels: Tensor<B, 3>, gains: Range<usize>) -> Tensor<B, 3> {
        let [rows, columns, square] = kernels.dims();
        let count = gains.len();
        let kernels = kernels.reshape([count, rows / count, columns * square]);
        // Sums over rows, then over what is left: GPUs do not like a few long ones.
        let norms = (kernels.clone() * kernels.clone()).sum_dim(2).sum_dim(1);
        let norms = norms.add_scalar(1e-30).sqrt();
        let gains = self.gains.val().slice(gains).reshape([count, 1, 1]);
        (kernels * (gains / norms)).reshape([rows, columns, square])
    }

    /// Q at all frequencies, `[frequencies, 2·m, channels]`.
    fn q(&self) -> Tensor<B, 3> {
        let z = self.fourier.of_kernels(self.scaled(self.q.val(), 0..1));
        let [count, twice, c] = z.dims();
        let whole = |z: Tensor<B, 3>| match cayley(z, 1) {
            (top, None) => top,
            (top, Some(below)) => {
                let width = top.dims()[2];
                let parts = [top, below].map(|t| {
                    let height = t.dims()[1] / 2;
                    t.reshape([count, 2, height, width])
                });
                let height: usize = parts.iter().map(|t| t.dims()[2]).sum();
                Tensor::cat(parts.to_vec(), 2).reshape([count, 2 * height, width])
            }
        };
        // A wide matrix is transformed by its adjoint.
        if twice / 2 < c {
            ops::complex_adjoint(whole(ops::complex_adjoint(z)))
        } else {
            whole(z)
        }
    }

    /// Hidden layers in runs of equal shape: the first of each, and how many.
    fn runs(&self) -> Vec<(usize, usize)> {
        let units = &self.config.units;
        let shape = |k: usize| (units[k], if k > 0 { units[k - 1] } else { 0 });
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for k in 0..units.len() {
            match runs.last_mut() {
                Some((first, count)) if shape(*first) == shape(k) => *count += 1,
                _ => runs.push((k, 1)),
            }
        }
        runs
    }

    /// The explicit layer at all frequencies, written out: S by hidden layers, and V of every layer
    /// but the first.
    ///
    /// # Shapes
    /// `[frequencies, 2·m, 2·channels]` and `[frequencies, 2·m_k, 2·m_{k−1}]` each
    fn explicit(&self) -> (Tensor<B, 3>, Vec<Tensor<B, 3>>) {
        let units = &self.config.units;
        let q = self.q();
        let [all, twice, c] = q.dims();
        let (mut s, mut v) = (Vec::new(), Vec::new());
        // Aᴴ of the layer before.
        let mut last: Option<Tensor<B, 3>> = None;
        let mut at = 0;
        for (first, count) in self.runs() {
            let m = units[first];
            let layers = first..first + count;
            let kernels = Tensor::cat(self.ab[layers.clone()].iter().map(Param::val).collect(), 0);
            let kernels = self.scaled(kernels, layers.start + 1..layers.end + 1);
            // J = [Aᴴ; Bᴴ] of every layer of the run.
            let (a, b) = cayley(self.fourier.of_kernels(kernels), count);
            let of_q = |first: usize, height: usize| {
                let strips = Strips {
                    rows: twice / 2,
                    first,
                    stride: height,
                    pieces: count,
                    from: 0,
                    height,
                };
                ops::strips(q.clone(), strips)
            };
            let mut part = ops::matmul(ops::embed(a.clone()).swap_dims(1, 2), of_q(at, m));
            if let (Some(last), Some(b)) = (last.take(), b) {
                let before = units[first - 1];
                let b = ops::embed(b).swap_dims(1, 2);
                part = part - ops::matmul(b.clone(), of_q(at - before, before));
                let mut chain = last.unsqueeze_dim::<4>(1);
                if count > 1 {
                    let own = a.clone().reshape([all, count, 2 * m, m]);
                    let own = own.slice([0..all, 0..count - 1, 0..2 * m, 0..m]);
                    chain = Tensor::cat(vec![chain, own], 1);
                }
                let chain = chain.reshape([all * count, 2 * before, before]);
                let joined = ops::embed(ops::matmul(b, chain).mul_scalar(2.0));
                let joined = joined.reshape([all, count, 2 * m, 2 * before]);
                v.extend((0..count).map(|k| {
                    joined
                        .clone()
                        .slice([0..all, k..k + 1, 0..2 * m, 0..2 * before])
                        .reshape([all, 2 * m, 2 * before])
                }));
            }
            s.push(ops::embed(part).reshape([all, count * 2 * m, 2 * c]));
            last = Some(
                a.reshape([all, count, 2 * m, m])
                    .slice([0..all, count - 1..count, 0..2 * m, 0..m])
                    .reshape([all, 2 * m, m]),
            );
            at += count * m;
        }
        (Tensor::cat(s, 1), v)
    }

    /// `F(x)` of images in the order of their channels.
    ///
    /// # Shapes
    /// `[channels, batch, image²] → [channels, batch, image²]`
    pub(crate) fn by_channels(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let config = &self.config;
        let (mu, gamma) = (config.bounds.mu(), config.bounds.gap());
        let (s, v) = self.explicit();
        let all = self.fourier.count();
        let flat = |v: Tensor<B, 3>| {
            let [_, rows, columns] = v.dims();
            v.reshape([all, rows * columns])
        };
        let v: Vec<Tensor<B, 2>> = v.into_iter().map(flat).collect();
        let v = match v.is_empty() {
            true => Tensor::zeros([all, 1], (&x.device(), x.dtype())),
            false => Tensor::cat(v, 1),
        };
        let shape = HiddenChannels {
            units: config.units.clone(),
            activation: config.activation,
        };
        let pass = ImagePass {
            x: x.clone().mul_scalar((2.0 * gamma).sqrt()),
            s,
            v,
            bias: self.bias.val(),
            forward: FourierTable {
                values: self.fourier.forward.val(),
                inverse: false,
            },
            backward: FourierTable {
                values: self.fourier.backward.val(),
                inverse: true,
            },
        };
        let y = ops::image_pass(pass, &Arc::new(shape)).mul_scalar((0.5 * gamma).sqrt());
        let bias = self.output_bias.val().reshape([config.channels, 1, 1]);
        y + x.mul_scalar(mu) + bias
    }

    /// `F(x)`.
    ///
    /// # Shapes
    /// `[batch, channels, image, image] → [batch, channels, image, image]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, size, _] = x.dims();
        let pixels = size * size;
        let x = ops::exchanged(x.reshape([1, batch, channels, pixels]));
        let y = self.by_channels(x.reshape([channels, batch, pixels]));
        ops::exchanged(y.reshape([1, channels, batch, pixels])).reshape([batch, channels, size, size])
    }

    /// The free parameters in f64, as the core crate takes them.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn free(&self) -> Result<ConvFree> {
        let gains = numbers(self.gains.val());
        let kernels = |param: &Param<Tensor<B, 3>>, gain: f64| -> Result<Kernels> {
            let [outputs, inputs, _] = param.val().dims();
            let mut values = numbers(param.val());
            let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            if norm > 0.0 {
                values.iter_mut().for_each(|v| *v *= gain / norm);
            }
            Ok(Kernels::new(outputs, inputs, self.config.kernel, values)?)
        };
        Ok(ConvFree {
            bounds: self.config.bounds,
            activation: self.config.activation,
            image: self.config.image,
            q: kernels(&self.q, gains[0])?,
            ab: self
                .ab
                .iter()
                .zip(&gains[1..])
                .map(|(k, gain)| kernels(k, *gain))
                .collect::<Result<_>>()?,
            log_psi: None,
            hidden_bias: numbers(self.bias.val()),
            output_bias: numbers(self.output_bias.val()),
        })
    }

    /// The certified explicit layer.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<bilip::ConvMonLip<T>> {
        Ok(bilip::ConvMonLip::from_free(&self.free()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::BiLipschitz;
    use burn::backend::{Autodiff, Flex, NdArray};

    type F = Autodiff<Flex>;

    fn config(channels: usize, image: usize, units: &[usize]) -> ConvMonLipConfig {
        ConvMonLipConfig::new(channels, image, units.to_vec(), Bounds::new(0.3, 2.5).unwrap())
            .with_seed(5)
            .with_dtype(DType::F64)
    }

    fn images<B: Backend>(shape: [usize; 4], seed: u64) -> Tensor<B, 4> {
        let count = shape.iter().product();
        Tensor::from_data(
            TensorData::new(Rng::new(seed).normals(count), shape),
            (&Default::default(), DType::F64),
        )
    }

    #[test]
    fn trained_and_frozen_layers_are_the_same_map() -> Result<()> {
        for (channels, image, units, kernel) in [
            (2, 4, &[2, 3][..], 3),
            (3, 5, &[1, 1], 3),
            (2, 6, &[1, 2, 1], 5),
            (1, 3, &[2], 1),
            // Runs of equal layers, one after another.
            (2, 4, &[2, 2, 2, 1, 1, 1, 3], 3),
        ] {
            let mut layer = ConvMonLipConfig {
                kernel,
                ..config(channels, image, units)
            }
            .init::<Flex>(&Default::default())?;
            let m: usize = units.iter().sum();
            let bias = Rng::new(7).normals(m + channels);
            let place = |v: &[f64]| Param::from_tensor(vector(v.to_vec(), &Default::default(), DType::F64));
            (layer.bias, layer.output_bias) = (place(&bias[..m]), place(&bias[m..]));
            let frozen = layer.freeze::<f64>()?;
            assert!(frozen.verify().holds());
            let x = images::<Flex>([3, channels, image, image], 2);
            let expected = frozen.forward(&numbers(x.clone()))?;
            for (a, b) in numbers(layer.forward(x)).iter().zip(&expected) {
                assert!((a - b).abs() < 1e-10, "{channels} {image} {units:?}: {a} {b}");
            }
        }
        Ok(())
    }

    #[test]
    fn gradients_are_central_differences_on_every_path() -> Result<()> {
        let config = config(2, 4, &[2, 1]);
        let weights = Rng::new(1).normals(2 * 2 * 16);
        let device = Default::default();
        let layer = config.init::<F>(&device)?;
        let x = images::<F>([2, 2, 4, 4], 3).require_grad();
        let weigh = |y: Tensor<F, 4>| {
            let w = Tensor::from_data(
                TensorData::new(weights.clone(), [2, 2, 4, 4]),
                (&device, DType::F64),
            );
            (y * w).sum()
        };
        let grads = weigh(layer.forward(x.clone())).backward();
        let value = |layer: &ConvMonLip<F>, x: Tensor<F, 4>| numbers(weigh(layer.forward(x)))[0];
        let h = 1e-6;
        // Every entry of x, and some of every parameter.
        let dx = numbers(x.grad(&grads).unwrap());
        let at = numbers(x.clone());
        for i in (0..at.len()).step_by(5) {
            let moved = |by: f64| {
                let mut v = at.clone();
                v[i] += by;
                Tensor::from_data(TensorData::new(v, [2, 2, 4, 4]), (&device, DType::F64))
            };
            let slope = (value(&layer, moved(h)) - value(&layer, moved(-h))) / (2.0 * h);
            assert!((dx[i] - slope).abs() < 1e-7, "x[{i}]: {} {slope}", dx[i]);
        }
        let check = |name: &str, gradient: Vec<f64>, change: &dyn Fn(&mut ConvMonLip<F>, usize, f64)| {
            for i in (0..gradient.len()).step_by(7) {
                let shifted = |by: f64| {
                    let mut other = layer.clone();
                    change(&mut other, i, by);
                    value(&other, x.clone())
                };
                let slope = (shifted(h) - shifted(-h)) / (2.0 * h);
                assert!(
                    (gradient[i] - slope).abs() < 1e-6,
                    "{name}[{i}]: {} {slope}",
                    gradient[i]
                );
            }
        };
        fn move_by<const D: usize>(param: &mut Param<Tensor<F, D>>, i: usize, by: f64) {
            let shape = param.val().dims();
            let mut v = numbers(param.val());
            v[i] += by;
            let data = TensorData::new(v, shape);
            *param = Param::from_tensor(Tensor::from_data(data, (&Default::default(), DType::F64)));
        }
        let of = |t: Option<Tensor<Flex, 3>>| numbers(t.unwrap());
        check("q", of(layer.q.val().grad(&grads)), &|l, i, by| {
            move_by(&mut l.q, i, by)
        });
        check("ab 0", of(layer.ab[0].val().grad(&grads)), &|l, i, by| {
            move_by(&mut l.ab[0], i, by)
        });
        check("ab 1", of(layer.ab[1].val().grad(&grads)), &|l, i, by| {
            move_by(&mut l.ab[1], i, by)
        });
        let gains = numbers(layer.gains.val().grad(&grads).unwrap());
        check("gains", gains, &|l, i, by| move_by(&mut l.gains, i, by));
        let bias = numbers(layer.bias.val().grad(&grads).unwrap());
        check("bias", bias, &|l, i, by| move_by(&mut l.bias, i, by));

        // The portable path of other backends.
        type N = Autodiff<NdArray<f64>>;
        let other = config.init::<N>(&Default::default())?;
        let y = images::<N>([2, 2, 4, 4], 3).require_grad();
        let w = Tensor::from_data(
            TensorData::new(weights.clone(), [2, 2, 4, 4]),
            (&Default::default(), DType::F64),
        );
        let grads = (other.forward(y.clone()) * w).sum().backward();
        for (a, b) in numbers(y.grad(&grads).unwrap()).iter().zip(&dx) {
            assert!((a - b).abs() < 1e-8, "{a} {b}");
        }
        Ok(())
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        let good = config(2, 4, &[2]);
        for bad in [
            ConvMonLipConfig {
                channels: 0,
                ..good.clone()
            },
            ConvMonLipConfig {
                image: 0,
                ..good.clone()
            },
            ConvMonLipConfig {
                kernel: 2,
                ..good.clone()
            },
            ConvMonLipConfig {
                units: vec![],
                ..good.clone()
            },
            ConvMonLipConfig {
                activation: Activation::Tanh,
                ..good.clone()
            },
        ] {
            assert!(bad.init::<Flex>(&device).is_err(), "{bad:?}");
        }
    }
}
