//! A batch of images through the explicit convolutional layer, forward and backward: one node of
//! the graph.
//!
//! With `F` the table of the Fourier transform and `T` that of its inverse, images `z` one per row,
//! and spectra one per column,
//! ```text
//! ẑ = F zᵀ,   z = ẑᵀ T;   v̂_k = S_k x̂ + V_k ẑ_{k−1},   z_k = σ(v̂_kᵀ T + b_k),   y = (Σ S_kᴴ ẑ_k)ᵀ T.
//! ```
//! The backward pass meets the same products with factors exchanged: `Ĝ = T ȳᵀ`, `Ẑ̄ = S Ĝ`, then
//! layer by layer from the last `z̄_k = (S_k Ĝ + V_{k+1}ᴴ v̂̄_{k+1})ᵀ F`, `v̂̄_k = T (z̄_k ∘ σ′)ᵀ`,
//! and in the end `S̄ = Ẑ Ĝᵀ + v̂̄ x̂ᵀ`, `x̄ = (Sᴴ v̂̄)ᵀ F`. Left to itself, automatic
//! differentiation would fill and add up a gradient of the size of all layers for every one of
//! them.

use std::sync::Arc;

use bilip::Activation;
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
use burn::tensor::{DType, Tensor};

use super::on;
use crate::backend::Native;
use crate::backend::portable::{self, activate};
use crate::base::{primitive, wrap};
use crate::spec::{MatmulPrecision, Transposed};

/// A batch of images through an explicit layer.
pub(crate) fn image_pass<B: Backend>(pass: ImagePass<B>, shape: &Arc<HiddenChannels>) -> Tensor<B, 3> {
    let narrow = pass.x.dtype() == DType::F32;
    let mut native = Err(pack(pass));
    natively!(
        native,
        Flex,
        |a| by_kernels::<Flex>(a, shape),
        image_pass_node,
        shape
    );
    #[cfg(feature = "gpu")]
    if narrow {
        on_gpus!(native, |a, D| by_kernels::<D>(a, shape), image_pass_node, shape);
    }
    #[cfg(not(feature = "gpu"))]
    let _ = narrow;
    match native {
        Ok([y]) => wrap(y),
        Err(arguments) => unpack::<B>(arguments).run(shape, &ByTensorOperations).0,
    }
}

/// What a pass has to know besides its tensors.
#[derive(Clone, Debug)]
pub(crate) struct HiddenChannels {
    /// Hidden channels, layer by layer.
    pub units: Vec<usize>,
    /// A positively homogeneous one.
    pub activation: Activation,
}

/// The tensors of a pass.
///
/// # Shapes
/// `x` is `[channels, batch, pixels]`, `s` is `[frequencies, 2·m, 2·channels]`, `v` has `[2·m_k,
/// 2·m_{k−1}]` of every layer but the first in its rows, `[frequencies, Σ 4·m_k·m_{k−1}]`, `bias`
/// is `[m]`, and the tables are `[2·frequencies, pixels]`.
#[derive(Clone, Debug)]
pub(crate) struct ImagePass<B: Backend> {
    pub x: Tensor<B, 3>,
    pub s: Tensor<B, 3>,
    pub v: Tensor<B, 2>,
    pub bias: Tensor<B, 1>,
    pub forward: FourierTable<B>,
    pub backward: FourierTable<B>,
}

/// Saved for the backward pass.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    /// `x̂` and all `ẑ`.
    driving: Tensor<B, 3>,
    hidden: Tensor<B, 3>,
    /// The images after every activation.
    active: Vec<Tensor<B, 3>>,
}

/// Products as a backend makes them.
trait Multiply<B: Backend> {
    fn multiply<const D: usize>(
        &self,
        a: Tensor<B, D>,
        b: Tensor<B, D>,
        transposed: Transposed,
    ) -> Tensor<B, D>;

    /// Images, one per row, at their frequencies, one per row.
    fn spectra(&self, table: &FourierTable<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.multiply(table.values.clone(), x, Transposed::Right)
    }

    /// The adjoint.
    fn images(&self, z: Tensor<B, 2>, table: &FourierTable<B>) -> Tensor<B, 2> {
        self.multiply(z, table.values.clone(), Transposed::Left)
    }
}

/// A table of the Fourier transform, or of its inverse.
#[derive(Clone, Debug)]
pub(crate) struct FourierTable<B: Backend> {
    /// `[2·frequencies, pixels]`.
    pub values: Tensor<B, 2>,
    pub inverse: bool,
}

/// The backend's own kernels.
struct ByKernels;

impl<B: Native> Multiply<B> for ByKernels {
    fn multiply<const D: usize>(
        &self,
        a: Tensor<B, D>,
        b: Tensor<B, D>,
        transposed: Transposed,
    ) -> Tensor<B, D> {
        wrap(B::product(
            &primitive(a),
            &primitive(b),
            transposed,
            MatmulPrecision::TensorCores,
        ))
    }

    fn spectra(&self, table: &FourierTable<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let values = primitive(table.values.clone());
        wrap(B::spectra(&values, &primitive(x), table.inverse))
    }

    fn images(&self, z: Tensor<B, 2>, table: &FourierTable<B>) -> Tensor<B, 2> {
        let values = primitive(table.values.clone());
        wrap(B::images(&primitive(z), &values, table.inverse))
    }
}

/// Plain tensor operations, which a graph may follow.
struct ByTensorOperations;

impl<B: Backend> Multiply<B> for ByTensorOperations {
    fn multiply<const D: usize>(
        &self,
        a: Tensor<B, D>,
        b: Tensor<B, D>,
        transposed: Transposed,
    ) -> Tensor<B, D> {
        portable::product(a, b, transposed)
    }
}

impl<B: Backend> ImagePass<B> {
    /// The places of every layer: its hidden channels, and its numbers in `v`.
    fn layers(&self, shape: &HiddenChannels) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        let (mut channel, mut number, mut before) = (0, 0, 0);
        shape
            .units
            .iter()
            .map(|&m| {
                let place = (channel..channel + m, number..number + 4 * m * before);
                (channel, number, before) = (place.0.end, place.1.end, m);
                place
            })
            .collect()
    }

    /// `V_k` of a layer, `[frequencies, 2·m_k, 2·m_{k−1}]`.
    fn v(&self, numbers: &std::ops::Range<usize>, m: usize) -> Tensor<B, 3> {
        let [all, _] = self.v.dims();
        let before = numbers.len() / (2 * m);
        self.v
            .clone()
            .slice([0..all, numbers.clone()])
            .reshape([all, 2 * m, before])
    }

    fn spectra(&self, x: Tensor<B, 3>, table: &FourierTable<B>, by: &impl Multiply<B>) -> Tensor<B, 3> {
        let [channels, batch, pixels] = x.dims();
        let all = self.v.dims()[0];
        by.spectra(table, x.reshape([channels * batch, pixels]))
            .reshape([all, 2 * channels, batch])
    }

    fn images(&self, z: Tensor<B, 3>, table: &FourierTable<B>, by: &impl Multiply<B>) -> Tensor<B, 3> {
        let [all, twice, batch] = z.dims();
        let pixels = table.values.dims()[1];
        by.images(z.reshape([2 * all, twice / 2 * batch]), table)
            .reshape([twice / 2, batch, pixels])
    }

    /// `(Σ S_kᴴ ẑ_k)ᵀ T`, `[channels, batch, pixels]`.
    fn run(&self, shape: &HiddenChannels, by: &impl Multiply<B>) -> (Tensor<B, 3>, Tape<B>) {
        let driving = self.spectra(self.x.clone(), &self.forward, by);
        let driven = by.multiply(self.s.clone(), driving.clone(), Transposed::Neither);
        let [all, _, batch] = driven.dims();
        let (mut hidden, mut active): (Vec<Tensor<B, 3>>, _) = (Vec::new(), Vec::new());
        for (channels, numbers) in self.layers(shape) {
            let m = channels.len();
            let rows = 2 * channels.start..2 * channels.end;
            let mut inputs = driven.clone().slice([0..all, rows, 0..batch]);
            if let Some(before) = hidden.last() {
                inputs = inputs + by.multiply(self.v(&numbers, m), before.clone(), Transposed::Neither);
            }
            // Sums over images and over pixels one after the other, not at once, are what GPUs do
            // well.
            let bias = self.bias.clone().slice(channels).reshape([m, 1, 1]);
            let images = self.images(inputs, &self.backward, by) + bias;
            let [_, _, pixels] = images.dims();
            let z = activate(shape.activation, images.reshape([m, batch * pixels]));
            let z = z.reshape([m, batch, pixels]);
            hidden.push(self.spectra(z.clone(), &self.forward, by));
            active.push(z);
        }
        let hidden = Tensor::cat(hidden, 1);
        let back = by.multiply(self.s.clone(), hidden.clone(), Transposed::Left);
        let tape = Tape {
            driving,
            hidden,
            active,
        };
        (self.images(back, &self.backward, by), tape)
    }

    /// Gradients of x, s, v and bias.
    fn gradients(
        &self,
        tape: Tape<B>,
        shape: &HiddenChannels,
        cotangent: Tensor<B, 3>,
        by: &impl Multiply<B>,
    ) -> (Tensor<B, 3>, Tensor<B, 3>, Tensor<B, 2>, Tensor<B, 1>) {
        let back = self.spectra(cotangent, &self.backward, by);
        let from_output = by.multiply(self.s.clone(), back.clone(), Transposed::Neither);
        let [all, _, batch] = from_output.dims();
        let (mut driven, mut v, mut bias) = (Vec::new(), Vec::new(), Vec::new());
        // V of the layer after, and what its inputs are worth.
        let mut after: Option<(Tensor<B, 3>, Tensor<B, 3>)> = None;
        for ((channels, numbers), z) in self.layers(shape).into_iter().zip(tape.active).rev() {
            let m = channels.len();
            let mut d_hidden =
                from_output
                    .clone()
                    .slice([0..all, 2 * channels.start..2 * channels.end, 0..batch]);
            if let Some((v, d_inputs)) = after.take() {
                d_hidden = d_hidden + by.multiply(v, d_inputs, Transposed::Left);
            }
            let d_images = sloped(shape.activation, self.images(d_hidden, &self.forward, by), z);
            bias.push(d_images.clone().sum_dim(1).sum_dim(2).reshape([m]));
            let d_inputs = self.spectra(d_images, &self.backward, by);
            if !numbers.is_empty() {
                let before = numbers.len() / (4 * m);
                let rows = 2 * (channels.start - before)..2 * channels.start;
                let hidden = tape.hidden.clone().slice([0..all, rows, 0..batch]);
                let d_v = by.multiply(d_inputs.clone(), hidden, Transposed::Right);
                v.push(d_v.reshape([all, numbers.len()]));
                after = Some((self.v(&numbers, m), d_inputs.clone()));
            }
            driven.push(d_inputs);
        }
        let whole = |mut parts: Vec<Tensor<B, 3>>| {
            parts.reverse();
            Tensor::cat(parts, 1)
        };
        let driven = whole(driven);
        let s = by.multiply(tape.hidden, back, Transposed::Right)
            + by.multiply(driven.clone(), tape.driving, Transposed::Right);
        let x = by.multiply(self.s.clone(), driven, Transposed::Left);
        v.reverse();
        bias.reverse();
        let v = if v.is_empty() {
            self.v.zeros_like()
        } else {
            Tensor::cat(v, 1)
        };
        (self.images(x, &self.forward, by), s, v, Tensor::cat(bias, 0))
    }
}

/// A cotangent times the slopes of a positively homogeneous activation, read off its values.
fn sloped<B: Backend>(activation: Activation, d: Tensor<B, 3>, z: Tensor<B, 3>) -> Tensor<B, 3> {
    let off = |z: Tensor<B, 3>| z.lower_equal_elem(0.0);
    match activation {
        Activation::Relu => d.mask_fill(off(z), 0.0),
        Activation::LeakyRelu(slope) => {
            let small = d.clone().mul_scalar(slope.get());
            d.mask_where(off(z), small)
        }
        _ => d,
    }
}

/// Arguments in the order in which they travel through the graph.
type Arguments<B> = [FloatTensor<B>; 6];

fn pack<B: Backend>(pass: ImagePass<B>) -> Arguments<B> {
    [
        primitive(pass.x),
        primitive(pass.s),
        primitive(pass.v),
        primitive(pass.bias),
        primitive(pass.forward.values),
        primitive(pass.backward.values),
    ]
}

fn unpack<B: Backend>([x, s, v, bias, forward, backward]: Arguments<B>) -> ImagePass<B> {
    ImagePass {
        x: wrap(x),
        s: wrap(s),
        v: wrap(v),
        bias: wrap(bias),
        forward: FourierTable {
            values: wrap(forward),
            inverse: false,
        },
        backward: FourierTable {
            values: wrap(backward),
            inverse: true,
        },
    }
}

/// The pass on a backend with kernels of its own.
fn by_kernels<B: Native>(arguments: Arguments<B>, shape: &HiddenChannels) -> FloatTensor<B> {
    primitive(unpack::<B>(arguments).run(shape, &ByKernels).0)
}

#[derive(Debug)]
struct ImagePassNode;

impl<B: Native> Backward<B, 4> for ImagePassNode {
    type State = (ImagePass<B>, Tape<B>, Arc<HiddenChannels>);

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (pass, tape, shape) = ops.state;
        let cotangent = wrap::<B, 3>(grads.consume::<B>(&ops.node));
        let (x, s, v, bias) = pass.gradients(tape, &shape, cotangent, &ByKernels);
        let gradients = [primitive(x), primitive(s), primitive(v), primitive(bias)];
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// The pass as one node of the graph; the tables are constants.
fn image_pass_node<B: Native, C: CheckpointStrategy>(
    arguments: Arguments<Autodiff<B, C>>,
    shape: &Arc<HiddenChannels>,
) -> FloatTensor<Autodiff<B, C>> {
    let [x, s, v, bias, _, _] = &arguments;
    let nodes = [x.node.clone(), s.node.clone(), v.node.clone(), bias.node.clone()];
    let pass = unpack::<B>(arguments.map(|t| t.primitive));
    let (y, tape) = pass.run(shape, &ByKernels);
    match Backward::<B, 4>::prepare::<C>(ImagePassNode, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((pass, tape, shape.clone()), primitive(y)),
        OpsKind::UnTracked(prep) => prep.finish(primitive(y)),
    }
}
