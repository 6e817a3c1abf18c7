//! The order of images between layers.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::ops;

/// Most groups that a batch of images is divided into.
const GROUPS: usize = 16;

/// Images in groups of equal size, channel by channel in each, `[groups, channels, images, size,
/// size]`.
///
/// A convolution is then one product per group with nothing to be rearranged, and the gradient of
/// its kernels a sum of as many products, enough to keep a GPU busy.
pub struct ImageGroups<B: Backend>(
    /// `[groups, channels, images, size, size]`.
    pub Tensor<B, 5>,
);

impl<B: Backend> ImageGroups<B> {
    /// Of images one after the other, `[batch, channels, size, size]`.
    pub fn of(x: Tensor<B, 4>) -> Self {
        let [batch, channels, size, _] = x.dims();
        let groups = (1..=GROUPS.min(batch)).rev().find(|g| batch.is_multiple_of(*g));
        let groups = groups.unwrap_or(1);
        let images = batch / groups;
        let x = ops::exchanged(x.reshape([groups, images, channels, size * size]));
        ImageGroups(x.reshape([groups, channels, images, size, size]))
    }

    /// A map of all groups.
    pub fn map(self, f: impl FnOnce(Tensor<B, 5>) -> Tensor<B, 5>) -> Self {
        ImageGroups(f(self.0))
    }

    /// The images one after the other.
    pub fn images(self) -> Tensor<B, 4> {
        let [groups, channels, images, size, _] = self.0.dims();
        let x = self.0.reshape([groups, channels, images, size * size]);
        ops::exchanged(x).reshape([groups * images, channels, size, size])
    }
}
