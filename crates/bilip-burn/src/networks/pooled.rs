//! The end of a feature map of images.

use bilip::Rng;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::ops;

/// Batch normalization, ReLU, the mean over the image and a fixed random projection.
#[derive(Module, Debug)]
pub struct PooledProjection<B: Backend> {
    pub(crate) norm: BatchNorm<B>,
    /// `[channels, outputs]`, not trained.
    pub(crate) projection: Param<Tensor<B, 2>>,
}

impl<B: Backend> PooledProjection<B> {
    /// With a matrix of normal numbers of deviation 0.05, as published.
    pub fn new(channels: usize, outputs: usize, seed: u64, device: &B::Device) -> Self {
        let values = Rng::new(seed).normals(channels * outputs);
        let values: Vec<f64> = values.iter().map(|v| 0.05 * v).collect();
        let data = TensorData::new(values, [channels, outputs]).convert_dtype(DType::F32);
        let projection = Param::from_tensor(Tensor::from_data(data, (device, DType::F32)));
        PooledProjection {
            norm: BatchNormConfig::new(channels).init(device),
            projection: projection.set_require_grad(false),
        }
    }

    /// The features of images in [groups](crate::ImageGroups).
    ///
    /// # Shapes
    /// `[groups, channels, images, size, size] → [groups·images, outputs]`
    pub fn forward(&self, x: Tensor<B, 5>) -> Tensor<B, 2> {
        let [groups, channels, images, size, _] = x.dims();
        let mean = relu(self.norm.forward(x))
            .reshape([groups, channels, images, size * size])
            .mean_dim(3)
            .reshape([groups, channels, images])
            .swap_dims(1, 2)
            .reshape([groups * images, channels]);
        ops::matmul(mean, self.projection.val())
    }

    /// The sum of the squares of the batch normalization's factors and shifts.
    pub fn square(&self) -> Tensor<B, 1> {
        let (gamma, beta) = (self.norm.gamma.val(), self.norm.beta.val());
        (gamma.clone() * gamma).sum() + (beta.clone() * beta).sum()
    }
}
