//! The operations by plain tensor operations, for every backend without a path of its own.
//!
//! The only part that automatic differentiation must not see is the iteration for the inverse. It
//! runs on detached tensors, and one more Newton step `X ← 2X − XWX` with the tracked `W` closes
//! it: its value is the inverse, and its derivative, `−X dW X`, is the derivative of the inverse.

mod activation;
mod adam;
mod cayley;
mod convolution;
mod inverse;
mod monlip;
mod product;
mod rearrange;

pub(crate) use activation::activate;
pub(crate) use adam::adam_step;
pub(crate) use cayley::cayley;
pub(crate) use convolution::framed;
pub(crate) use inverse::{complex_inverse, inverses};
pub(crate) use monlip::monlip;
pub(crate) use product::product;
pub(crate) use rearrange::{adjoint, rearrange, rearrange_adjoint};
