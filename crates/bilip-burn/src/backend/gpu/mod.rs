//! The operations on GPUs: everything a layer does, forward and backward, in a few dozen launches.
//!
//! The mathematics is that of `cpu`, ordered for a device that likes few and large pieces of work:
//! all transforms of a layer go through each product together, and nothing waits for the host.
//! Single precision only.

mod adam;
mod cayley;
mod hidden;
mod inverse;
mod memory;
mod monlip;
mod plan;
mod product;
mod rearrange;
mod sums;
#[cfg(test)]
mod tests;
mod transforms;

use burn::tensor::DType;
use burn::tensor::ops::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::element::BoolElement;

use crate::backend::Native;
use crate::spec::{AdamStep, Layout, MatmulPrecision, Rearrangement};
use cayley::CayleyTape;
use memory::Gpu;
use monlip::MonLipTape;

/// Whether these kernels can run a layer; others take the portable path.
pub(crate) fn suits(layout: &Layout, dtype: DType) -> bool {
    dtype == DType::F32 && layout.extra + layout.hidden() >= layout.n
}

impl<R: Gpu, B: BoolElement> Native for CubeBackend<R, f32, i32, B> {
    type MonLipTape = MonLipTape<R>;
    type CayleyTape = CayleyTape<R>;

    fn monlip_forward(
        inputs: [&FloatTensor<Self>; 4],
        layout: &Layout,
    ) -> (FloatTensor<Self>, Self::MonLipTape) {
        monlip::forward(inputs, layout)
    }

    fn monlip_backward(
        tape: &Self::MonLipTape,
        phi: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
        _: &Layout,
    ) -> [FloatTensor<Self>; 4] {
        monlip::backward(tape, phi, cotangent)
    }

    fn cayley_forward(
        free: &FloatTensor<Self>,
        gain: &FloatTensor<Self>,
    ) -> (FloatTensor<Self>, Self::CayleyTape) {
        cayley::forward(free, gain)
    }

    fn cayley_backward(
        tape: &Self::CayleyTape,
        free: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        cayley::backward(tape, free, cotangent)
    }

    fn invert(w: &FloatTensor<Self>) -> FloatTensor<Self> {
        inverse::invert(w)
    }

    fn invert_complex(w: &FloatTensor<Self>) -> FloatTensor<Self> {
        inverse::invert_complex(w)
    }

    fn matmul(a: &FloatTensor<Self>, b: &FloatTensor<Self>, precision: MatmulPrecision) -> FloatTensor<Self> {
        product::matmul(a, b, precision)
    }

    fn rearrange(map: Rearrangement, x: &FloatTensor<Self>) -> FloatTensor<Self> {
        rearrange::rearrange(map, x)
    }

    fn rearrange_adjoint(map: Rearrangement, d: &FloatTensor<Self>) -> FloatTensor<Self> {
        rearrange::rearrange_adjoint(map, d)
    }

    fn adam_step(tensors: [FloatTensor<Self>; 4], step: AdamStep) -> [FloatTensor<Self>; 3] {
        adam::adam_step(tensors, step)
    }
}
