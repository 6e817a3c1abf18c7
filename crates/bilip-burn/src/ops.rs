//! The differentiable operations: one graph node for a whole monotone layer, one for an orthogonal matrix.
//!
//! On [`Flex`] they run on faer with a backward pass that is derived by hand and reuses what the forward pass inverted;
//! on every other backend as the tensor operations of [`portable`].

use std::any::{Any, TypeId};
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
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorMetadata, TensorPrimitive};

use crate::conv::pass::{self, Pass, Shape, node as pass_node};
#[cfg(feature = "gpu")]
use crate::gpu;
use crate::kernel::adam;
use crate::kernel::monlip::Layout;
use crate::portable;

/// The operation on the backend `$n`: by itself, or as a node of the graph under [`Autodiff`] with either strategy.
macro_rules! natively {
    ($native:ident, $n:ty, |$a:ident| $plain:expr, $node:ident, $($extra:expr)?) => {
        $native = $native
            .or_else(|a| on::<B, $n, _, 1>(a, |$a| [$plain]))
            .or_else(|a| {
                on::<B, Autodiff<$n, NoCheckpointing>, _, 1>(a, |a| {
                    [$node::<$n, NoCheckpointing>(a, $($extra)?)]
                })
            })
            .or_else(|a| {
                on::<B, Autodiff<$n, BalancedCheckpointing>, _, 1>(a, |a| {
                    [$node::<$n, BalancedCheckpointing>(a, $($extra)?)]
                })
            });
    };
}

/// The same on the GPU backends that are built in.
#[cfg(feature = "gpu")]
macro_rules! on_gpus {
    ($native:ident, |$a:ident, $d:ident| $plain:expr, $node:ident, $($extra:expr)?) => {
        #[cfg(feature = "cuda")]
        {
            type $d = Cuda;
            natively!($native, $d, |$a| $plain, $node, $($extra)?);
        }
        #[cfg(feature = "wgpu")]
        {
            type $d = Wgpu;
            natively!($native, $d, |$a| $plain, $node, $($extra)?);
        }
    };
}

/// Runs `work` in the precision of the tensor; anything but f32 and f64 is our own mistake to have let in.
macro_rules! in_precision {
    ($tensor:expr, $t:ident => $work:expr) => {
        match $tensor.dtype() {
            DType::F64 => {
                type $t = f64;
                $work
            }
            _ => {
                type $t = f32;
                $work
            }
        }
    };
}

mod convolve;
mod cpu;
mod linear;
pub(crate) use convolve::convolve;
use cpu::{Flat, tensor, values};
pub(crate) use linear::{Linear, Strips, Window, embed, exchanged, fold, skew, strips, unfold};

/// `F(x)` of a monotone layer.
///
/// # Shapes
/// `x` is `[batch, n]`, `phi` the layer's flat parameters, `bounds` is `[2]` with (μ, γ), `bias` is `[1, m]` or `[batch, m]`.
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
    if native.as_ref().is_err_and(|a| gpu::suits(layout, a[0].dtype())) {
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

/// The Cayley transform of `(gain/‖free‖)·free`: `[n, n]` and `[1]` to `[n, n]`.
pub(crate) fn cayley<B: Backend>(free: Tensor<B, 2>, gain: Tensor<B, 1>) -> Tensor<B, 2> {
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

/// How exact a product has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// As exact as its factors.
    Full,
    /// Factors of eleven bits are enough, where tensor cores make such a product cheaper.
    Rough,
}

/// Which factor of a product is transposed. A gradient comes in the order of its factor, which a transposition before the product would turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// `A·B`.
    Plain,
    /// `Aᵀ·B`.
    Left,
    /// `A·Bᵀ`.
    Right,
}

/// `A·B`, in the precision of its factors: matrices, or as many of them on either side.
///
/// Burn's own product takes tensor cores on GPUs that have them, which round single precision to 11 bits; this does not.
pub(crate) fn matmul<B: Backend, const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>) -> Tensor<B, D> {
    product(a, b, Order::Plain, Precision::Full)
}

/// A product with tensor cores where there are any: for maps of images, which no transform is computed from.
pub(crate) fn rough<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    order: Order,
) -> Tensor<B, D> {
    product(a, b, order, Precision::Rough)
}

#[cfg_attr(not(feature = "gpu"), expect(unused_variables))]
fn product<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    order: Order,
    precision: Precision,
) -> Tensor<B, D> {
    #[cfg(feature = "gpu")]
    if a.dtype() == DType::F32 {
        let mut native = Err([a.into_primitive().tensor(), b.into_primitive().tensor()]);
        on_gpus!(
            native,
            |a, D| D::ordered(&a[0], &a[1], order, precision),
            product_node,
            (order, precision)
        );
        return match native {
            Ok([c]) => wrap(c),
            Err([a, b]) => portable::product(wrap(a), wrap(b), order),
        };
    }
    portable::product(a, b, order)
}

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

/// The inverses of complex matrices whose Hermitian part is ⪰ I, real parts above imaginary ones: `[count, 2n, n]` to the same.
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

/// A batch of images through an explicit layer.
pub(crate) fn pass<B: Backend>(pass: Pass<B>, shape: &Arc<Shape>) -> Tensor<B, 3> {
    let narrow = pass.x.dtype() == DType::F32;
    let mut native = Err(pass::pack(pass));
    natively!(
        native,
        Flex,
        |a| pass::natively::<Flex>(a, shape),
        pass_node,
        shape
    );
    #[cfg(feature = "gpu")]
    if narrow {
        on_gpus!(native, |a, D| pass::natively::<D>(a, shape), pass_node, shape);
    }
    #[cfg(not(feature = "gpu"))]
    let _ = narrow;
    match native {
        Ok([y]) => wrap(y),
        Err(arguments) => pass::unpack::<B>(arguments).run(shape, &pass::Plain).0,
    }
}

/// One step of Adam: the new parameters and moments from the old ones and the gradient.
pub(crate) fn adam_step<B: Backend, const D: usize>(
    tensors: [Tensor<B, D>; 4],
    step: adam::Step,
) -> [Tensor<B, D>; 3] {
    let mut native = Err(tensors.map(|t| t.into_primitive().tensor()));
    native = native.or_else(|a| on::<B, Flex, 4, 3>(a, |a| Flex::adam_step(a, step)));
    #[cfg(feature = "gpu")]
    if native.as_ref().is_err_and(|a| a[0].dtype() == DType::F32) {
        #[cfg(feature = "cuda")]
        {
            type D = Cuda;
            native = native.or_else(|a| on::<B, D, 4, 3>(a, |a| D::adam_step(a, step)));
        }
        #[cfg(feature = "wgpu")]
        {
            type D = Wgpu;
            native = native.or_else(|a| on::<B, D, 4, 3>(a, |a| D::adam_step(a, step)));
        }
    }
    match native {
        Ok(tensors) => tensors.map(wrap),
        Err(tensors) => portable::adam_step(tensors.map(wrap), step),
    }
}

pub(crate) fn wrap<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// Runs `work` if `B` is the backend `N`, gives the arguments back otherwise.
///
/// Rust cannot choose an implementation for one backend over that for all of them at compile time; the types are
/// compared at run time instead, so that the modules ask nothing of a backend and yet run natively where they can.
fn on<B: Backend, N: Backend, const A: usize, const R: usize>(
    arguments: [FloatTensor<B>; A],
    work: impl FnOnce([FloatTensor<N>; A]) -> [FloatTensor<N>; R],
) -> std::result::Result<[FloatTensor<B>; R], [FloatTensor<B>; A]> {
    // The kernels know single and double precision, all tensors in one of them; the rest is for tensor operations.
    let dtype = arguments.first().map(|a| a.dtype());
    let known =
        matches!(dtype, Some(DType::F32 | DType::F64)) && arguments.iter().all(|a| Some(a.dtype()) == dtype);
    if TypeId::of::<B>() != TypeId::of::<N>() || !known {
        return Err(arguments);
    }
    let arguments = same::<_, [FloatTensor<N>; A]>(arguments)?;
    // B is N, so the result is of the type wanted.
    Ok(same(work(arguments)).unwrap_or_else(|_| unreachable!("equal types")))
}

/// The value, as the type that it has.
fn same<A: 'static, B: 'static>(value: A) -> std::result::Result<B, A> {
    let mut slot = Some(value);
    match (&mut slot as &mut dyn Any).downcast_mut::<Option<B>>() {
        Some(found) => found.take().ok_or_else(|| unreachable!("just filled")),
        None => Err(slot.unwrap_or_else(|| unreachable!("just filled"))),
    }
}

/// What [`Autodiff`] needs of the backend below it: forward passes that keep a tape, and backward passes on it.
pub(crate) trait Kernels: Backend {
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
            |a, b| wrap(Self::product(&primitive(a), &primitive(b), Precision::Full)),
        ))
    }

    /// The product of two matrices, or of as many on either side.
    fn product(a: &FloatTensor<Self>, b: &FloatTensor<Self>, _: Precision) -> FloatTensor<Self> {
        Self::float_matmul(a.clone(), b.clone())
    }

    /// A product with one of its factors transposed, or none.
    fn ordered(
        a: &FloatTensor<Self>,
        b: &FloatTensor<Self>,
        order: Order,
        precision: Precision,
    ) -> FloatTensor<Self> {
        let turned = |t: &FloatTensor<Self>| Self::float_transpose(t.clone());
        match order {
            Order::Plain => Self::product(a, b, precision),
            Order::Left => Self::product(&turned(a), b, precision),
            Order::Right => Self::product(a, &turned(b), precision),
        }
    }

    /// Images, one per row, at their frequencies: a product with a table, that of the inverse transform or the other.
    ///
    /// # Shapes
    /// `[2·frequencies, pixels]` and `[images, pixels] → [2·frequencies, images]`
    fn spectra(table: &FloatTensor<Self>, x: &FloatTensor<Self>, _inverse: bool) -> FloatTensor<Self> {
        Self::ordered(table, x, Order::Right, Precision::Rough)
    }

    /// The adjoint.
    ///
    /// # Shapes
    /// `[2·frequencies, images]` and `[2·frequencies, pixels] → [images, pixels]`
    fn images(z: &FloatTensor<Self>, table: &FloatTensor<Self>, _inverse: bool) -> FloatTensor<Self> {
        Self::ordered(z, table, Order::Left, Precision::Rough)
    }

    /// A linear map.
    fn mapped(map: Linear, x: &FloatTensor<Self>) -> FloatTensor<Self> {
        map.plainly::<Self>(x.clone())
    }

    /// Its adjoint.
    fn mapped_back(map: Linear, d: &FloatTensor<Self>) -> FloatTensor<Self> {
        map.adjoint_plainly::<Self>(d.clone())
    }

    /// One step of Adam on parameters, gradient and both moments: the new parameters and moments.
    fn adam_step(tensors: [FloatTensor<Self>; 4], step: adam::Step) -> [FloatTensor<Self>; 3];
}

#[derive(Debug)]
struct MonLipNode;

impl<B: Kernels> Backward<B, 4> for MonLipNode {
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

#[derive(Debug)]
struct CayleyNode;

impl<B: Kernels> Backward<B, 2> for CayleyNode {
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

#[derive(Debug)]
struct InverseNode;

impl<B: Kernels> Backward<B, 1> for InverseNode {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let x = B::float_transpose(ops.state);
        let cotangent = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            // W̄ = −Xᵀ X̄ Xᵀ.
            let product = |a, b| B::product(a, b, Precision::Full);
            let gradient = product(&product(&x, &cotangent), &x);
            grads.register::<B>(node.id, B::float_neg(gradient));
        }
    }
}

/// Inverses as one node of the graph.
fn inverse_node<B: Kernels, C: CheckpointStrategy>(
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

impl<B: Kernels> Backward<B, 1> for ComplexInverseNode {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let x = wrap::<B, 3>(ops.state);
        let cotangent = wrap::<B, 3>(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            // W̄ = −Xᴴ X̄ Xᴴ. Gradients need not be exact to the last bit.
            let product = |a: Tensor<B, 3>, b: Tensor<B, 3>| -> Tensor<B, 3> {
                wrap(B::product(&primitive(a), &primitive(b), Precision::Rough))
            };
            let embed = |z: Tensor<B, 3>| -> Tensor<B, 3> { wrap(B::mapped(Linear::Embed, &primitive(z))) };
            let left = product(embed(x.clone()).swap_dims(1, 2), cotangent);
            let gradient = product(embed(left), portable::adjoint(x));
            grads.register::<B>(node.id, primitive(gradient.neg()));
        }
    }
}

/// Complex inverses as one node of the graph.
fn complex_inverse_node<B: Kernels, C: CheckpointStrategy>(
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

#[cfg(feature = "gpu")]
#[derive(Debug)]
struct ProductNode;

#[cfg(feature = "gpu")]
impl<B: Kernels> Backward<B, 2> for ProductNode {
    type State = (FloatTensor<B>, FloatTensor<B>, Order, Precision);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (a, b, order, precision) = ops.state;
        let g = grads.consume::<B>(&ops.node);
        let [left, right] = ops.parents;
        if let Some(node) = left {
            let gradient = match order {
                Order::Plain => B::ordered(&g, &b, Order::Right, precision),
                Order::Left => B::ordered(&b, &g, Order::Right, precision),
                Order::Right => B::ordered(&g, &b, Order::Plain, precision),
            };
            grads.register::<B>(node.id, gradient);
        }
        if let Some(node) = right {
            let gradient = match order {
                Order::Plain => B::ordered(&a, &g, Order::Left, precision),
                Order::Left => B::ordered(&a, &g, Order::Plain, precision),
                Order::Right => B::ordered(&g, &a, Order::Left, precision),
            };
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// A product as one node of the graph.
#[cfg(feature = "gpu")]
fn product_node<B: Kernels, C: CheckpointStrategy>(
    [a, b]: [FloatTensor<Autodiff<B, C>>; 2],
    (order, precision): (Order, Precision),
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = [a.node.clone(), b.node.clone()];
    let c = B::ordered(&a.primitive, &b.primitive, order, precision);
    match Backward::<B, 2>::prepare::<C>(ProductNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((a.primitive, b.primitive, order, precision), c),
        OpsKind::UnTracked(prep) => prep.finish(c),
    }
}

/// A monotone layer as one node of the graph.
fn monlip_node<B: Kernels, C: CheckpointStrategy>(
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

/// A Cayley transform as one node of the graph.
fn cayley_node<B: Kernels, C: CheckpointStrategy>(
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
