//! Convolutions: windows and a product, or both at once where a backend can.

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

use super::on;
use super::product::product;
use super::rearrange::unfold;
use crate::backend::NativeConvolution;
use crate::base::{primitive, wrap};
use crate::spec::{Convolved, MatmulPrecision, Transposed, Window};

/// Images in groups, each seen through windows and multiplied by a matrix.
///
/// # Shapes
/// `[1, outputs, channels·kernel²]` and `[groups, channels, images, size, size] → [groups, outputs,
/// images, size/stride, size/stride]`
pub(crate) fn convolve<B: Backend>(
    matrix: Tensor<B, 3>,
    x: Tensor<B, 5>,
    window: Window,
    precision: MatmulPrecision,
) -> Tensor<B, 5> {
    let seen = Convolved {
        window,
        shape: x.dims(),
    };
    let result = seen.result(matrix.shape().num_elements());
    let mut native = Err([primitive(matrix), primitive(x)]);
    natively!(
        native,
        Flex,
        |a| Flex::convolve(&a[0], &a[1], seen),
        convolve_node,
        seen
    );
    match native {
        Ok([y]) => wrap(y),
        Err([matrix, x]) => {
            let matrix = wrap::<B, 3>(matrix).repeat_dim(0, result[0]);
            product(matrix, unfold(wrap(x), window), Transposed::Neither, precision).reshape(result)
        }
    }
}

#[derive(Debug)]
struct ConvolveNode;

impl<B: NativeConvolution> Backward<B, 2> for ConvolveNode {
    type State = (FloatTensor<B>, FloatTensor<B>, Convolved);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (matrix, x, seen) = ops.state;
        let cotangent = grads.consume::<B>(&ops.node);
        let gradients = B::convolve_backward(&matrix, &x, &cotangent, seen);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// A convolution as one node of the graph.
fn convolve_node<B: NativeConvolution, C: CheckpointStrategy>(
    [matrix, x]: [FloatTensor<Autodiff<B, C>>; 2],
    seen: Convolved,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [matrix.node.clone(), x.node.clone()];
    let y = B::convolve(&matrix.primitive, &x.primitive, seen);
    match Backward::<B, 2>::prepare::<C>(ConvolveNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((matrix.primitive, x.primitive, seen), y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
