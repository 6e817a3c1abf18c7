//! The arithmetic of training, per backend. An operation is found under the same name in `cpu`
//! (faer and our own loops), `gpu` (our own kernels) and `portable` (tensor operations of any
//! backend); convolutions have a kernel on CPUs alone, elsewhere they are windows and a product.

pub(crate) mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod portable;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use crate::base::{primitive, wrap};
use crate::spec::{AdamStep, Convolved, Layout, MatmulPrecision, Rearrangement, Transposed};

/// A backend with kernels of its own: forward passes that keep a tape, and backward passes on it.
pub(crate) trait Native: Backend {
    /// The tape of a monotone layer.
    type MonLipTape: Clone + Send + std::fmt::Debug + 'static;
    /// The tape of a Cayley transform.
    type CayleyTape: Clone + Send + std::fmt::Debug + 'static;

    fn monlip_forward(
        inputs: [&FloatTensor<Self>; 4],
        layout: &Layout,
    ) -> (FloatTensor<Self>, Self::MonLipTape);

    /// Gradients of x, φ, bounds and bias.
    fn monlip_backward(
        tape: &Self::MonLipTape,
        phi: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
        layout: &Layout,
    ) -> [FloatTensor<Self>; 4];

    fn cayley_forward(
        free: &FloatTensor<Self>,
        gain: &FloatTensor<Self>,
    ) -> (FloatTensor<Self>, Self::CayleyTape);

    /// Gradients of the matrix and the gain.
    fn cayley_backward(
        tape: &Self::CayleyTape,
        free: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Inverses of matrices whose symmetric part is ⪰ I.
    fn invert(w: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// Inverses of complex matrices whose Hermitian part is ⪰ I, real parts above imaginary ones.
    fn invert_complex(w: &FloatTensor<Self>) -> FloatTensor<Self> {
        primitive(portable::complex_inverse::<Self>(
            wrap(w.clone()),
            |w| wrap(Self::invert(&primitive(w))),
            |a, b| wrap(Self::matmul(&primitive(a), &primitive(b), MatmulPrecision::Full)),
        ))
    }

    /// The product of two matrices, or of as many on either side.
    fn matmul(a: &FloatTensor<Self>, b: &FloatTensor<Self>, _: MatmulPrecision) -> FloatTensor<Self> {
        Self::float_matmul(a.clone(), b.clone())
    }

    /// A product with one of its factors transposed, or none.
    fn product(
        a: &FloatTensor<Self>,
        b: &FloatTensor<Self>,
        transposed: Transposed,
        precision: MatmulPrecision,
    ) -> FloatTensor<Self> {
        let turned = |t: &FloatTensor<Self>| Self::float_transpose(t.clone());
        match transposed {
            Transposed::Neither => Self::matmul(a, b, precision),
            Transposed::Left => Self::matmul(&turned(a), b, precision),
            Transposed::Right => Self::matmul(a, &turned(b), precision),
        }
    }

    /// Images, one per row, at their frequencies: a product with a table, that of the inverse
    /// transform or the other.
    ///
    /// # Shapes
    /// `[2·frequencies, pixels]` and `[images, pixels] → [2·frequencies, images]`
    fn spectra(table: &FloatTensor<Self>, x: &FloatTensor<Self>, _inverse: bool) -> FloatTensor<Self> {
        Self::product(table, x, Transposed::Right, MatmulPrecision::TensorCores)
    }

    /// The adjoint.
    ///
    /// # Shapes
    /// `[2·frequencies, images]` and `[2·frequencies, pixels] → [images, pixels]`
    fn images(z: &FloatTensor<Self>, table: &FloatTensor<Self>, _inverse: bool) -> FloatTensor<Self> {
        Self::product(z, table, Transposed::Left, MatmulPrecision::TensorCores)
    }

    /// A linear map that rearranges numbers.
    fn rearrange(map: Rearrangement, x: &FloatTensor<Self>) -> FloatTensor<Self> {
        portable::rearrange::<Self>(map, x.clone())
    }

    /// Its adjoint.
    fn rearrange_adjoint(map: Rearrangement, d: &FloatTensor<Self>) -> FloatTensor<Self> {
        portable::rearrange_adjoint::<Self>(map, d.clone())
    }

    /// One step of Adam on parameters, gradient and both moments: the new parameters and moments.
    fn adam_step(tensors: [FloatTensor<Self>; 4], step: AdamStep) -> [FloatTensor<Self>; 3];
}

/// A backend that convolves without having all windows in memory.
pub(crate) trait NativeConvolution: Backend {
    fn convolve(matrix: &FloatTensor<Self>, x: &FloatTensor<Self>, seen: Convolved) -> FloatTensor<Self>;

    /// Gradients of the matrix and the images.
    fn convolve_backward(
        matrix: &FloatTensor<Self>,
        x: &FloatTensor<Self>,
        cotangent: &FloatTensor<Self>,
        seen: Convolved,
    ) -> [FloatTensor<Self>; 2];
}
