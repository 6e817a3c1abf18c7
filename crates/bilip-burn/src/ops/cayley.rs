//! Cayley transforms.

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
use crate::base::wrap;

/// The Cayley transform of `(gain/‖free‖)·free`: orthonormal columns, whatever the parameters.
///
/// # Shapes
/// `[rows, n]` with `rows ≥ n`, and `[1] → [rows, n]`
pub fn cayley<B: Backend>(free: Tensor<B, 2>, gain: Tensor<B, 1>) -> Tensor<B, 2> {
    let [rows, n] = free.dims();
    if rows != n {
        return portable::cayley(free, gain);
    }
    let arguments = [free.into_primitive().tensor(), gain.into_primitive().tensor()];
    let mut native = Err(arguments);
    natively!(
        native,
        Flex,
        |a| Flex::cayley_forward(&a[0], &a[1]).0,
        cayley_node,
    );
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        on_gpus!(native, |a, D| D::cayley_forward(&a[0], &a[1]).0, cayley_node,);
    }
    match native {
        Ok([j]) => wrap(j),
        Err([free, gain]) => portable::cayley(wrap(free), wrap(gain)),
    }
}

#[derive(Debug)]
struct CayleyNode;

impl<B: Native> Backward<B, 2> for CayleyNode {
    type State = (B::CayleyTape, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (tape, free) = ops.state;
        let cotangent = grads.consume::<B>(&ops.node);
        let gradients = B::cayley_backward(&tape, &free, cotangent);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// A Cayley transform as one node of the graph.
fn cayley_node<B: Native, C: CheckpointStrategy>(
    [free, gain]: [FloatTensor<Autodiff<B, C>>; 2],
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [free.node.clone(), gain.node.clone()];
    let (j, tape) = B::cayley_forward(&free.primitive, &gain.primitive);
    match Backward::<B, 2>::prepare::<C>(CayleyNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((tape, free.primitive), j),
        OpsKind::UnTracked(prep) => prep.finish(j),
    }
}
