//! The monotone layer.

use std::sync::Arc;

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
#[cfg(feature = "gpu")]
use burn::tensor::TensorMetadata;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::on;
use crate::backend::{Native, portable};
use crate::base::wrap;
use crate::spec::Layout;

/// `F(x)` of a monotone layer.
///
/// # Shapes
/// `x` is `[batch, n]`, `phi` the layer's flat parameters, `bounds` is `[2]` with (μ, γ), `bias` is
/// `[1, m]` or `[batch, m]`.
pub(crate) fn monlip<B: Backend>(
    x: Tensor<B, 2>,
    phi: Tensor<B, 1>,
    bounds: Tensor<B, 1>,
    bias: Tensor<B, 2>,
    layout: &Arc<Layout>,
) -> Tensor<B, 2> {
    let arguments = [
        x.into_primitive().tensor(),
        phi.into_primitive().tensor(),
        bounds.into_primitive().tensor(),
        bias.into_primitive().tensor(),
    ];
    let mut native = Err(arguments);
    natively!(
        native,
        Flex,
        |a| Flex::monlip_forward(a.each_ref(), layout).0,
        monlip_node,
        layout
    );
    #[cfg(feature = "gpu")]
    if native
        .as_ref()
        .is_err_and(|a| crate::backend::gpu::suits(layout, a[0].dtype()))
    {
        on_gpus!(
            native,
            |a, D| D::monlip_forward(a.each_ref(), layout).0,
            monlip_node,
            layout
        );
    }
    match native {
        Ok([y]) => wrap(y),
        Err([x, phi, bounds, bias]) => portable::monlip(wrap(x), wrap(phi), wrap(bounds), wrap(bias), layout),
    }
}

#[derive(Debug)]
struct MonLipNode;

impl<B: Native> Backward<B, 4> for MonLipNode {
    type State = (B::MonLipTape, FloatTensor<B>, Arc<Layout>);

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (tape, phi, layout) = ops.state;
        let cotangent = grads.consume::<B>(&ops.node);
        let gradients = B::monlip_backward(&tape, &phi, cotangent, &layout);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// A monotone layer as one node of the graph.
fn monlip_node<B: Native, C: CheckpointStrategy>(
    [x, phi, bounds, bias]: [FloatTensor<Autodiff<B, C>>; 4],
    layout: &Arc<Layout>,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [
        x.node.clone(),
        phi.node.clone(),
        bounds.node.clone(),
        bias.node.clone(),
    ];
    let (y, tape) = B::monlip_forward(
        [&x.primitive, &phi.primitive, &bounds.primitive, &bias.primitive],
        layout,
    );
    match Backward::<B, 4>::prepare::<C>(MonLipNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((tape, phi.primitive, layout.clone()), y),
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
