//! Products of matrices.

#[cfg(feature = "gpu")]
use burn::backend::Autodiff;
#[cfg(feature = "cuda")]
use burn::backend::Cuda;
#[cfg(feature = "wgpu")]
use burn::backend::Wgpu;
#[cfg(feature = "gpu")]
use burn::backend::autodiff::{
    checkpoint::base::Checkpointer,
    checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
#[cfg(feature = "gpu")]
use burn::tensor::{DType, ops::FloatTensor};

#[cfg(feature = "gpu")]
use super::on;
#[cfg(feature = "gpu")]
use crate::backend::Native;
use crate::backend::portable;
#[cfg(feature = "gpu")]
use crate::base::wrap;
use crate::spec::{MatmulPrecision, Transposed};

/// `A·B`, in the precision of its factors: matrices, or as many of them on either side.
///
/// Burn's own product takes tensor cores on GPUs that have them, which round single precision to 11
/// bits; this does not.
pub fn matmul<B: Backend, const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>) -> Tensor<B, D> {
    product(a, b, Transposed::Neither, MatmulPrecision::Full)
}

/// A product with tensor cores where there are any: for maps of images, which no transform is
/// computed from.
pub(crate) fn rough<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    transposed: Transposed,
) -> Tensor<B, D> {
    product(a, b, transposed, MatmulPrecision::TensorCores)
}

#[cfg_attr(not(feature = "gpu"), expect(unused_variables))]
pub(super) fn product<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    transposed: Transposed,
    precision: MatmulPrecision,
) -> Tensor<B, D> {
    #[cfg(feature = "gpu")]
    if a.dtype() == DType::F32 {
        let mut native = Err([a.into_primitive().tensor(), b.into_primitive().tensor()]);
        on_gpus!(
            native,
            |a, D| D::product(&a[0], &a[1], transposed, precision),
            product_node,
            (transposed, precision)
        );
        return match native {
            Ok([c]) => wrap(c),
            Err([a, b]) => portable::product(wrap(a), wrap(b), transposed),
        };
    }
    portable::product(a, b, transposed)
}

#[cfg(feature = "gpu")]
#[derive(Debug)]
struct ProductNode;

#[cfg(feature = "gpu")]
impl<B: Native> Backward<B, 2> for ProductNode {
    type State = (FloatTensor<B>, FloatTensor<B>, Transposed, MatmulPrecision);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (a, b, transposed, precision) = ops.state;
        let g = grads.consume::<B>(&ops.node);
        let [left, right] = ops.parents;
        if let Some(node) = left {
            let gradient = match transposed {
                Transposed::Neither => B::product(&g, &b, Transposed::Right, precision),
                Transposed::Left => B::product(&b, &g, Transposed::Right, precision),
                Transposed::Right => B::product(&g, &b, Transposed::Neither, precision),
            };
            grads.register::<B>(node.id, gradient);
        }
        if let Some(node) = right {
            let gradient = match transposed {
                Transposed::Neither => B::product(&a, &g, Transposed::Left, precision),
                Transposed::Left => B::product(&a, &g, Transposed::Neither, precision),
                Transposed::Right => B::product(&g, &a, Transposed::Left, precision),
            };
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// A product as one node of the graph.
#[cfg(feature = "gpu")]
fn product_node<B: Native, C: CheckpointStrategy>(
    [a, b]: [FloatTensor<Autodiff<B, C>>; 2],
    (transposed, precision): (Transposed, MatmulPrecision),
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [a.node.clone(), b.node.clone()];
    let c = B::product(&a.primitive, &b.primitive, transposed, precision);
    match Backward::<B, 2>::prepare::<C>(ProductNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((a.primitive, b.primitive, transposed, precision), c),
        OpsKind::UnTracked(prep) => prep.finish(c),
    }
}
