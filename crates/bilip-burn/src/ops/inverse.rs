//! Inverses of real and complex matrices.

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
use crate::spec::{MatmulPrecision, Rearrangement};

/// The inverses of matrices whose symmetric part is ⪰ I: `[count, n, n]` to the same.
pub(crate) fn inverse<B: Backend>(w: Tensor<B, 3>) -> Tensor<B, 3> {
    let mut native = Err([w.into_primitive().tensor()]);
    natively!(native, Flex, |a| Flex::invert(&a[0]), inverse_node,);
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        on_gpus!(native, |a, D| D::invert(&a[0]), inverse_node,);
    }
    match native {
        Ok([x]) => wrap(x),
        Err([w]) => portable::inverses(wrap(w)),
    }
}

/// The inverses of complex matrices whose Hermitian part is ⪰ I, real parts above imaginary ones:
/// `[count, 2n, n]` to the same.
pub(crate) fn complex_inverse<B: Backend>(w: Tensor<B, 3>) -> Tensor<B, 3> {
    let mut native = Err([w.into_primitive().tensor()]);
    natively!(
        native,
        Flex,
        |a| Flex::invert_complex(&a[0]),
        complex_inverse_node,
    );
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        on_gpus!(native, |a, D| D::invert_complex(&a[0]), complex_inverse_node,);
    }
    match native {
        Ok([x]) => wrap(x),
        Err([w]) => portable::complex_inverse(wrap(w), portable::inverses, |a, b| a.matmul(b)),
    }
}

#[derive(Debug)]
struct InverseNode;

impl<B: Native> Backward<B, 1> for InverseNode {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let x = B::float_transpose(ops.state);
        let cotangent = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            // W̄ = −Xᵀ X̄ Xᵀ.
            let product = |a, b| B::matmul(a, b, MatmulPrecision::Full);
            let gradient = product(&product(&x, &cotangent), &x);
            grads.register::<B>(node.id, B::float_neg(gradient));
        }
    }
}

/// Inverses as one node of the graph.
fn inverse_node<B: Native, C: CheckpointStrategy>(
    [w]: [FloatTensor<Autodiff<B, C>>; 1],
) -> FloatTensor<Autodiff<B, C>> {
    let x = B::invert(&w.primitive);
    match Backward::<B, 1>::prepare::<C>(InverseNode, [w.node.clone()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(x.clone(), x),
        OpsKind::UnTracked(prep) => prep.finish(x),
    }
}

#[derive(Debug)]
struct ComplexInverseNode;

impl<B: Native> Backward<B, 1> for ComplexInverseNode {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let x = wrap::<B, 3>(ops.state);
        let cotangent = wrap::<B, 3>(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            // W̄ = −Xᴴ X̄ Xᴴ. Gradients need not be exact to the last bit.
            let product = |a: Tensor<B, 3>, b: Tensor<B, 3>| -> Tensor<B, 3> {
                wrap(B::matmul(
                    &primitive(a),
                    &primitive(b),
                    MatmulPrecision::TensorCores,
                ))
            };
            let embed =
                |z: Tensor<B, 3>| -> Tensor<B, 3> { wrap(B::rearrange(Rearrangement::Embed, &primitive(z))) };
            let left = product(embed(x.clone()).swap_dims(1, 2), cotangent);
            let gradient = product(embed(left), portable::adjoint(x));
            grads.register::<B>(node.id, primitive(gradient.neg()));
        }
    }
}

/// Complex inverses as one node of the graph.
fn complex_inverse_node<B: Native, C: CheckpointStrategy>(
    [w]: [FloatTensor<Autodiff<B, C>>; 1],
) -> FloatTensor<Autodiff<B, C>> {
    let x = B::invert_complex(&w.primitive);
    match Backward::<B, 1>::prepare::<C>(ComplexInverseNode, [w.node.clone()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(x.clone(), x),
        OpsKind::UnTracked(prep) => prep.finish(x),
    }
}
