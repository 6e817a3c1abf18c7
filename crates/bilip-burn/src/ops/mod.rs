//! Differentiable operations, one graph node each: the choice of a backend's path, and the nodes.
//!
//! On CPUs (Burn's `Flex`) and GPUs they run on kernels with a backward pass that is derived by
//! hand and reuses what the forward pass inverted; on every other backend as tensor operations.
//! What is public here is for layers of one's own.

use std::any::{Any, TypeId};

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};

/// The operation on the backend `$n`: by itself, or as a node of the graph under [`Autodiff`] with
/// either strategy.
macro_rules! natively {
    ($native:ident, $n:ty, |$a:ident| $plain:expr, $node:ident, $($extra:expr)?) => {
        $native = $native
            .or_else(|a| on::<B, $n, _, 1>(a, |$a| [$plain]))
            .or_else(|a| {
                on::<B, Autodiff<$n, NoCheckpointing>, _, 1>(a, |a| {
                    [$node::<$n, NoCheckpointing>(a, $($extra)?)]
                })
            })
            .or_else(|a| {
                on::<B, Autodiff<$n, BalancedCheckpointing>, _, 1>(a, |a| {
                    [$node::<$n, BalancedCheckpointing>(a, $($extra)?)]
                })
            });
    };
}

/// The same on the GPU backends that are built in.
#[cfg(feature = "gpu")]
macro_rules! on_gpus {
    ($native:ident, |$a:ident, $d:ident| $plain:expr, $node:ident, $($extra:expr)?) => {
        #[cfg(feature = "cuda")]
        {
            type $d = Cuda;
            natively!($native, $d, |$a| $plain, $node, $($extra)?);
        }
        #[cfg(feature = "wgpu")]
        {
            type $d = Wgpu;
            natively!($native, $d, |$a| $plain, $node, $($extra)?);
        }
    };
}

mod adam;
mod cayley;
mod conv_monlip;
mod convolution;
mod inverse;
mod monlip;
mod product;
mod rearrange;
#[cfg(test)]
mod tests;

pub(crate) use crate::backend::portable::framed;
pub(crate) use adam::adam_step;
pub use cayley::cayley;
pub(crate) use conv_monlip::{FourierTable, HiddenChannels, ImagePass, image_pass};
pub(crate) use convolution::convolve;
pub(crate) use inverse::{complex_inverse, inverse};
pub(crate) use monlip::monlip;
pub use product::matmul;
pub(crate) use product::rough;
#[cfg(test)]
pub(crate) use rearrange::unfold;
pub(crate) use rearrange::{complex_adjoint, embed, exchanged, fold, skew, strips};

/// `σ(v)`, entry by entry.
pub fn activate<B: Backend>(
    activation: bilip::Activation,
    v: burn::tensor::Tensor<B, 2>,
) -> burn::tensor::Tensor<B, 2> {
    crate::backend::portable::activate(activation, v)
}

/// Runs `work` if `B` is the backend `N`, gives the arguments back otherwise.
///
/// Rust cannot choose an implementation for one backend over that for all of them at compile time;
/// the types are compared at run time instead, so that the modules ask nothing of a backend and yet
/// run natively where they can.
fn on<B: Backend, N: Backend, const A: usize, const R: usize>(
    arguments: [FloatTensor<B>; A],
    work: impl FnOnce([FloatTensor<N>; A]) -> [FloatTensor<N>; R],
) -> std::result::Result<[FloatTensor<B>; R], [FloatTensor<B>; A]> {
    // The kernels know single and double precision, all tensors in one of them; the rest is for
    // tensor operations.
    let dtype = arguments.first().map(|a| a.dtype());
    let known =
        matches!(dtype, Some(DType::F32 | DType::F64)) && arguments.iter().all(|a| Some(a.dtype()) == dtype);
    if TypeId::of::<B>() != TypeId::of::<N>() || !known {
        return Err(arguments);
    }
    let arguments = same::<_, [FloatTensor<N>; A]>(arguments)?;
    // B is N, so the result is of the type wanted.
    Ok(same(work(arguments)).unwrap_or_else(|_| unreachable!("equal types")))
}

/// The value, as the type that it has.
fn same<A: 'static, B: 'static>(value: A) -> std::result::Result<B, A> {
    let mut slot = Some(value);
    match (&mut slot as &mut dyn Any).downcast_mut::<Option<B>>() {
        Some(found) => found.take().ok_or_else(|| unreachable!("just filled")),
        None => Err(slot.unwrap_or_else(|| unreachable!("just filled"))),
    }
}
