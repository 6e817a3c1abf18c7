//! Convolutions: windows and a product, or both at once where a backend can.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorMetadata};

use super::{Flat, Order, Precision, Window, on, primitive, product, tensor, unfold, values, wrap};
use crate::kernel::convolution::{self, Seen};

/// Images in groups, each seen through windows and multiplied by a matrix.
///
/// # Shapes
/// `[1, outputs, channels·kernel²]` and `[groups, channels, images, size, size] → [groups, outputs, images, size/stride, size/stride]`
pub(crate) fn convolve<B: Backend>(
    matrix: Tensor<B, 3>,
    x: Tensor<B, 5>,
    window: Window,
    precision: Precision,
) -> Tensor<B, 5> {
    let seen = Seen {
        window,
        shape: x.dims(),
    };
    let result = seen.result(matrix.shape().num_elements());
    let mut native = Err([primitive(matrix), primitive(x)]);
    natively!(
        native,
        Flex,
        |a| Flex::convolved(&a[0], &a[1], seen),
        convolve_node,
        seen
    );
    match native {
        Ok([y]) => wrap(y),
        Err([matrix, x]) => {
            let matrix = wrap::<B, 3>(matrix).repeat_dim(0, result[0]);
            product(matrix, unfold(wrap(x), window), Order::Plain, precision).reshape(result)
        }
    }
}

/// A backend that convolves without having all windows in memory.
trait Convolves: Backend {
    fn convolved(matrix: &FloatTensor<Self>, x: &FloatTensor<Self>, seen: Seen) -> FloatTensor<Self>;

    /// Gradients of the matrix and the images.
    fn convolved_back(
        matrix: &FloatTensor<Self>,
        x: &FloatTensor<Self>,
        cotangent: &FloatTensor<Self>,
        seen: Seen,
    ) -> [FloatTensor<Self>; 2];
}

impl Convolves for Flex {
    fn convolved(matrix: &Flat, x: &Flat, seen: Seen) -> Flat {
        in_precision!(x, T => {
            let matrix = values::<T>(matrix);
            let shape = seen.result(matrix.len());
            tensor(convolution::forward(&matrix, &values::<T>(x), seen), shape)
        })
    }

    fn convolved_back(matrix: &Flat, x: &Flat, cotangent: &Flat, seen: Seen) -> [Flat; 2] {
        let shape = matrix.shape();
        in_precision!(x, T => {
            let (d_matrix, d_x) =
                convolution::backward(&values::<T>(matrix), &values::<T>(x), &values::<T>(cotangent), seen);
            [tensor(d_matrix, shape), tensor(d_x, seen.shape)]
        })
    }
}

#[derive(Debug)]
struct ConvolveNode;

impl<B: Convolves> Backward<B, 2> for ConvolveNode {
    type State = (FloatTensor<B>, FloatTensor<B>, Seen);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (matrix, x, seen) = ops.state;
        let cotangent = grads.consume::<B>(&ops.node);
        let gradients = B::convolved_back(&matrix, &x, &cotangent, seen);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// A convolution as one node of the graph.
fn convolve_node<B: Convolves, C: CheckpointStrategy>(
    [matrix, x]: [FloatTensor<Autodiff<B, C>>; 2],
    seen: Seen,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [matrix.node.clone(), x.node.clone()];
    let y = B::convolved(&matrix.primitive, &x.primitive, seen);
    match Backward::<B, 2>::prepare::<C>(ConvolveNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((matrix.primitive, x.primitive, seen), y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
