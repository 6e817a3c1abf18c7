//! The kernels between the products of the transforms: packing, and the chain rule of the scalings.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use cubecl::prelude::*;

use crate::backend::gpu::plan::{Plan, of_layer, place_of, unit_of, width_of};
use crate::backend::gpu::sums::{scale_of, total};

/// The scaled free matrices, padded: `[Ĝ; Ĥ]` of every hidden layer, then that of Q.
#[cube(launch)]
pub fn pack(
    phi: &Array<f32>,
    gains: &Array<f32>,
    squares: &Array<f32>,
    out: &mut Array<f32>,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    if at >= comptime!(plan.packed_len()) {
        terminate!();
    }
    let size = comptime!(plan.size);
    let outer = comptime!(plan.outer_or_none());
    let layers = comptime!(plan.layers.len());
    let mut value = 0.0f32;
    if at < comptime!(plan.inner_len()) {
        let col = at % size;
        let row = at / size % size;
        let half = at / comptime!(size * size) % 2;
        let layer = at / comptime!(2 * size * size);
        let width = width_of(layer, comptime!(plan.clone()));
        let before = of_layer(layer, comptime!(plan.each(|l| l.before)));
        let mut rows = width;
        if half == 1 {
            rows = before;
        }
        if col < width && row < rows {
            let free = of_layer(layer, comptime!(plan.each(|l| l.free)));
            let gain = of_layer(layer, comptime!(plan.each(|l| l.gain)));
            let scale = scale_of(total(squares, layer), gains[gain]);
            value = scale * phi[free + (half * width + row) * width + col];
        }
    } else {
        let here = at - comptime!(plan.inner_len());
        if here < comptime!(outer.rows * plan.n) {
            let scale = scale_of(total(squares, layers.runtime()), gains[outer.gain]);
            value = scale * phi[outer.free + here];
        }
    }
    out[at] = value;
}

/// `W = I + Ĝ − Ĝᵀ + ĤᵀĤ` of every matrix, from the products `ĤᵀĤ`; those of Q in pieces.
#[cube(launch)]
pub fn complete(
    packed: &Array<f32>,
    pieces: &Array<f32>,
    w: &mut Array<f32>,
    #[comptime] piece_count: usize,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    let size = comptime!(plan.size);
    if at >= comptime!(plan.matrices() * size * size) {
        terminate!();
    }
    let n = comptime!(plan.n);
    let col = at % size;
    let row = at / size % size;
    let matrix = at / comptime!(size * size);
    let mut value = 0.0f32;
    if row == col {
        value = 1.0f32;
    }
    if matrix < comptime!(plan.layers.len()) {
        let start = matrix * comptime!(2 * size * size);
        value += packed[start + row * size + col] - packed[start + col * size + row];
        // The first layer has nothing below, and no product.
        if matrix > 0 {
            value += w[at];
        }
    } else if row < n && col < n {
        let start = comptime!(plan.inner_len());
        value += packed[start + row * n + col] - packed[start + col * n + row];
        for piece in 0..piece_count {
            value += pieces[(piece * n + row) * n + col];
        }
    }
    w[at] = value;
}

/// `J₁ = 2X − I` of every hidden layer, and the rows of Q in the order of the padded units from the
/// rows below, `−2ĤX`.
#[cube(launch)]
pub fn assemble(
    x: &Array<f32>,
    below: &Array<f32>,
    j: &mut Array<f32>,
    q: &mut Array<f32>,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    let size = comptime!(plan.size);
    let n = comptime!(plan.n);
    let squares = comptime!(plan.layers.len() * size * size);
    let outer = comptime!(plan.outer_or_none());
    if at < squares {
        let within = at % comptime!(size * size);
        let layer = at / comptime!(size * size);
        let mut value = 2.0 * x[at];
        if within / size == within % size {
            value -= 1.0;
        }
        j[layer * comptime!(2 * size * size) + within] = value;
    } else if at
        < comptime!(
            squares
                + if plan.outer.is_some() {
                    plan.layers.len() * size * n
                } else {
                    0
                }
        )
    {
        let here = at - squares;
        let col = here % n;
        let unit = here / n % size;
        let layer = here / comptime!(n * size);
        let mut value = 0.0f32;
        if unit < width_of(layer, comptime!(plan.clone())) {
            let row = outer.extra + unit_of(layer, comptime!(plan.clone())) + unit;
            if row < n {
                value = 2.0 * x[squares + row * size + col];
                if row == col {
                    value -= 1.0;
                }
            } else {
                value = below[(row - n) * n + col];
            }
        }
        q[here] = value;
    }
}

/// The cotangent of Q in the order of its free matrix, zero where there is no hidden unit; and
/// `[2X; −2ĤX]` beside it.
#[cube(launch)]
pub fn unpad_outer(
    dq: &Array<f32>,
    x: &Array<f32>,
    below: &Array<f32>,
    out: &mut Array<f32>,
    factor: &mut Array<f32>,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    let n = comptime!(plan.n);
    let size = comptime!(plan.size);
    let outer = comptime!(plan.outer_or_none());
    if at >= comptime!(outer.padded * n) {
        terminate!();
    }
    let (row, col) = (at / n, at % n);
    let mut value = 0.0f32;
    if row >= outer.extra && row < outer.rows {
        let here = row - outer.extra;
        value = dq[place_of(here, comptime!(plan.clone())) * n + col];
    }
    out[at] = value;
    if row < n {
        factor[at] = 2.0 * x[comptime!(plan.layers.len() * size * size) + row * size + col];
    } else {
        factor[at] = below[at - n * n];
    }
}

/// `Ḡ = W̄ − W̄ᵀ` into place, and `W̄ + W̄ᵀ`, `W̄` given in pieces.
#[cube(launch)]
pub fn skew(
    w: &Array<f32>,
    g: &mut Array<f32>,
    symmetric: &mut Array<f32>,
    matrices: u32,
    g_offset: u32,
    g_stride: u32,
    #[comptime] size: usize,
    #[comptime] pieces: usize,
) {
    let at = ABSOLUTE_POS;
    let matrix = at / comptime!(size * size);
    if matrix >= matrices as usize {
        terminate!();
    }
    let (row, col) = (at / size % size, at % size);
    let mut here = 0.0f32;
    let mut there = 0.0f32;
    for piece in 0..pieces {
        let start = (matrix * pieces + piece) * comptime!(size * size);
        here += w[start + row * size + col];
        there += w[start + col * size + row];
    }
    g[g_offset as usize + matrix * g_stride as usize + row * size + col] = here - there;
    symmetric[at] = here + there;
}

/// The gradient of φ from the cotangents of the scaled matrices: `s(F̂̄ − F⟨F, F̂̄⟩/‖F‖²)` and `⟨F,
/// F̂̄⟩/‖F‖`.
#[cube(launch)]
pub fn finish_phi(
    phi: &Array<f32>,
    gains: &Array<f32>,
    packed: &Array<f32>,
    squares: &Array<f32>,
    inner: &Array<f32>,
    output_bias: &Array<f32>,
    log_psi: &Array<f32>,
    out: &mut Array<f32>,
    #[comptime] plan: Arc<Plan>,
) {
    let at = ABSOLUTE_POS;
    if at >= comptime!(plan.len) {
        terminate!();
    }
    let size = comptime!(plan.size);
    let n = comptime!(plan.n);
    let outer = comptime!(plan.outer_or_none());
    let matrices = comptime!(plan.matrices());
    // Which matrix it belongs to, if any, or which gain it is.
    let mut matrix = matrices.runtime();
    let mut place = 0usize;
    let mut gain = 0usize;
    let mut is_gain = false;
    #[unroll]
    for l in 0..comptime!(plan.layers.len()) {
        let layer = comptime!(plan.layers[l]);
        if at >= layer.free && at < comptime!(layer.free + (layer.width + layer.before) * layer.width) {
            let here = at - layer.free;
            let mut row = here / layer.width;
            let mut half = 0usize;
            if row >= layer.width {
                row -= layer.width;
                half = 1usize;
            }
            matrix = l.runtime();
            gain = layer.gain.runtime();
            place = ((half + comptime!(2 * l)) * size + row) * size + here % layer.width;
        }
        if comptime!(plan.outer.is_some()) && at == layer.gain {
            matrix = l.runtime();
            is_gain = true;
        }
    }
    if comptime!(plan.outer.is_some()) {
        if at >= outer.free && at < comptime!(outer.free + outer.rows * n) {
            matrix = comptime!(plan.layers.len()).runtime();
            gain = outer.gain.runtime();
            place = comptime!(plan.inner_len()) + at - outer.free;
        }
        if at == outer.gain {
            matrix = comptime!(plan.layers.len()).runtime();
            is_gain = true;
        }
    }
    let mut value = 0.0f32;
    if matrix < matrices {
        let square = total(squares, matrix);
        if square > 0.0 {
            let dot = total(inner, matrix);
            if is_gain {
                value = dot / square.sqrt();
            } else {
                value = scale_of(square, gains[gain]) * (packed[place] - phi[at] * dot / square);
            }
        }
    }
    if comptime!(plan.outer.is_some()) {
        if at >= comptime!(plan.output_bias) && at < comptime!(plan.output_bias + n) {
            value = output_bias[at - comptime!(plan.output_bias)];
        }
        if comptime!(plan.log_psi.is_some()) {
            let first = comptime!(plan.log_psi.unwrap_or_default());
            if at >= first && at < comptime!(first + plan.hidden) {
                value = log_psi[at - first];
            }
        }
    }
    out[at] = value;
}
