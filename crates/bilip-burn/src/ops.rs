//! The differentiable operations: one graph node for a whole monotone layer, one for an orthogonal matrix.
//!
//! The usual pattern of custom operations in Burn: a trait over backends, an implementation for each (here [`Flex`], on
//! faer), and one for [`Autodiff`] whose backward pass is derived by hand and reuses what the forward pass factored.

use std::sync::Arc;

use bilip::Real;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Element, Shape, TensorData};

use crate::kernel::monlip::Layout;
use crate::kernel::{adam, cayley, monlip};

/// A backend on which certified layers can be trained or evaluated.
pub trait CertifiedBackend: Backend {
    /// `F(x)` of a monotone layer.
    ///
    /// # Shapes
    /// `x` is `[batch, n]`, `phi` the layer's flat parameters, `bounds` is `[2]` with (μ, γ), `bias` is `[1, m]` or `[batch, m]`.
    #[doc(hidden)]
    fn monlip(
        x: FloatTensor<Self>,
        phi: FloatTensor<Self>,
        bounds: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        layout: &Arc<Layout>,
    ) -> FloatTensor<Self>;

    /// The Cayley transform of `(gain/‖free‖)·free`: `[n, n]` and `[1]` to `[n, n]`.
    #[doc(hidden)]
    fn cayley(free: FloatTensor<Self>, gain: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What [`Autodiff`] needs of the backend below it: forward passes that keep a tape, and backward passes on it.
pub trait CertifiedKernels: Backend {
    /// The tape of a monotone layer.
    #[doc(hidden)]
    type MonLipTape: Clone + Send + std::fmt::Debug + 'static;
    /// The tape of a Cayley transform.
    #[doc(hidden)]
    type CayleyTape: Clone + Send + std::fmt::Debug + 'static;

    #[doc(hidden)]
    fn monlip_forward(
        inputs: [&FloatTensor<Self>; 4],
        layout: &Layout,
    ) -> (FloatTensor<Self>, Self::MonLipTape);

    /// Gradients of x, φ, bounds and bias.
    #[doc(hidden)]
    fn monlip_backward(
        tape: &Self::MonLipTape,
        phi: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
        layout: &Layout,
    ) -> [FloatTensor<Self>; 4];

    #[doc(hidden)]
    fn cayley_forward(
        free: &FloatTensor<Self>,
        gain: &FloatTensor<Self>,
    ) -> (FloatTensor<Self>, Self::CayleyTape);

    /// Gradients of the matrix and the gain.
    #[doc(hidden)]
    fn cayley_backward(
        tape: &Self::CayleyTape,
        free: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// One step of Adam: the new parameters and moments from the old ones and the gradient.
    #[doc(hidden)]
    fn adam_step(
        parameters: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        moments: [FloatTensor<Self>; 2],
        step: adam::Step,
    ) -> [FloatTensor<Self>; 3];
}

/// A tape in the precision of the tensors it was made from.
#[derive(Debug)]
pub enum Typed<A, B> {
    /// Single precision.
    F32(Arc<A>),
    /// Double precision.
    F64(Arc<B>),
}

impl<A, B> Clone for Typed<A, B> {
    fn clone(&self) -> Self {
        match self {
            Typed::F32(t) => Typed::F32(t.clone()),
            Typed::F64(t) => Typed::F64(t.clone()),
        }
    }
}

type Tensor = FloatTensor<Flex>;

/// The numbers of a tensor, in row-major order.
fn values<T: Real + Element + bytemuck::Pod>(tensor: &Tensor) -> std::borrow::Cow<'_, [T]> {
    match tensor.as_slice::<T>() {
        Some(slice) => slice.into(),
        None => tensor
            .to_contiguous()
            .as_slice::<T>()
            .map(|slice| slice.to_vec())
            .unwrap_or_default()
            .into(),
    }
}

fn tensor<T: Element>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_data(TensorData::new(values, shape))
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

type MonLipTape = Typed<monlip::Tape<f32>, monlip::Tape<f64>>;
type CayleyTape = Typed<cayley::Tape<f32>, cayley::Tape<f64>>;

/// Puts a tape of either precision into the common type.
trait Keep<A, B> {
    fn keep(self) -> Typed<A, B>;
}

impl Keep<monlip::Tape<f32>, monlip::Tape<f64>> for monlip::Tape<f32> {
    fn keep(self) -> MonLipTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<monlip::Tape<f32>, monlip::Tape<f64>> for monlip::Tape<f64> {
    fn keep(self) -> MonLipTape {
        Typed::F64(Arc::new(self))
    }
}

impl Keep<cayley::Tape<f32>, cayley::Tape<f64>> for cayley::Tape<f32> {
    fn keep(self) -> CayleyTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<cayley::Tape<f32>, cayley::Tape<f64>> for cayley::Tape<f64> {
    fn keep(self) -> CayleyTape {
        Typed::F64(Arc::new(self))
    }
}

fn monlip_gradients<T: Real + Element + bytemuck::Pod>(
    tape: &monlip::Tape<T>,
    phi: &Tensor,
    cotangent: &Tensor,
    layout: &Layout,
) -> [Tensor; 4] {
    let dy = values::<T>(cotangent);
    let rows = dy.len() / layout.n;
    let m = layout.hidden();
    let g = monlip::backward(layout, tape, &values::<T>(phi), &dy);
    let bias_rows = g.bias.len() / m;
    [
        tensor(g.x, [rows, layout.n]),
        tensor(g.phi, [layout.len]),
        tensor(g.bounds.to_vec(), [2]),
        tensor(g.bias, [bias_rows, m]),
    ]
}

fn row_major<T: Real>(m: bilip::faer::MatRef<'_, T>) -> Vec<T> {
    let mut out = Vec::with_capacity(m.nrows() * m.ncols());
    for i in 0..m.nrows() {
        for j in 0..m.ncols() {
            out.push(m[(i, j)]);
        }
    }
    out
}

fn square<T>(values: &[T]) -> bilip::faer::MatRef<'_, T> {
    let n = values.len().isqrt();
    bilip::faer::MatRef::from_row_major_slice(values, n, n)
}

fn cayley_gradients<T: Real + Element + bytemuck::Pod>(
    tape: &cayley::Tape<T>,
    free: &Tensor,
    cotangent: &Tensor,
) -> [Tensor; 2] {
    let (free, cotangent) = (values::<T>(free), values::<T>(cotangent));
    let n = free.len().isqrt();
    let mut out = vec![T::zero(); n * n];
    let full = bilip::faer::MatMut::from_row_major_slice_mut(&mut out, n, n);
    let gain = cayley::backward(tape, square(&free), square(&cotangent), full);
    [tensor(out, [n, n]), tensor(vec![gain], [1])]
}

impl CertifiedKernels for Flex {
    type MonLipTape = MonLipTape;
    type CayleyTape = CayleyTape;

    fn monlip_forward([x, phi, bounds, bias]: [&Tensor; 4], layout: &Layout) -> (Tensor, MonLipTape) {
        in_precision!(x, T => {
            let (x, bounds) = (values::<T>(x), values::<T>(bounds));
            let rows = x.len() / layout.n;
            let (y, tape) =
                monlip::forward(layout, &x, &values::<T>(phi), bounds[0], bounds[1], &values::<T>(bias));
            (tensor(y, [rows, layout.n]), tape.keep())
        })
    }

    fn monlip_backward(tape: &MonLipTape, phi: &Tensor, cotangent: Tensor, layout: &Layout) -> [Tensor; 4] {
        match tape {
            Typed::F32(tape) => monlip_gradients(tape, phi, &cotangent, layout),
            Typed::F64(tape) => monlip_gradients(tape, phi, &cotangent, layout),
        }
    }

    fn cayley_forward(free: &Tensor, gain: &Tensor) -> (Tensor, CayleyTape) {
        in_precision!(free, T => {
            let values_of = values::<T>(free);
            let tape = cayley::forward(square(&values_of), values::<T>(gain)[0]);
            let n = tape.j.nrows();
            (tensor(row_major(tape.j.as_ref()), [n, n]), tape.keep())
        })
    }

    fn cayley_backward(tape: &CayleyTape, free: &Tensor, cotangent: Tensor) -> [Tensor; 2] {
        match tape {
            Typed::F32(tape) => cayley_gradients(tape, free, &cotangent),
            Typed::F64(tape) => cayley_gradients(tape, free, &cotangent),
        }
    }

    fn adam_step(
        parameters: Tensor,
        gradient: Tensor,
        moments: [Tensor; 2],
        step: adam::Step,
    ) -> [Tensor; 3] {
        // In place where nobody else holds the numbers, which is the rule in a training loop.
        let [first, second] = moments;
        let mut tensors =
            [parameters, first, second].map(|t| if t.is_contiguous() { t } else { t.to_contiguous() });
        in_precision!(gradient, T => {
            let [w, m, v] = &mut tensors;
            adam::step(
                w.storage_mut::<T>(),
                &values::<T>(&gradient),
                m.storage_mut::<T>(),
                v.storage_mut::<T>(),
                step,
            );
        });
        tensors
    }
}

impl CertifiedBackend for Flex {
    fn monlip(x: Tensor, phi: Tensor, bounds: Tensor, bias: Tensor, layout: &Arc<Layout>) -> Tensor {
        Self::monlip_forward([&x, &phi, &bounds, &bias], layout).0
    }

    fn cayley(free: Tensor, gain: Tensor) -> Tensor {
        Self::cayley_forward(&free, &gain).0
    }
}

#[derive(Debug)]
struct MonLipNode;

impl<B: CertifiedKernels> Backward<B, 4> for MonLipNode {
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

impl<B: CertifiedKernels> Backward<B, 2> for CayleyNode {
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

impl<B: CertifiedKernels, C: CheckpointStrategy> CertifiedBackend for Autodiff<B, C> {
    fn monlip(
        x: FloatTensor<Self>,
        phi: FloatTensor<Self>,
        bounds: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        layout: &Arc<Layout>,
    ) -> FloatTensor<Self> {
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

    fn cayley(free: FloatTensor<Self>, gain: FloatTensor<Self>) -> FloatTensor<Self> {
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
}
