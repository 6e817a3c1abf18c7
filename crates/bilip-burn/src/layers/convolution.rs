//! Convolutions of bounded norm.

use bilip::{Convolution, Real, Rng};
use burn::config::Config;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use super::groups::ImageGroups;
use crate::base::{Error, Result};
use crate::ops;
use crate::spec::{MatmulPrecision, Window};

/// Settings of a [`NormalizedConv`].
#[derive(Config, Debug, PartialEq)]
pub struct NormalizedConvConfig {
    /// Channels that go in and come out.
    pub channels: [usize; 2],
    /// The side of the images that go in.
    pub size: usize,
    /// The odd side of the kernels.
    #[config(default = 3)]
    pub kernel: usize,
    /// 1, or 2 for half as many pixels each way.
    #[config(default = 1)]
    pub stride: usize,
    /// The bound on the norm.
    #[config(default = 1.0)]
    pub bound: f64,
    /// Whether the kernels themselves are scaled down to the bound after every step, as by
    /// projected gradient descent, instead of the map that they make in the forward pass.
    #[config(default = false)]
    pub projected: bool,
    /// Seed of the initial kernels.
    #[config(default = 0)]
    pub seed: u64,
    /// Precision of the parameters.
    #[config(default = "DType::F32")]
    pub dtype: DType,
}

/// A convolution with zeros around the image and no bias, scaled down where its norm would exceed a
/// bound.
///
/// The norm is that of the whole map from images to images, stride included, by a power iteration
/// on images that is carried from step to step; not that of the kernels as a flat matrix, which can
/// be smaller by a factor of up to 3.
#[derive(Module, Debug)]
pub struct NormalizedConv<B: Backend> {
    /// `[outputs, inputs, kernel, kernel]`.
    weight: Param<Tensor<B, 4>>,
    /// The image that is stretched most as known so far, `[1, inputs, size, size]`; not trained.
    image: Param<Tensor<B, 4>>,
    stride: usize,
    #[module(skip)]
    bound: f64,
    #[module(skip)]
    projected: bool,
}

impl NormalizedConvConfig {
    /// The convolution, He-normal.
    ///
    /// # Errors
    /// On sizes of zero, even kernels, strides other than 1 and 2, odd images with stride 2, and a
    /// bound that is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Result<NormalizedConv<B>> {
        let NormalizedConvConfig {
            channels: [inputs, outputs],
            size,
            kernel,
            stride,
            bound,
            projected,
            seed,
            dtype,
        } = self.clone();
        for (name, value) in [("inputs", inputs), ("outputs", outputs), ("size", size)] {
            if value == 0 {
                return Err(Error::setting(name, value, "must be at least 1"));
            }
        }
        if kernel.is_multiple_of(2) {
            return Err(Error::setting("kernel", kernel, "must be odd"));
        }
        if !(stride == 1 || (stride == 2 && size.is_multiple_of(2))) {
            return Err(Error::setting(
                "stride",
                stride,
                "must be 1, or 2 for images of even side",
            ));
        }
        if !(bound > 0.0 && bound.is_finite()) {
            return Err(Error::setting("bound", bound, "must be positive"));
        }
        let mut rng = Rng::new(seed);
        let deviation = (2.0 / (inputs * kernel * kernel) as f64).sqrt();
        let tensor = |values: Vec<f64>, shape: [usize; 4]| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Tensor::<B, 4>::from_data(data, (device, dtype))
        };
        let values = rng.normals(outputs * inputs * kernel * kernel);
        let values = values.iter().map(|v| deviation * v).collect();
        let start = tensor(rng.normals(inputs * size * size), [1, inputs, size, size]);
        let mut layer = NormalizedConv {
            weight: Param::from_tensor(tensor(values, [outputs, inputs, kernel, kernel])),
            image: Param::from_tensor(start).set_require_grad(false),
            stride,
            bound,
            projected,
        };
        for _ in 0..30 {
            layer = layer.settle();
        }
        Ok(layer)
    }
}

impl<B: Backend> NormalizedConv<B> {
    /// The side of the kernels.
    fn kernel(&self) -> usize {
        self.weight.val().dims()[2]
    }

    /// Channels that go in and come out.
    pub fn channels(&self) -> [usize; 2] {
        let [outputs, inputs, _, _] = self.weight.val().dims();
        [inputs, outputs]
    }

    /// The side of the images.
    pub fn size(&self) -> usize {
        self.image.val().dims()[2]
    }

    fn window(&self) -> Window {
        Window {
            kernel: self.kernel(),
            stride: self.stride,
        }
    }

    /// The kernels as a matrix, `[1, outputs, inputs·kernel²]`.
    fn matrix(&self) -> Tensor<B, 3> {
        let [outputs, inputs, kernel, _] = self.weight.val().dims();
        self.weight.val().reshape([1, outputs, inputs * kernel * kernel])
    }

    /// What the kernels make of the image that is stretched most.
    fn stretched(&self, matrix: Tensor<B, 3>) -> Tensor<B, 3> {
        let image = self.image.val().unsqueeze_dim::<5>(2);
        let y = ops::convolve(matrix, image, self.window(), MatmulPrecision::Full);
        let [_, outputs, _, side, _] = y.dims();
        y.reshape([1, outputs, side * side])
    }

    /// The layer after one more step of the power iteration, and with its kernels scaled down if
    /// they are projected.
    pub fn settle(self) -> Self {
        let matrix = self.matrix().detach();
        let y = self.stretched(matrix.clone());
        let [_, inputs, size, _] = self.image.val().dims();
        let columns = ops::matmul(matrix.swap_dims(1, 2), y);
        let back = ops::fold(columns, self.window(), [1, inputs, 1, size, size]);
        let norm = (back.clone() * back.clone()).sum().add_scalar(1e-30).sqrt();
        let next = (back / norm.unsqueeze())
            .detach()
            .reshape([1, inputs, size, size]);
        let settled = NormalizedConv {
            image: self.image.map(|_| next),
            ..self
        };
        if !settled.projected {
            return settled;
        }
        let scale = settled.scale().detach().unsqueeze::<4>();
        NormalizedConv {
            weight: settled.weight.map(|w| {
                let tracked = w.is_require_grad();
                (w * scale).detach().set_require_grad(tracked)
            }),
            ..settled
        }
    }

    /// `min(1, bound/‖W‖)`, differentiable in the weights.
    fn scale(&self) -> Tensor<B, 1> {
        self.norm().div_scalar(self.bound).clamp_min(1.0).recip()
    }

    /// The norm as known so far, differentiable in the weights.
    fn norm(&self) -> Tensor<B, 1> {
        let y = self.stretched(self.matrix());
        (y.clone() * y).sum().add_scalar(1e-30).sqrt()
    }

    /// `x ↦ W∗x·min(1, bound/‖W‖)`.
    ///
    /// # Shapes
    /// `[batch, inputs, size, size] → [batch, outputs, size/stride, size/stride]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        ImageGroups::of(x).map(|x| self.on_groups(x)).images()
    }

    /// The same of images in [groups](ImageGroups).
    pub fn on_groups(&self, x: Tensor<B, 5>) -> Tensor<B, 5> {
        let matrix = match self.projected {
            true => self.matrix(),
            false => self.matrix() * self.scale().unsqueeze(),
        };
        ops::convolve(matrix, x, self.window(), MatmulPrecision::TensorCores)
    }

    /// The sum of the squared weights.
    pub fn square(&self) -> Tensor<B, 1> {
        let matrix = self.matrix();
        // Row by row first: GPUs do not like one long sum.
        (matrix.clone() * matrix).sum_dim(2).sum()
    }

    /// The bound on the norm, which training sees by power iteration.
    pub fn bound(&self) -> f64 {
        self.bound
    }

    /// The scaled convolution with explicit kernels.
    ///
    /// # Errors
    /// When a weight is not a finite number.
    pub fn freeze<T: Real>(&self) -> Result<Convolution<T>> {
        let norm = self.norm().to_data().iter::<f64>().next().unwrap_or(f64::NAN);
        let factor = 1.0 / (norm / self.bound).max(1.0);
        let weight = self.weight.val().to_data();
        let weight = weight.iter::<f64>().map(|v| T::round_from(v * factor)).collect();
        Ok(Convolution::new(
            self.channels(),
            self.size(),
            self.kernel(),
            self.stride,
            weight,
        )?)
    }

    /// A proved bound on the norm of the scaled convolution, see [`Convolution::norm_bound`].
    ///
    /// # Errors
    /// When a weight is not a finite number.
    pub fn certified_norm(&self) -> Result<f64> {
        Ok(self.freeze::<f64>()?.norm_bound()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::module::conv2d;
    use burn::tensor::ops::ConvOptions;

    fn images<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<Flex, D> {
        let values = Rng::new(seed).normals(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), (&Default::default(), DType::F64))
    }

    fn numbers<const D: usize>(t: Tensor<Flex, D>) -> Vec<f64> {
        t.to_data().iter::<f64>().collect()
    }

    #[test]
    fn windows_and_their_adjoint_belong_together() {
        for (kernel, stride) in [(3, 1), (3, 2), (1, 2), (5, 1), (5, 2)] {
            let window = Window { kernel, stride };
            let x = images([2, 3, 2, 6, 6], 1);
            let columns = ops::unfold(x.clone(), window);
            let y = images(columns.dims(), 2);
            // ⟨Ux, y⟩ = ⟨x, Uᵀy⟩, and the gradient is the adjoint.
            let inner = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>();
            let back = ops::fold(y.clone(), window, x.dims());
            let (left, right) = (
                inner(numbers(columns), numbers(y.clone())),
                inner(numbers(x.clone()), numbers(back.clone())),
            );
            assert!((left - right).abs() < 1e-10, "{left} {right}");
            let tracked = Tensor::<Autodiff<Flex>, 5>::from_inner(x).require_grad();
            let weighted = ops::unfold(tracked.clone(), window) * Tensor::from_inner(y);
            let gradient = tracked.grad(&weighted.sum().backward()).unwrap();
            for (a, b) in numbers(gradient).iter().zip(numbers(back)) {
                assert!((a - b).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn gradients_are_those_of_windows_and_a_product() {
        type N = burn::backend::NdArray<f64>;
        fn of<B: Backend<Device: Default>>(matrix: &[f64], x: &[f64], window: Window) -> [Vec<f64>; 3] {
            let tensor = |values: &[f64]| TensorData::new(values.to_vec(), [values.len()]);
            let make = |values: &[f64]| {
                Tensor::<Autodiff<B>, 1>::from_data(tensor(values), (&Default::default(), DType::F64))
                    .require_grad()
            };
            let (matrix, x) = (make(matrix), make(x));
            let square = window.kernel * window.kernel;
            let y = ops::convolve(
                matrix.clone().reshape([1, 4, 3 * square]),
                x.clone().reshape([2, 3, 5, 6, 6]),
                window,
                MatmulPrecision::Full,
            );
            // A cotangent with no symmetry.
            let weights = Rng::new(5).normals(y.shape().num_elements());
            let weights = TensorData::new(weights, y.shape());
            let weights = Tensor::from_data(weights, (&Default::default(), DType::F64));
            let grads = (y.clone() * weights).sum().backward();
            let numbers = |t: Tensor<B, 1>| t.to_data().iter::<f64>().collect();
            [
                y.to_data().iter::<f64>().collect(),
                numbers(matrix.grad(&grads).unwrap()),
                numbers(x.grad(&grads).unwrap()),
            ]
        }
        for (kernel, stride) in [(3, 1), (3, 2), (1, 1), (1, 2), (5, 1), (5, 2), (13, 1)] {
            let window = Window { kernel, stride };
            let matrix = Rng::new(1).normals(4 * 3 * kernel * kernel);
            let x = Rng::new(2).normals(2 * 3 * 5 * 36);
            let (ours, plain) = (of::<Flex>(&matrix, &x, window), of::<N>(&matrix, &x, window));
            for (ours, plain) in ours.iter().zip(&plain) {
                assert_eq!(ours.len(), plain.len());
                for (a, b) in ours.iter().zip(plain) {
                    assert!((a - b).abs() < 1e-10, "{kernel} {stride}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn convolutions_are_those_of_burn_and_keep_their_bound() -> Result<()> {
        for (kernel, stride, bound) in [(3, 1, 0.7), (3, 2, 1.0), (3, 1, 100.0), (1, 2, 0.5), (5, 1, 1.0)] {
            let device = Default::default();
            let mut layer = NormalizedConvConfig::new([3, 4], 6)
                .with_kernel(kernel)
                .with_stride(stride)
                .with_bound(bound)
                .with_seed(3)
                .with_dtype(DType::F64)
                .init::<Flex>(&device)?;
            for _ in 0..300 {
                layer = layer.settle();
            }
            let x = images([2, 3, 6, 6], 1);
            let norm = numbers(layer.norm())[0];
            let factor = (bound / norm).min(1.0);
            let options = ConvOptions::new([stride; 2], [(kernel - 1) / 2; 2], [1, 1], 1);
            let expected = conv2d(x.clone(), layer.weight.val(), None, options).mul_scalar(factor);
            let found = layer.forward(x.clone());
            assert_eq!(found.dims(), [2, 4, 6 / stride, 6 / stride]);
            for (a, b) in numbers(found.clone()).iter().zip(numbers(expected)) {
                assert!((a - b).abs() < 1e-12);
            }
            let certified = layer.certified_norm()?;
            // The torus knows nothing of the border, which takes a little off.
            assert!(
                certified >= norm * factor - 1e-9 && certified < 1.5 * norm * factor,
                "{certified} {norm}"
            );
            let size = |t: Tensor<Flex, 4>| numbers(t).iter().map(|v| v * v).sum::<f64>().sqrt();
            for seed in 0..20 {
                let x = images([1, 3, 6, 6], 10 + seed);
                assert!(size(layer.forward(x.clone())) <= certified * size(x));
            }
        }
        Ok(())
    }

    #[test]
    fn projected_kernels_stay_within_their_bound_through_training_steps() -> Result<()> {
        use burn::optim::{GradientsParams, Optimizer, SgdConfig};
        type F = Autodiff<Flex>;
        let device = Default::default();
        let config = NormalizedConvConfig::new([2, 3], 6)
            .with_bound(0.5)
            .with_dtype(DType::F64)
            .with_projected(true);
        let mut layer = config.init::<F>(&device)?;
        let mut optimizer = SgdConfig::new().init::<F, NormalizedConv<F>>();
        let x = Tensor::<F, 4>::from_inner(images([4, 2, 6, 6], 1));
        let mut values = Vec::new();
        for _ in 0..20 {
            // Pulls the kernels to larger norms.
            let y = layer.forward(x.clone());
            let loss = (y.clone() * y).mean().neg();
            values.push(numbers(loss.clone().inner())[0]);
            let gradients = GradientsParams::from_grads(loss.backward(), &layer);
            layer = optimizer.step(0.05, layer, gradients).settle();
            let norm = numbers(layer.norm().inner())[0];
            assert!(norm <= 0.5 * (1.0 + 1e-9), "{norm}");
        }
        assert!(values[19] < values[0], "{values:?}");
        assert!(layer.freeze::<f64>()?.norm_bound()? < 0.75);
        Ok(())
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let device = Default::default();
        let good = NormalizedConvConfig::new([1, 1], 4);
        assert!(good.init::<Flex>(&device).is_ok());
        for bad in [
            NormalizedConvConfig {
                channels: [0, 1],
                ..good.clone()
            },
            NormalizedConvConfig {
                size: 5,
                ..good.clone().with_stride(2)
            },
            good.clone().with_stride(3),
            good.clone().with_kernel(2),
            good.clone().with_bound(0.0),
        ] {
            assert!(bad.init::<Flex>(&device).is_err(), "{bad:?}");
        }
    }
}
