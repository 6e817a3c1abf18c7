//! Device memory and the sizes of launches.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;
use cubecl::prelude::*;
use cubecl::{CubeDim, calculate_cube_count_elemwise};

/// Units of a cube in element-wise kernels.
pub const UNITS: u32 = 256;

/// A runtime of CubeCL that Burn has a backend for.
pub(crate) trait Gpu: CubeRuntime {}
impl<R: CubeRuntime> Gpu for R {}

/// Numbers in device memory, one after the other.
#[derive(Clone, Debug)]
pub struct Buffer<R: CubeRuntime>(pub CubeTensor<R>);

impl<R: CubeRuntime> Buffer<R> {
    pub fn of(tensor: &CubeTensor<R>) -> Self {
        Buffer(into_contiguous(tensor.clone()))
    }

    /// The tensor as it is in memory, if that is without gaps: transposed, maybe.
    pub fn dense(tensor: &CubeTensor<R>) -> Self {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let span: usize = (0..strides.len()).map(|k| strides[k] * (shape[k] - 1)).sum();
        match span < shape.num_elements() {
            true => Buffer(tensor.clone()),
            false => Buffer::of(tensor),
        }
    }

    pub fn client(&self) -> &ComputeClient<R> {
        &self.0.client
    }

    pub fn array(&self) -> ArrayArg<R> {
        self.0.clone().into_array_arg()
    }

    /// Another one on the same device, not yet filled.
    pub fn like(&self, len: usize) -> Self {
        // Kernels must be given some memory even where they will not touch it.
        self.shaped([len.max(1)])
    }

    pub fn shaped(&self, shape: impl Into<Shape>) -> Self {
        Buffer(empty_device_contiguous_dtype(
            self.0.client.clone(),
            self.0.device.clone(),
            shape.into(),
            DType::F32,
        ))
    }

    /// A launch with one unit a number.
    pub fn units(&self, count: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(UNITS);
        (calculate_cube_count_elemwise(self.client(), count, dim), dim)
    }
}

pub fn count(x: usize, y: usize, z: usize) -> CubeCount {
    CubeCount::Static(x as u32, y as u32, z as u32)
}

/// The cubes of a launch.
pub fn cubes_of(count: &CubeCount) -> usize {
    match count {
        CubeCount::Static(x, y, z) => *x as usize * *y as usize * *z as usize,
        CubeCount::Dynamic(_) => unreachable!("all launches here are of known size"),
    }
}
