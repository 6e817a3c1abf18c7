//! Linear maps that rearrange numbers: a kernel each way, and one node of the graph for all of them.

use burn::backend::Autodiff;
#[cfg(feature = "cuda")]
use burn::backend::Cuda;
use burn::backend::Flex;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
#[cfg(feature = "gpu")]
use burn::tensor::{DType, TensorMetadata};

use super::{Kernels, on, primitive, wrap};
use crate::portable;

/// What a convolution sees of its images: windows of an odd side, every pixel or every second one in each direction, zeros around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub kernel: usize,
    pub stride: usize,
}

impl Window {
    /// Zeros on each side of the image.
    pub fn pad(self) -> usize {
        (self.kernel - 1) / 2
    }
}

/// Some rows of complex matrices: from row `first` on, of every `stride` rows the `height` from row `from` on, `pieces` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    /// Rows of the matrices.
    pub rows: usize,
    pub first: usize,
    pub stride: usize,
    pub pieces: usize,
    pub from: usize,
    pub height: usize,
}

/// A linear map, or an affine one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linear {
    /// See [`embed`].
    Embed,
    /// See [`skew`]; the affine one.
    Skew,
    /// See [`unfold`]; with the shape of the images.
    Unfold(Window, [usize; 5]),
    /// See [`fold`].
    Fold(Window, [usize; 5]),
    /// See [`strips`].
    Strips(Strips),
    /// See [`exchanged`]; with the shape.
    Exchange([usize; 4]),
}

impl Linear {
    /// By the tensor operations of any backend.
    pub fn plainly<B: Backend>(self, x: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Linear::Embed => primitive(portable::embed::<B>(wrap(x))),
            Linear::Skew => primitive(portable::skew::<B>(wrap(x), true)),
            Linear::Unfold(window, _) => primitive(portable::unfold::<B>(wrap(x), window)),
            Linear::Fold(window, shape) => primitive(portable::fold::<B>(wrap(x), window, shape)),
            Linear::Strips(strips) => primitive(portable::strips::<B>(wrap(x), strips)),
            Linear::Exchange(_) => primitive(wrap::<B, 4>(x).swap_dims(1, 2)),
        }
    }

    /// The adjoint, by the tensor operations of any backend.
    pub fn adjoint_plainly<B: Backend>(self, d: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Linear::Embed => primitive(portable::fold_embedded::<B>(wrap(d))),
            // ⟨W̄, G − Gᴴ⟩ = ⟨W̄ − W̄ᴴ, G⟩.
            Linear::Skew => primitive(portable::skew::<B>(wrap(d), false)),
            Linear::Unfold(window, shape) => primitive(portable::fold::<B>(wrap(d), window, shape)),
            Linear::Fold(window, _) => primitive(portable::unfold::<B>(wrap(d), window)),
            Linear::Strips(strips) => primitive(portable::laid_back::<B>(wrap(d), strips)),
            Linear::Exchange(_) => primitive(wrap::<B, 4>(d).swap_dims(1, 2)),
        }
    }

    /// The map with kernels where the backend has them, as one node of the graph.
    fn of<B: Backend, const I: usize, const O: usize>(self, x: Tensor<B, I>) -> Tensor<B, O> {
        let mut native = Err([primitive(x)]);
        natively!(native, Flex, |a| Flex::mapped(self, &a[0]), linear_node, self);
        #[cfg(feature = "gpu")]
        if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
            on_gpus!(native, |a, D| D::mapped(self, &a[0]), linear_node, self);
        }
        match native {
            Ok([y]) => wrap(y),
            Err([x]) => wrap(self.plainly::<B>(x)),
        }
    }
}

#[derive(Debug)]
struct LinearNode;

impl<B: Kernels> Backward<B, 1> for LinearNode {
    type State = Linear;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let cotangent = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::mapped_back(ops.state, &cotangent));
        }
    }
}

fn linear_node<B: Kernels, C: CheckpointStrategy>(
    [x]: [FloatTensor<Autodiff<B, C>>; 1],
    map: Linear,
) -> FloatTensor<Autodiff<B, C>> {
    let y = B::mapped(map, &x.primitive);
    match Backward::<B, 1>::prepare::<C>(LinearNode, [x.node.clone()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(map, y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}

/// `[[Re, −Im], [Im, Re]]` of complex matrices, real parts above imaginary ones, which multiplies as they do.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·rows, 2·columns]`
pub(crate) fn embed<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    Linear::Embed.of(z)
}

/// `I + G − Gᴴ` of complex matrices, real parts above imaginary ones.
///
/// # Shapes
/// `[count, 2n, n] → [count, 2n, n]`
pub(crate) fn skew<B: Backend>(g: Tensor<B, 3>) -> Tensor<B, 3> {
    Linear::Skew.of(g)
}

/// Some rows of complex matrices, real parts above imaginary ones, every piece a matrix of its own.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count·pieces, 2·height, columns]`
pub(crate) fn strips<B: Backend>(z: Tensor<B, 3>, strips: Strips) -> Tensor<B, 3> {
    Linear::Strips(strips).of(z)
}

/// The two dimensions in the middle exchanged, and the numbers with them.
///
/// # Shapes
/// `[outer, a, b, inner] → [outer, b, a, inner]`
pub(crate) fn exchanged<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    let shape = x.dims();
    Linear::Exchange(shape).of(x)
}

/// The windows of images as columns, by channel and place in the window.
///
/// # Shapes
/// `[groups, channels, images, size, size] → [groups, channels·kernel², images·(size/stride)²]`
pub(crate) fn unfold<B: Backend>(x: Tensor<B, 5>, window: Window) -> Tensor<B, 3> {
    let shape = x.dims();
    Linear::Unfold(window, shape).of(x)
}

/// The adjoint of [`unfold`]: images of the given shape, every number of the columns added to the pixel it belongs to.
pub(crate) fn fold<B: Backend>(columns: Tensor<B, 3>, window: Window, shape: [usize; 5]) -> Tensor<B, 5> {
    Linear::Fold(window, shape).of(columns)
}

#[cfg(test)]
mod tests {
    use bilip::Rng;
    use burn::tensor::ops::FloatTensorOps;
    use burn::tensor::{DType, TensorData};

    use super::*;

    #[test]
    fn kernels_rearrange_as_tensor_operations_do() {
        let strips = Strips {
            rows: 11,
            first: 2,
            stride: 3,
            pieces: 3,
            from: 1,
            height: 2,
        };
        let maps: [(Linear, &[usize]); 4] = [
            (Linear::Embed, &[3, 8, 5]),
            (Linear::Skew, &[2, 38, 19]),
            (Linear::Strips(strips), &[4, 22, 3]),
            (Linear::Exchange([2, 3, 4, 5]), &[2, 3, 4, 5]),
        ];
        let device = Default::default();
        let random = |shape: &[usize], seed| {
            let values = Rng::new(seed).normals(shape.iter().product());
            let data = TensorData::new(values, shape.to_vec());
            Flex::float_from_data(data.convert_dtype(DType::F64), &device)
        };
        let numbers = |x: FloatTensor<Flex>| -> (Vec<usize>, Vec<f64>) {
            let data = wrap::<Flex, 1>(x.clone()).into_data();
            (data.shape.to_vec(), data.iter::<f64>().collect())
        };
        for (map, shape) in maps {
            let x = random(shape, 1);
            let (found, plain) = (Flex::mapped(map, &x), map.plainly::<Flex>(x));
            let (outer, values) = numbers(plain);
            assert_eq!(numbers(found), (outer.clone(), values), "{map:?}");
            let d = random(&outer, 2);
            let (found, plain) = (Flex::mapped_back(map, &d), map.adjoint_plainly::<Flex>(d));
            let (found, plain) = (numbers(found), numbers(plain));
            assert_eq!(found.0, plain.0, "{map:?}");
            for (a, b) in found.1.iter().zip(&plain.1) {
                assert!((a - b).abs() < 1e-14, "{map:?}");
            }
        }
    }
}
