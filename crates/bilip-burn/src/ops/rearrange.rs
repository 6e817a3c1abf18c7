//! Linear maps that rearrange numbers: a kernel each way, and one node of the graph for all of
//! them.

#[cfg(feature = "cuda")]
use burn::backend::Cuda;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
#[cfg(feature = "gpu")]
use burn::tensor::{DType, TensorMetadata};

use super::on;
use crate::backend::{Native, portable};
use crate::base::{primitive, wrap};
use crate::spec::{Rearrangement, Strips, Window};

/// The map with kernels where the backend has them, as one node of the graph.
fn rearranged<B: Backend, const I: usize, const O: usize>(
    map: Rearrangement,
    x: Tensor<B, I>,
) -> Tensor<B, O> {
    let mut native = Err([primitive(x)]);
    natively!(native, Flex, |a| Flex::rearrange(map, &a[0]), rearrange_node, map);
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        on_gpus!(native, |a, D| D::rearrange(map, &a[0]), rearrange_node, map);
    }
    match native {
        Ok([y]) => wrap(y),
        Err([x]) => wrap(portable::rearrange::<B>(map, x)),
    }
}

#[derive(Debug)]
struct RearrangeNode;

impl<B: Native> Backward<B, 1> for RearrangeNode {
    type State = Rearrangement;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let cotangent = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::rearrange_adjoint(ops.state, &cotangent));
        }
    }
}

fn rearrange_node<B: Native, C: CheckpointStrategy>(
    [x]: [FloatTensor<Autodiff<B, C>>; 1],
    map: Rearrangement,
) -> FloatTensor<Autodiff<B, C>> {
    let y = B::rearrange(map, &x.primitive);
    match Backward::<B, 1>::prepare::<C>(RearrangeNode, [x.node.clone()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(map, y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}

/// `[[Re, −Im], [Im, Re]]` of complex matrices, real parts above imaginary ones, which multiplies
/// as they do.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·rows, 2·columns]`
pub(crate) fn embed<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    rearranged(Rearrangement::Embed, z)
}

/// `I + G − Gᴴ` of complex matrices, real parts above imaginary ones.
///
/// # Shapes
/// `[count, 2n, n] → [count, 2n, n]`
pub(crate) fn skew<B: Backend>(g: Tensor<B, 3>) -> Tensor<B, 3> {
    rearranged(Rearrangement::Skew, g)
}

/// Some rows of complex matrices, real parts above imaginary ones, every piece a matrix of its own.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count·pieces, 2·height, columns]`
pub(crate) fn strips<B: Backend>(z: Tensor<B, 3>, strips: Strips) -> Tensor<B, 3> {
    rearranged(Rearrangement::Strips(strips), z)
}

/// The two dimensions in the middle exchanged, and the numbers with them.
///
/// # Shapes
/// `[outer, a, b, inner] → [outer, b, a, inner]`
pub(crate) fn exchanged<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    let shape = x.dims();
    rearranged(Rearrangement::Exchange(shape), x)
}

/// The windows of images as columns, by channel and place in the window.
///
/// # Shapes
/// `[groups, channels, images, size, size] → [groups, channels·kernel², images·(size/stride)²]`
pub(crate) fn unfold<B: Backend>(x: Tensor<B, 5>, window: Window) -> Tensor<B, 3> {
    let shape = x.dims();
    rearranged(Rearrangement::Unfold(window, shape), x)
}

/// The adjoint of [`unfold`]: images of the given shape, every number of the columns added to the
/// pixel it belongs to.
pub(crate) fn fold<B: Backend>(columns: Tensor<B, 3>, window: Window, shape: [usize; 5]) -> Tensor<B, 5> {
    rearranged(Rearrangement::Fold(window, shape), columns)
}

/// The adjoints of complex matrices, real parts above imaginary ones.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·columns, rows]`
pub(crate) fn complex_adjoint<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    portable::adjoint(z)
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
        let maps: [(Rearrangement, &[usize]); 4] = [
            (Rearrangement::Embed, &[3, 8, 5]),
            (Rearrangement::Skew, &[2, 38, 19]),
            (Rearrangement::Strips(strips), &[4, 22, 3]),
            (Rearrangement::Exchange([2, 3, 4, 5]), &[2, 3, 4, 5]),
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
            let (found, plain) = (Flex::rearrange(map, &x), portable::rearrange::<Flex>(map, x));
            let (outer, values) = numbers(plain);
            assert_eq!(numbers(found), (outer.clone(), values), "{map:?}");
            let d = random(&outer, 2);
            let (found, plain) = (
                Flex::rearrange_adjoint(map, &d),
                portable::rearrange_adjoint::<Flex>(map, d),
            );
            let (found, plain) = (numbers(found), numbers(plain));
            assert_eq!(found.0, plain.0, "{map:?}");
            for (a, b) in found.1.iter().zip(&plain.1) {
                assert!((a - b).abs() < 1e-14, "{map:?}");
            }
        }
    }
}
