//! The differentiable operations on GPUs: everything a layer does, forward and backward, in a few dozen launches.
//!
//! The mathematics is that of [`crate::kernel`], ordered for a device that likes few and large pieces of work: all
//! transforms of a layer go through each product together, and nothing waits for the host. Single precision only.

mod element;
mod hidden;
mod linear;
mod product;
#[cfg(test)]
mod tests;
mod transforms;

use std::sync::Arc;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::element::BoolElement;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeRuntime};
use cubecl::client::ComputeClient;
use cubecl::prelude::*;
use cubecl::{CubeDim, calculate_cube_count_elemwise};

use crate::kernel::adam::Step;
use crate::kernel::monlip::Layout;
use crate::ops::{Kernels, Linear, Precision};
use element::{Column, Plan, UNITS};
use hidden::{Chain, Kind};
use product::{Tile, View, count, inverse, product};
use transforms::{Transforms, plan_of, square_plan};

/// A runtime of CubeCL that Burn has a backend for.
pub(crate) trait Gpu: CubeRuntime {}
impl<R: CubeRuntime> Gpu for R {}

/// Numbers in device memory, one after the other.
#[derive(Clone, Debug)]
pub struct Buffer<R: CubeRuntime>(CubeTensor<R>);

impl<R: CubeRuntime> Buffer<R> {
    fn of(tensor: &CubeTensor<R>) -> Self {
        Buffer(into_contiguous(tensor.clone()))
    }

    /// The tensor as it lies in memory, if that is without gaps: transposed, maybe.
    fn dense(tensor: &CubeTensor<R>) -> Self {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let span: usize = (0..strides.len()).map(|k| strides[k] * (shape[k] - 1)).sum();
        match span < shape.num_elements() {
            true => Buffer(tensor.clone()),
            false => Buffer::of(tensor),
        }
    }

    fn client(&self) -> &ComputeClient<R> {
        &self.0.client
    }

    fn array(&self) -> ArrayArg<R> {
        self.0.clone().into_array_arg()
    }

    /// Another one on the same device, not yet filled.
    fn like(&self, len: usize) -> Self {
        // Kernels must be given some memory even where they will not touch it.
        self.shaped([len.max(1)])
    }

    fn shaped(&self, shape: impl Into<Shape>) -> Self {
        Buffer(empty_device_contiguous_dtype(
            self.0.client.clone(),
            self.0.device.clone(),
            shape.into(),
            DType::F32,
        ))
    }

    /// A launch with one unit a number.
    fn units(&self, count: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(UNITS);
        (calculate_cube_count_elemwise(self.client(), count, dim), dim)
    }
}

/// Whether these kernels can run a layer; others take the portable path.
pub(crate) fn suits(layout: &Layout, dtype: DType) -> bool {
    dtype == DType::F32 && layout.extra + layout.hidden() >= layout.n
}

fn padded(width: usize) -> usize {
    if width <= 32 {
        32
    } else {
        width.next_multiple_of(64)
    }
}

/// Saved for backward through a monotone layer.
#[derive(Clone, Debug)]
pub struct MonLipTape<R: CubeRuntime> {
    transforms: Transforms<R>,
    plan: Arc<Plan>,
    v: Buffer<R>,
    s: Buffer<R>,
    x: Buffer<R>,
    bounds: Buffer<R>,
    z: Buffer<R>,
    slopes: Buffer<R>,
    pre: Buffer<R>,
    rows: usize,
    bias_per_row: bool,
}

/// Saved for backward through a square transform.
#[derive(Clone, Debug)]
pub struct CayleyTape<R: CubeRuntime> {
    gain: Buffer<R>,
    j: Buffer<R>,
    /// Where it was too large for one cube.
    large: Option<(Transforms<R>, Arc<Plan>)>,
}

/// Entries a unit, in each direction, of a square matrix in one cube; none if it is too large.
fn small(n: usize) -> Option<usize> {
    match n {
        0..=32 => Some(2),
        33..=64 => Some(4),
        _ => None,
    }
}

impl<R: Gpu, B: BoolElement> Kernels for CubeBackend<R, f32, i32, B> {
    type MonLipTape = MonLipTape<R>;
    type CayleyTape = CayleyTape<R>;

    fn monlip_forward(
        [x, phi, bounds, bias]: [&FloatTensor<Self>; 4],
        layout: &Layout,
    ) -> (FloatTensor<Self>, Self::MonLipTape) {
        let bias_per_row = bias.shape()[0] > 1;
        let (x, phi, bounds, bias) = (
            Buffer::of(x),
            Buffer::of(phi),
            Buffer::of(bounds),
            Buffer::of(bias),
        );
        let plan = plan_of(layout);
        let (layers, size, n) = (plan.layers.len(), plan.size, plan.n);
        let (square, after, stride) = (size * size, layers - 1, layers * size);
        let rows = x.0.shape()[0];
        let transforms = Transforms::forward(&phi, &phi, &plan);
        // V_k = 2J₂ₖᵀJ₁,ₖ₋₁ and S_k = J₁ₖᵀQ_k + J₂ₖᵀ(−Q_{k−1}).
        let j = View::new(&transforms.j, size, 2 * square);
        let j2 = j.at(3 * square);
        let chain = Chain::choose(size, rows);
        let v = x.like(after * square);
        let weights = View::new(&v, size, square);
        // A chain reads the weights transposed forward, and as they are backward.
        let to = if chain.is_some() { weights.t() } else { weights };
        product(j2.t(), j, to, (size, size, size), after, 2.0, false);
        let q = View::new(&transforms.q, n, size * n);
        let s = x.like(stride * n);
        let to = View::new(&s, n, size * n);
        product(j.t(), q, to, (size, n, size), layers, 1.0, false);
        product(j2.t(), q, to.at(size * n), (size, n, size), after, -1.0, true);
        // The batch.
        let inputs = x.like(rows * stride);
        let (batch, all) = (View::new(&x, n, 0), View::new(&s, n, 0));
        product(
            batch,
            all.t(),
            View::new(&inputs, stride, 0),
            (rows, stride, n),
            1,
            1.0,
            false,
        );
        let learned = plan.log_psi.is_some();
        let (z, slopes) = (x.like(rows * stride), x.like(rows * stride));
        let pre = x.like(if learned { rows * stride } else { 1 });
        let hidden = View::new(&z, stride, size);
        if let Some(chain) = chain {
            hidden::forward_chain::launch::<R>(
                x.client(),
                count(rows.div_ceil(chain.rows()), 1, 1),
                CubeDim::new_1d(UNITS),
                v.array(),
                inputs.array(),
                bias.array(),
                phi.array(),
                bounds.array(),
                z.array(),
                slopes.array(),
                pre.array(),
                rows as u32,
                bias_per_row,
                Kind::from(layout.activation),
                chain,
                plan.clone(),
            );
        } else {
            for layer in 0..layers {
                let previous = hidden.at(layer.saturating_sub(1) * size);
                let weight = weights.at(layer.saturating_sub(1) * square).t();
                let tile = Tile::choose(&previous, &weight, (rows, size), 1);
                hidden::forward_layer::launch::<R>(
                    x.client(),
                    count(size.div_ceil(tile.size()), rows.div_ceil(tile.size()), 1),
                    CubeDim::new_2d(16, 16),
                    v.array(),
                    weight.place(),
                    inputs.array(),
                    bias.array(),
                    phi.array(),
                    bounds.array(),
                    z.array(),
                    previous.place(),
                    slopes.array(),
                    pre.array(),
                    rows as u32,
                    layer as u32,
                    layer == 0,
                    bias_per_row,
                    Kind::from(layout.activation),
                    tile,
                    plan.clone(),
                );
            }
        }
        let parts = x.like(layers * rows * n);
        let to = View::new(&parts, n, rows * n);
        product(
            hidden,
            View::new(&s, n, size * n),
            to,
            (rows, n, size),
            layers,
            1.0,
            false,
        );
        let y = x.shaped([rows, n]);
        finish_rows(&x, &parts, &phi, &bounds, &y, true, &plan);
        let tape = MonLipTape {
            transforms,
            plan,
            v,
            s,
            x,
            bounds,
            z,
            slopes,
            pre,
            rows,
            bias_per_row,
        };
        (y.0, tape)
    }

    fn monlip_backward(
        tape: &Self::MonLipTape,
        phi: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
        _: &Layout,
    ) -> [FloatTensor<Self>; 4] {
        let (dy, phi) = (Buffer::of(&cotangent), Buffer::of(phi));
        let MonLipTape {
            transforms,
            plan,
            rows,
            x,
            bounds,
            ..
        } = tape;
        let rows = *rows;
        let (layers, size, n) = (plan.layers.len(), plan.size, plan.n);
        let (square, after, stride) = (size * size, layers - 1, layers * size);
        let client = dy.client();
        let learned = plan.log_psi.is_some();

        // 1. Up the batch.
        let delta = dy.like(rows * stride);
        let (cotangents, batch) = (View::new(&dy, n, 0), View::new(x, n, 0));
        let (all, each) = (View::new(&tape.s, n, 0), View::new(&tape.s, n, size * n));
        let deltas = View::new(&delta, stride, size);
        product(cotangents, all.t(), deltas, (rows, stride, n), 1, 1.0, false);
        let dz = dy.like(if learned { rows * stride } else { 1 });
        let full = (size, size, size);
        let j = View::new(&transforms.j, size, 2 * square);
        let j2 = j.at(3 * square);
        let chain = Chain::choose(size, rows);
        let v = if chain.is_some() {
            let v = dy.like(after * square);
            product(j2.t(), j, View::new(&v, size, square), full, after, 2.0, false);
            v
        } else {
            tape.v.clone()
        };
        let weights = View::new(&v, size, square);
        if let Some(chain) = chain {
            hidden::backward_chain::launch::<R>(
                client,
                count(rows.div_ceil(chain.rows()), 1, 1),
                CubeDim::new_1d(UNITS),
                v.array(),
                tape.slopes.array(),
                bounds.array(),
                delta.array(),
                dz.array(),
                rows as u32,
                chain,
                plan.clone(),
            );
        } else {
            for layer in (0..layers).rev() {
                let next = deltas.at((layer + 1).min(layers - 1) * size);
                let weight = weights.at(layer.min(after.saturating_sub(1)) * square);
                let tile = Tile::choose(&next, &weight, (rows, size), 1);
                hidden::backward_layer::launch::<R>(
                    client,
                    count(size.div_ceil(tile.size()), rows.div_ceil(tile.size()), 1),
                    CubeDim::new_2d(16, 16),
                    v.array(),
                    weight.place(),
                    tape.slopes.array(),
                    bounds.array(),
                    delta.array(),
                    next.place(),
                    dz.array(),
                    rows as u32,
                    layer as u32,
                    layer + 1 == layers,
                    tile,
                    plan.clone(),
                );
            }
        }
        let parts = dy.like(layers * rows * n);
        let to = View::new(&parts, n, rows * n);
        product(deltas, each, to, (rows, n, size), layers, 1.0, false);
        let dx = dy.shaped([rows, n]);
        finish_rows(&dy, &parts, &phi, bounds, &dx, false, plan);

        // 2. The weights: V̄_k = δ_kᵀẑ_{k−1}, S̄ from both of its uses.
        let hidden = View::new(&tape.z, stride, size);
        let dv = dy.like(after * square);
        let d_weights = View::new(&dv, size, square);
        product(
            deltas.at(size).t(),
            hidden,
            d_weights,
            (size, size, rows),
            after,
            1.0,
            false,
        );
        let (ds, second) = (dy.like(stride * n), dy.like(stride * n));
        product(
            deltas.t(),
            batch,
            View::new(&ds, n, 0),
            (stride, n, rows),
            1,
            1.0,
            false,
        );
        let to = View::new(&second, n, 0);
        product(hidden.t(), cotangents, to, (stride, n, rows), 1, 1.0, false);
        let (cubes, dim) = dy.units(stride * n);
        let part_count = cubes_of(&cubes);
        let parts = dy.like(part_count);
        element::weigh::launch::<R>(
            client,
            cubes,
            dim,
            ds.array(),
            second.array(),
            tape.s.array(),
            bounds.array(),
            parts.array(),
            (stride * n) as u32,
        );
        let d_bounds = dy.shaped([2]);
        element::finish_bounds::launch::<R>(
            client,
            count(2, 1, 1),
            CubeDim::new_1d(256),
            x.array(),
            dy.array(),
            parts.array(),
            d_bounds.array(),
            (rows * n) as u32,
            part_count as u32,
        );

        // 3. The transforms.
        let dj = dy.like(2 * layers * square);
        let to = View::new(&dj, size, 2 * square);
        let q = View::new(&transforms.q, n, size * n);
        let ds_each = View::new(&ds, n, size * n);
        product(q, ds_each.t(), to, (size, size, n), layers, 1.0, false);
        product(j2, d_weights, to, full, after, 2.0, true);
        let below = to.at(3 * square);
        let ds_next = ds_each.at(size * n);
        product(q, ds_next.t(), below, (size, size, n), after, -1.0, false);
        product(j, d_weights.t(), below, full, after, 2.0, true);
        let dq = dy.like(stride * n);
        let to = View::new(&dq, n, size * n);
        product(j, ds_each, to, (size, n, size), layers, 1.0, false);
        product(j2, ds_next, to, (size, n, size), after, -1.0, true);
        let packed = transforms.backward(&dj, Some(&dq), plan);

        // 4. Sums over the batch, and the gradient of φ.
        let sums = |values: &Buffer<R>, column: Column, columns: usize| {
            let out = dy.shaped([1, columns]);
            element::column_sums::launch::<R>(
                client,
                count(columns.div_ceil(32), 1, 1),
                CubeDim::new_2d(32, 8),
                values.array(),
                tape.z.array(),
                tape.pre.array(),
                tape.slopes.array(),
                out.array(),
                rows as u32,
                column,
                plan.clone(),
            );
            out
        };
        let d_output_bias = sums(&dy, Column::Plain, n);
        let d_psi = if learned {
            sums(&dz, Column::Psi, plan.hidden)
        } else {
            dy.like(1)
        };
        let d_bias = if tape.bias_per_row {
            let out = dy.shaped([rows, plan.hidden]);
            let (cubes, dim) = dy.units(rows * plan.hidden);
            element::unpad_rows::launch::<R>(
                client,
                cubes,
                dim,
                delta.array(),
                out.array(),
                (rows * plan.hidden) as u32,
                plan.clone(),
            );
            out
        } else {
            sums(&delta, Column::Bias, plan.hidden)
        };
        let (d_phi, _) = transforms.finish(&phi, &phi, &packed, &d_output_bias, &d_psi, plan);
        [dx.0, d_phi.0, d_bounds.0, d_bias.0]
    }

    fn cayley_forward(
        free: &FloatTensor<Self>,
        gain: &FloatTensor<Self>,
    ) -> (FloatTensor<Self>, Self::CayleyTape) {
        let (free, gain) = (Buffer::of(free), Buffer::of(gain));
        let n = free.0.shape()[0];
        let j = free.shaped([n, n]);
        let large = if let Some(per_unit) = small(n) {
            element::small_forward::launch::<R>(
                free.client(),
                count(1, 1, 1),
                CubeDim::new_2d(16, 16),
                free.array(),
                gain.array(),
                j.array(),
                n as u32,
                per_unit,
            );
            None
        } else {
            let plan = square_plan(n);
            let transforms = Transforms::forward(&free, &gain, &plan);
            let (cubes, dim) = free.units(n * n);
            element::top::launch::<R>(
                free.client(),
                cubes,
                dim,
                transforms.x.array(),
                j.array(),
                n as u32,
                plan.size as u32,
            );
            Some((transforms, plan))
        };
        let tape = CayleyTape {
            gain,
            j: j.clone(),
            large,
        };
        (j.0, tape)
    }

    fn cayley_backward(
        tape: &Self::CayleyTape,
        free: &FloatTensor<Self>,
        cotangent: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        let (free, dj) = (Buffer::of(free), Buffer::of(&cotangent));
        let gain = &tape.gain;
        let n = free.0.shape()[0];
        let d_gain = free.shaped([1]);
        let Some((transforms, plan)) = &tape.large else {
            let d_free = free.shaped([n, n]);
            element::small_backward::launch::<R>(
                free.client(),
                count(1, 1, 1),
                CubeDim::new_2d(16, 16),
                free.array(),
                gain.array(),
                tape.j.array(),
                dj.array(),
                d_free.array(),
                d_gain.array(),
                n as u32,
                small(n).unwrap_or(4),
            );
            return [d_free.0, d_gain.0];
        };
        let size = plan.size;
        let padded = dj.like(2 * size * size);
        let (cubes, dim) = dj.units(size * size);
        element::pad::launch::<R>(
            dj.client(),
            cubes,
            dim,
            dj.array(),
            padded.array(),
            n as u32,
            size as u32,
        );
        let packed = transforms.backward(&padded, None, plan);
        let (d_free, dots) = transforms.finish(&free, gain, &packed, gain, gain, plan);
        element::finish_gain::launch::<R>(
            free.client(),
            count(1, 1, 1),
            CubeDim::new_1d(1),
            transforms.squares.array(),
            dots.array(),
            d_gain.array(),
        );
        let mut d_free = d_free.0;
        d_free.meta = free.0.meta.clone();
        [d_free, d_gain.0]
    }

    fn mapped(map: Linear, x: &FloatTensor<Self>) -> FloatTensor<Self> {
        linear::forward(map, x)
    }

    fn mapped_back(map: Linear, d: &FloatTensor<Self>) -> FloatTensor<Self> {
        linear::adjoint(map, d)
    }

    fn product(a: &FloatTensor<Self>, b: &FloatTensor<Self>, precision: Precision) -> FloatTensor<Self> {
        if precision == Precision::Rough
            && let Some(c) = product::on_tensor_cores(a, b)
        {
            return c;
        }
        let (mut shape, last) = (a.shape(), b.shape().num_dims() - 1);
        let (m, k, n) = (shape[last - 1], shape[last], b.shape()[last]);
        let matrices = if last == 2 { shape[0] } else { 1 };
        shape[last] = n;
        let (a, b) = (Buffer::dense(a), Buffer::dense(b));
        let c = a.shaped(shape);
        let to = View::new(&c, n, m * n);
        product(View::of(&a), View::of(&b), to, (m, n, k), matrices, 1.0, false);
        c.0
    }

    fn invert(w: &FloatTensor<Self>) -> FloatTensor<Self> {
        let shape = w.shape();
        let (matrices, n) = (shape[0], shape[1]);
        let size = padded(n);
        let w = Buffer::of(w);
        let x = inverse(
            linear::bordered(&w, [0, n * n], matrices, n, size),
            size,
            matrices,
        );
        let out = w.shaped(shape);
        linear::corners(&x, size, &out, [0, n * n], matrices, n);
        out.0
    }

    fn invert_complex(w: &FloatTensor<Self>) -> FloatTensor<Self> {
        // As in the portable version, every half where it lies.
        let shape = w.shape();
        let (matrices, n) = (shape[0], shape[2]);
        let (size, both, cube) = (padded(n), 2 * n * n, (n, n, n));
        let w = Buffer::of(w);
        let imaginary = View::new(&w, n, both).at(n * n);
        let real = || linear::bordered(&w, [0, both], matrices, n, size);
        let inverted = inverse(real(), size, matrices);
        let t = w.like(matrices * n * n);
        let t_view = View::new(&t, n, n * n);
        let inverted = View::new(&inverted, size, size * size);
        product(inverted, imaginary, t_view, cube, matrices, 1.0, false);
        let complement = real();
        let sum = View::new(&complement, size, size * size);
        product(imaginary, t_view, sum, cube, matrices, 1.0, true);
        let z = inverse(complement, size, matrices);
        let out = w.shaped(shape);
        linear::corners(&z, size, &out, [0, both], matrices, n);
        let below = View::new(&out, n, both).at(n * n);
        let z = View::new(&z, size, size * size);
        product(t_view, z, below, cube, matrices, -1.0, false);
        out.0
    }

    fn adam_step(tensors: [FloatTensor<Self>; 4], step: Step) -> [FloatTensor<Self>; 3] {
        let shape = tensors[0].shape();
        let [w, g, m, v] = tensors.map(|t| Buffer::of(&t));
        let total = shape.num_elements();
        let correct = |beta: f64| 1.0 / (1.0 - beta.powi(step.time));
        let out = [0; 3].map(|_| w.shaped(shape.clone()));
        let (cubes, dim) = w.units(total);
        element::adam::launch::<R>(
            w.client(),
            cubes,
            dim,
            w.array(),
            g.array(),
            m.array(),
            v.array(),
            out[0].array(),
            out[1].array(),
            out[2].array(),
            total as u32,
            step.beta.0 as f32,
            step.beta.1 as f32,
            (step.rate * correct(step.beta.0)) as f32,
            correct(step.beta.1) as f32,
            (1.0 - step.rate * step.decay) as f32,
            step.epsilon as f32,
        );
        out.map(|b| b.0)
    }
}

fn finish_rows<R: Gpu>(
    x: &Buffer<R>,
    parts: &Buffer<R>,
    phi: &Buffer<R>,
    bounds: &Buffer<R>,
    out: &Buffer<R>,
    forward: bool,
    plan: &Arc<Plan>,
) {
    let total = out.0.shape().num_elements();
    let (cubes, dim) = x.units(total);
    element::finish_rows::launch::<R>(
        x.client(),
        cubes,
        dim,
        x.array(),
        parts.array(),
        phi.array(),
        bounds.array(),
        out.array(),
        total as u32,
        forward,
        plan.clone(),
    );
}

/// The cubes of a launch.
fn cubes_of(count: &CubeCount) -> usize {
    match count {
        CubeCount::Static(x, y, z) => *x as usize * *y as usize * *z as usize,
        CubeCount::Dynamic(_) => unreachable!("all launches here are of known size"),
    }
}
