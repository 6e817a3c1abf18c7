//! The monotone layer, forward and backward in a few dozen launches.

use std::sync::Arc;

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeDim;
use cubecl::prelude::*;

use super::hidden::{self, ActivationKernel, Chain};
use super::memory::{Buffer, Gpu, UNITS, count, cubes_of};
use super::plan::{Plan, place_of, plan_of};
use super::product::{Tile, View, product};
use super::sums::{ColumnSum, column_sums, cube_sum};
use super::transforms::Transforms;
use crate::spec::Layout;

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

pub fn forward<R: Gpu>(
    [x, phi, bounds, bias]: [&CubeTensor<R>; 4],
    layout: &Layout,
) -> (CubeTensor<R>, MonLipTape<R>) {
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
            ActivationKernel::from(layout.activation),
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
                ActivationKernel::from(layout.activation),
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

pub fn backward<R: Gpu>(
    tape: &MonLipTape<R>,
    phi: &CubeTensor<R>,
    cotangent: CubeTensor<R>,
) -> [CubeTensor<R>; 4] {
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
    weigh::launch::<R>(
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
    finish_bounds::launch::<R>(
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
    let sums = |values: &Buffer<R>, column: ColumnSum, columns: usize| {
        let out = dy.shaped([1, columns]);
        column_sums::launch::<R>(
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
    let d_output_bias = sums(&dy, ColumnSum::Plain, n);
    let d_psi = if learned {
        sums(&dz, ColumnSum::Psi, plan.hidden)
    } else {
        dy.like(1)
    };
    let d_bias = if tape.bias_per_row {
        let out = dy.shaped([rows, plan.hidden]);
        let (cubes, dim) = dy.units(rows * plan.hidden);
        unpad_rows::launch::<R>(
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
        sums(&delta, ColumnSum::Bias, plan.hidden)
    };
    let (d_phi, _) = transforms.finish(&phi, &phi, &packed, &d_output_bias, &d_psi, plan);
    [dx.0, d_phi.0, d_bounds.0, d_bias.0]
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
    finish_rows_kernel::launch::<R>(
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

/// `y = μx + b_y + √(γ/2)·Σ` of the layers' parts, or backward `x̄ = μȳ + √(2γ)·Σ`.
#[cube(launch)]
fn finish_rows_kernel(
    x: &Array<f32>,
    parts: &Array<f32>,
    phi: &Array<f32>,
    bounds: &Array<f32>,
    out: &mut Array<f32>,
    count: u32,
    #[comptime] forward: bool,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    let count = count as usize;
    if at >= count {
        terminate!();
    }
    let mut sum = 0.0f32;
    for layer in 0..comptime!(plan.layers.len()) {
        sum += parts[layer * count + at];
    }
    let mut value = bounds[0] * x[at];
    if comptime!(forward) {
        value += (0.5 * bounds[1]).sqrt() * sum + phi[comptime!(plan.output_bias) + at % comptime!(plan.n)];
    } else {
        value += (2.0 * bounds[1]).sqrt() * sum;
    }
    out[at] = value;
}

/// `S̄` from its two uses, in the place of the first, and the cubes' parts of γ̄.
#[cube(launch)]
fn weigh(
    first: &mut Array<f32>,
    second: &Array<f32>,
    s: &Array<f32>,
    bounds: &Array<f32>,
    parts: &mut Array<f32>,
    count: u32,
) {
    let at = ABSOLUTE_POS;
    let root = (2.0 * bounds[1]).sqrt();
    let mut part = 0.0f32;
    if at < count as usize {
        let (p, r) = (first[at], second[at]);
        first[at] = root * p + 0.5 * root * r;
        // With d√(2γ) = dγ/√(2γ) and d√(γ/2) = dγ/(2√(2γ)).
        if root > 0.0 {
            part = s[at] * (p + 0.5 * r) / root;
        }
    }
    let sum = cube_sum(part);
    if UNIT_POS == 0 {
        parts[CUBE_POS] = sum;
    }
}

/// μ̄ and γ̄.
#[cube(launch)]
fn finish_bounds(
    x: &Array<f32>,
    dy: &Array<f32>,
    parts: &Array<f32>,
    out: &mut Array<f32>,
    count: u32,
    part_count: u32,
) {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    if CUBE_POS_X == 0 {
        while at < count as usize {
            sum += x[at] * dy[at];
            at += 256;
        }
    } else {
        while at < part_count as usize {
            sum += parts[at];
            at += 256;
        }
    }
    let sum = cube_sum(sum);
    if UNIT_POS == 0 {
        out[CUBE_POS_X as usize] = sum;
    }
}

/// δ of every row without its padding.
#[cube(launch)]
fn unpad_rows(delta: &Array<f32>, out: &mut Array<f32>, count: u32, #[comptime] plan: Arc<Plan>) {
    let at = ABSOLUTE_POS;
    if at >= count as usize {
        terminate!();
    }
    let size = comptime!(plan.size);
    let hidden = comptime!(plan.hidden);
    let here = at % hidden;
    let position = place_of(here, comptime!(plan.clone()));
    out[at] = delta[at / hidden * comptime!(plan.layers.len() * size) + position];
}
