//! Adam.

#[cfg(feature = "cuda")]
use burn::backend::Cuda;
use burn::backend::Flex;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
#[cfg(feature = "gpu")]
use burn::tensor::{DType, TensorMetadata};

use super::on;
use crate::backend::{Native, portable};
use crate::base::wrap;
use crate::spec::AdamStep;

/// One step of Adam: the new parameters and moments from the old ones and the gradient.
pub(crate) fn adam_step<B: Backend, const D: usize>(
    tensors: [Tensor<B, D>; 4],
    step: AdamStep,
) -> [Tensor<B, D>; 3] {
    let mut native = Err(tensors.map(|t| t.into_primitive().tensor()));
    native = native.or_else(|a| on::<B, Flex, 4, 3>(a, |a| Flex::adam_step(a, step)));
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        #[cfg(feature = "cuda")]
        {
            type D = Cuda;
            native = native.or_else(|a| on::<B, D, 4, 3>(a, |a| D::adam_step(a, step)));
        }
        #[cfg(feature = "wgpu")]
        {
            type D = Wgpu;
            native = native.or_else(|a| on::<B, D, 4, 3>(a, |a| D::adam_step(a, step)));
        }
    }
    match native {
        Ok(tensors) => tensors.map(wrap),
        Err(tensors) => portable::adam_step(tensors.map(wrap), step),
    }
}
