//! Between tensors, their primitives and plain numbers.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};

/// A vector in the given precision.
pub(crate) fn vector<B: Backend>(values: Vec<f64>, device: &B::Device, dtype: DType) -> Tensor<B, 1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]).convert_dtype(dtype), (device, dtype))
}

/// The numbers of a tensor, in row-major order.
pub(crate) fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

pub(crate) fn wrap<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
