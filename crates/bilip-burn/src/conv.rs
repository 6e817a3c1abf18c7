//! Monotone layers on images, and the networks made of them.
//!
//! Everything linear happens at the frequencies of the Fourier transform ([`bilip::ConvMonLip`] has the mathematics). A complex matrix is the real one of twice the size,
//! `[[Re, −Im], [Im, Re]]`, of which products, adjoints and inverses are those of the complex ones: so the transforms of all frequencies are one batch of
//! real ones, on every backend. The Fourier transform itself is two products with small matrices.

use std::sync::Arc;

use bilip::{Activation, Bounds, ConvFree, Kernels, Real, Rng};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::bounds::vector;
use crate::error::{Error, Result};
use crate::modules::HouseholderOrthogonal;
use crate::ops;
use crate::portable::activate;

/// Settings of a [`ConvMonLip`] layer.
#[derive(Clone, Debug)]
pub struct ConvConfig {
    /// Number of input and output channels.
    pub channels: usize,
    /// The side of the images.
    pub image: usize,
    /// Hidden channels, layer by layer.
    pub units: Vec<usize>,
    /// The odd side of the free kernels.
    pub kernel: usize,
    /// The activation: a positively homogeneous one, which needs no ψ.
    pub activation: Activation,
    /// The bounds.
    pub bounds: Bounds,
    /// The skip connection of the published code, which moves the bounds.
    pub published: bool,
    /// Seed of the initial parameters.
    pub seed: u64,
    /// Precision of the parameters.
    pub dtype: DType,
}

impl ConvConfig {
    /// A ReLU layer with kernels of 3 × 3.
    pub fn new(channels: usize, image: usize, units: &[usize], bounds: Bounds) -> Self {
        ConvConfig {
            channels,
            image,
            units: units.to_vec(),
            kernel: 3,
            activation: Activation::Relu,
            bounds,
            published: false,
            seed: 0,
            dtype: DType::F32,
        }
    }

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
            self.channels,
            self.image,
            &self.units,
            self.kernel,
            self.bounds,
            self.activation,
            0.0,
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
            fourier: Fourier::new(self.image, self.kernel, device, self.dtype),
            config: Arc::new(self.clone()),
        })
    }
}

/// The Fourier transform of images, as tables for products. Half of the columns' frequencies are enough; all rows are kept.
#[derive(Module, Debug)]
struct Fourier<B: Backend> {
    /// Along the columns, `[size, 2·half]`: `cos | −sin`.
    columns: Param<Tensor<B, 2>>,
    /// Along the rows, both ways, `[size, 2·size]`: `cos | sin`.
    rows: Param<Tensor<B, 2>>,
    /// Back along the columns, `[2·half, size]`.
    back: Param<Tensor<B, 2>>,
    /// Of the kernels' entries, `[kernel², 2·size·half]`.
    kernel: Param<Tensor<B, 2>>,
    size: usize,
}

impl<B: Backend> Fourier<B> {
    fn new(size: usize, kernel: usize, device: &B::Device, dtype: DType) -> Self {
        let half = size / 2 + 1;
        let turn = |k: usize| std::f64::consts::TAU * (k % size) as f64 / size as f64;
        let table = |rows: usize, columns: usize, f: &dyn Fn(usize, usize) -> f64| {
            let values: Vec<f64> = (0..rows * columns).map(|k| f(k / columns, k % columns)).collect();
            let data = TensorData::new(values, [rows, columns]).convert_dtype(dtype);
            Param::from_tensor(Tensor::from_data(data, (device, dtype))).set_require_grad(false)
        };
        let weight = |j: usize| {
            let count = if j == 0 || 2 * j == size { 1.0 } else { 2.0 };
            count / (size * size) as f64
        };
        let radius = (kernel - 1) / 2;
        let shift = |a: usize| (a + size * kernel - radius) % size;
        let all = size * half;
        Fourier {
            columns: table(size, 2 * half, &|q, j| match j < half {
                true => turn(q * j).cos(),
                false => -turn(q * (j - half)).sin(),
            }),
            rows: table(size, 2 * size, &|p, i| match i < size {
                true => turn(p * i).cos(),
                false => turn(p * (i - size)).sin(),
            }),
            back: table(2 * half, size, &|j, q| match j < half {
                true => weight(j) * turn(q * j).cos(),
                false => -weight(j - half) * turn(q * (j - half)).sin(),
            }),
            kernel: table(kernel * kernel, 2 * all, &|d, f| {
                let (part, f) = (f / all, f % all);
                let angle = turn(f / half * shift(d / kernel) + f % half * shift(d % kernel));
                if part == 0 { angle.cos() } else { -angle.sin() }
            }),
            size,
        }
    }

    fn half(&self) -> usize {
        self.size / 2 + 1
    }

    /// Along rows: real and imaginary parts, `[count, half, size]` each, times `cos ± i·sin`.
    fn turn_rows(&self, re: Tensor<B, 3>, im: Tensor<B, 3>, sign: f64) -> (Tensor<B, 3>, Tensor<B, 3>) {
        let [count, half, size] = re.dims();
        let product = |part: Tensor<B, 3>| {
            let turned = ops::matmul(part.reshape([count * half, size]), self.rows.val());
            let cos = turned
                .clone()
                .slice([0..count * half, 0..size])
                .reshape([count, half, size]);
            let sin = turned
                .slice([0..count * half, size..2 * size])
                .reshape([count, half, size]);
            (cos, sin)
        };
        let ((re_cos, re_sin), (im_cos, im_sin)) = (product(re), product(im));
        (re_cos - im_sin.mul_scalar(sign), im_cos + re_sin.mul_scalar(sign))
    }

    /// Images to spectra.
    ///
    /// # Shapes
    /// `[batch, channels, size, size] → [size·half, 2·channels, batch]`, real parts before imaginary ones
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 3> {
        let [batch, channels, size, _] = x.dims();
        let (half, count) = (self.half(), batch * channels);
        let a =
            ops::matmul(x.reshape([count * size, size]), self.columns.val()).reshape([count, size, 2 * half]);
        let part =
            |range: std::ops::Range<usize>| a.clone().slice([0..count, 0..size, range]).swap_dims(1, 2);
        let (re, im) = self.turn_rows(part(0..half), part(half..2 * half), -1.0);
        let order = |t: Tensor<B, 3>| {
            t.reshape([batch, channels, half, size])
                .permute([3, 2, 1, 0])
                .reshape([size * half, channels, batch])
        };
        Tensor::cat(vec![order(re), order(im)], 1)
    }

    /// Spectra to images.
    ///
    /// # Shapes
    /// `[size·half, 2·channels, batch] → [batch, channels, size, size]`
    fn inverse(&self, z: Tensor<B, 3>) -> Tensor<B, 4> {
        let [all, twice, batch] = z.dims();
        let (half, size, channels) = (self.half(), self.size, twice / 2);
        let count = batch * channels;
        let part = |start: usize| {
            z.clone()
                .slice([0..all, start..start + channels, 0..batch])
                .reshape([size, half, channels, batch])
                .permute([3, 2, 1, 0])
                .reshape([count, half, size])
        };
        let (re, im) = self.turn_rows(part(0), part(channels), 1.0);
        let both = Tensor::cat(vec![re, im], 1).swap_dims(1, 2);
        ops::matmul(both.reshape([count * size, 2 * half]), self.back.val())
            .reshape([batch, channels, size, size])
    }

    /// Kernels, `[outputs, inputs, kernel²]`, at all frequencies: real and imaginary parts, `[size·half, outputs, inputs]`.
    fn of_kernels(&self, kernels: Tensor<B, 3>) -> (Tensor<B, 3>, Tensor<B, 3>) {
        let [outputs, inputs, square] = kernels.dims();
        let all = self.size * self.half();
        let z = ops::matmul(kernels.reshape([outputs * inputs, square]), self.kernel.val());
        let part = |range: std::ops::Range<usize>| {
            z.clone()
                .slice([0..outputs * inputs, range])
                .reshape([outputs, inputs, all])
                .permute([2, 0, 1])
        };
        (part(0..all), part(all..2 * all))
    }
}

/// `[[Re, −Im], [Im, Re]]` of every matrix.
fn embed<B: Backend>(re: Tensor<B, 3>, im: Tensor<B, 3>) -> Tensor<B, 3> {
    let top = Tensor::cat(vec![re.clone(), im.clone().neg()], 2);
    Tensor::cat(vec![top, Tensor::cat(vec![im, re], 2)], 1)
}

fn rows<B: Backend>(t: &Tensor<B, 3>, start: usize, count: usize) -> Tensor<B, 3> {
    let [all, _, columns] = t.dims();
    t.clone().slice([0..all, start..start + count, 0..columns])
}

/// The Cayley transforms of tall complex matrices by their parts: the square part and the rest, embedded each.
fn cayley<B: Backend>(re: Tensor<B, 3>, im: Tensor<B, 3>) -> (Tensor<B, 3>, Option<Tensor<B, 3>>) {
    let [_, height, n] = re.dims();
    let g = embed(rows(&re, 0, n), rows(&im, 0, n));
    let eye = Tensor::<B, 2>::eye(2 * n, &g.device())
        .cast(g.dtype())
        .unsqueeze::<3>();
    let w = g.clone() - g.swap_dims(1, 2) + eye.clone();
    if height == n {
        return (ops::inverse(w).mul_scalar(2.0) - eye, None);
    }
    let h = embed(rows(&re, n, height - n), rows(&im, n, height - n));
    let w = w + ops::matmul(h.clone().swap_dims(1, 2), h.clone());
    let x = ops::inverse(w);
    let below = ops::matmul(h, x.clone()).mul_scalar(-2.0);
    (x.mul_scalar(2.0) - eye, Some(below))
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
    fourier: Fourier<B>,
    #[module(skip)]
    config: Arc<ConvConfig>,
}

impl<B: Backend> ConvMonLip<B> {
    /// The bounds that the layer is built for; the published variant has others.
    pub fn bounds(&self) -> Bounds {
        self.config.bounds
    }

    /// Kernels with the norm that their gain says.
    fn scaled(&self, kernels: &Param<Tensor<B, 3>>, gain: usize) -> Tensor<B, 3> {
        let kernels = kernels.val();
        let norm = (kernels.clone() * kernels.clone()).sum().add_scalar(1e-30).sqrt();
        kernels * (self.gains.val().slice(gain..gain + 1) / norm).unsqueeze()
    }

    /// Q at all frequencies by its parts, `[all, m, channels]` each.
    fn q(&self) -> (Tensor<B, 3>, Tensor<B, 3>) {
        let (re, im) = self.fourier.of_kernels(self.scaled(&self.q, 0));
        let [_, m, c] = re.dims();
        if m < c {
            // A wide matrix is transformed by its adjoint.
            let (top, below) = cayley(re.swap_dims(1, 2), im.swap_dims(1, 2).neg());
            let (re, im) = parts(top, below);
            return (re.swap_dims(1, 2), im.swap_dims(1, 2).neg());
        }
        let (top, below) = cayley(re, im);
        parts(top, below)
    }

    /// `F(x)`.
    ///
    /// # Shapes
    /// `[batch, channels, image, image] → [batch, channels, image, image]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let config = &self.config;
        let [batch, channels, size, _] = x.dims();
        let (mu, nu, gamma) = (config.bounds.mu(), config.bounds.nu(), config.bounds.gap());
        let (q_re, q_im) = self.q();
        let mut s = Vec::new();
        let mut v = Vec::new();
        // Of the layer before: its rows of Q embedded, and Aᵀ.
        let mut before: Option<(Tensor<B, 3>, Tensor<B, 3>)> = None;
        let mut at = 0;
        for (k, &m) in config.units.iter().enumerate() {
            let (re, im) = self.fourier.of_kernels(self.scaled(&self.ab[k], k + 1));
            // J = [Aᴴ; Bᴴ].
            let (a_t, b_t) = cayley(re, im);
            let q_k = embed(rows(&q_re, at, m), rows(&q_im, at, m));
            let mut part = ops::matmul(a_t.clone().swap_dims(1, 2), q_k.clone());
            if let (Some((q_before, a_before)), Some(b_t)) = (before, b_t) {
                let b = b_t.swap_dims(1, 2);
                part = part - ops::matmul(b.clone(), q_before);
                v.push(ops::matmul(b, a_before).mul_scalar(2.0));
            }
            s.push(part);
            before = Some((q_k, a_t));
            at += m;
        }
        let s = Tensor::cat(s, 1);
        let spectrum = self.fourier.forward(x.clone());
        let driven = ops::matmul(s.clone(), spectrum).mul_scalar((2.0 * gamma).sqrt());
        let mut hidden = Vec::new();
        let mut at = 0;
        for (k, &m) in config.units.iter().enumerate() {
            let mut inputs = rows(&driven, 2 * at, 2 * m);
            if k > 0 {
                let z: &Tensor<B, 3> = &hidden[k - 1];
                inputs = inputs + ops::matmul(v[k - 1].clone(), z.clone());
            }
            let bias = self.bias.val().slice(at..at + m).reshape([1, m, 1, 1]);
            let images = self.fourier.inverse(inputs) + bias;
            let count = batch * m * size;
            let z =
                activate(config.activation, images.reshape([count, size])).reshape([batch, m, size, size]);
            hidden.push(self.fourier.forward(z));
            at += m;
        }
        let back = ops::matmul(s.swap_dims(1, 2), Tensor::cat(hidden, 1));
        let skip = match config.published {
            true => mu + 0.5 * (mu + nu) * (gamma.sqrt() - 1.0),
            false => mu,
        };
        let bias = self.output_bias.val().reshape([1, channels, 1, 1]);
        self.fourier.inverse(back).mul_scalar((0.5 * gamma).sqrt()) + x.mul_scalar(skip) + bias
    }

    /// The free parameters in f64, as the core crate takes them.
    ///
    /// # Errors
    /// When a parameter is not a finite number.
    pub fn free(&self) -> Result<ConvFree> {
        let numbers = |t: Tensor<B, 1>| t.to_data().iter::<f64>().collect::<Vec<_>>();
        let gains = numbers(self.gains.val());
        let kernels = |param: &Param<Tensor<B, 3>>, gain: f64| -> Result<Kernels> {
            let [outputs, inputs, _] = param.val().dims();
            let mut values: Vec<f64> = param.val().to_data().iter::<f64>().collect();
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
            published: self.config.published,
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

/// Real and imaginary parts of a transform given by its embedded square part and rest.
fn parts<B: Backend>(top: Tensor<B, 3>, below: Option<Tensor<B, 3>>) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let split = |t: &Tensor<B, 3>| {
        let [all, height, width] = t.dims();
        let part = |start: usize| t.clone().slice([0..all, start..start + height / 2, 0..width / 2]);
        (part(0), part(height / 2))
    };
    let (re, im) = split(&top);
    match below {
        None => (re, im),
        Some(below) => {
            let (re_below, im_below) = split(&below);
            (
                Tensor::cat(vec![re, re_below], 1),
                Tensor::cat(vec![im, im_below], 1),
            )
        }
    }
}

/// A bi-Lipschitz block on images: a [`ConvMonLip`] and, pixel by pixel, an orthogonal map of the channels by Householder reflections.
#[derive(Module, Debug)]
pub struct ConvBiLipNet<B: Backend> {
    monotone: ConvMonLip<B>,
    orthogonal: HouseholderOrthogonal<B>,
}

impl<B: Backend> ConvBiLipNet<B> {
    /// The block, with `max(channels/16, 10)` reflections.
    ///
    /// # Errors
    /// As [`ConvConfig::init`].
    pub fn new(config: &ConvConfig, device: &B::Device) -> Result<Self> {
        let reflections = (config.channels / 16).max(10);
        Ok(ConvBiLipNet {
            monotone: config.init(device)?,
            orthogonal: HouseholderOrthogonal::new(
                config.channels,
                reflections,
                config.seed ^ (1 << 48),
                device,
                config.dtype,
            )?,
        })
    }

    /// The monotone layer.
    pub fn monotone(&self) -> &ConvMonLip<B> {
        &self.monotone
    }

    /// The orthogonal map of the channels.
    pub fn orthogonal(&self) -> &HouseholderOrthogonal<B> {
        &self.orthogonal
    }

    /// `O(F(x))`.
    ///
    /// # Shapes
    /// `[batch, channels, image, image] → [batch, channels, image, image]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [batch, channels, size, _] = x.dims();
        let y = self
            .monotone
            .forward(x)
            .permute([0, 2, 3, 1])
            .reshape([batch * size * size, channels]);
        self.orthogonal
            .forward_many(y)
            .reshape([batch, size, size, channels])
            .permute([0, 3, 1, 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex, NdArray};

    type F = Autodiff<Flex>;

    fn config(channels: usize, image: usize, units: &[usize]) -> ConvConfig {
        ConvConfig {
            seed: 5,
            dtype: DType::F64,
            ..ConvConfig::new(channels, image, units, Bounds::new(0.3, 2.5).unwrap())
        }
    }

    fn images<B: Backend>(shape: [usize; 4], seed: u64) -> Tensor<B, 4> {
        let count = shape.iter().product();
        Tensor::from_data(
            TensorData::new(Rng::new(seed).normals(count), shape),
            (&Default::default(), DType::F64),
        )
    }

    fn numbers<B: Backend, const D: usize>(t: Tensor<B, D>) -> Vec<f64> {
        t.to_data().iter::<f64>().collect()
    }

    #[test]
    fn trained_and_frozen_layers_are_the_same_map() -> Result<()> {
        for (channels, image, units, kernel) in [
            (2, 4, &[2, 3][..], 3),
            (3, 5, &[1, 1], 3),
            (2, 6, &[1, 2, 1], 5),
            (1, 3, &[2], 1),
        ] {
            for published in [false, true] {
                let mut layer = ConvConfig {
                    kernel,
                    published,
                    ..config(channels, image, units)
                }
                .init::<Flex>(&Default::default())?;
                let m: usize = units.iter().sum();
                let bias = Rng::new(7).normals(m + channels);
                let place =
                    |v: &[f64]| Param::from_tensor(vector(v.to_vec(), &Default::default(), DType::F64));
                (layer.bias, layer.output_bias) = (place(&bias[..m]), place(&bias[m..]));
                let frozen = layer.freeze::<f64>()?;
                assert_eq!(frozen.verify().holds(), !published);
                let x = images::<Flex>([3, channels, image, image], 2);
                let expected = frozen.forward(&numbers(x.clone()))?;
                for (a, b) in numbers(layer.forward(x)).iter().zip(&expected) {
                    assert!((a - b).abs() < 1e-10, "{channels} {image} {units:?}: {a} {b}");
                }
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
    fn a_block_keeps_its_bounds_between_images() -> Result<()> {
        let config = config(3, 4, &[2, 2]);
        let net = ConvBiLipNet::<Flex>::new(&config, &Default::default())?;
        let (a, b) = (images::<Flex>([40, 3, 4, 4], 1), images::<Flex>([40, 3, 4, 4], 2));
        let (fa, fb) = (net.forward(a.clone()), net.forward(b.clone()));
        let distances = |u: Tensor<Flex, 4>, v: Tensor<Flex, 4>| -> Vec<f64> {
            numbers(u - v)
                .chunks(48)
                .map(|d| d.iter().map(|v| v * v).sum::<f64>().sqrt())
                .collect()
        };
        for (dy, dx) in distances(fa, fb).iter().zip(distances(a, b)) {
            assert!((0.3 - 1e-9..=2.5 + 1e-9).contains(&(dy / dx)), "{}", dy / dx);
        }
        Ok(())
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        let good = config(2, 4, &[2]);
        for bad in [
            ConvConfig {
                channels: 0,
                ..good.clone()
            },
            ConvConfig {
                image: 0,
                ..good.clone()
            },
            ConvConfig {
                kernel: 2,
                ..good.clone()
            },
            ConvConfig {
                units: vec![],
                ..good.clone()
            },
            ConvConfig {
                activation: Activation::Tanh,
                ..good.clone()
            },
        ] {
            assert!(bad.init::<Flex>(&device).is_err(), "{bad:?}");
        }
    }
}
