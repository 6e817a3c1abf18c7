//! The kernels between the products: packing, sums, and the chain rule of the scalings.
//!
//! Hidden layers are padded to one width, so that all of them go through one batched product; what pads them is zero
//! and stays zero. Only the kernels here know where a layer's numbers lie in φ.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use cubecl::prelude::*;

use super::product::invert_block;

/// Units of a cube in element-wise kernels.
pub const UNITS: u32 = 256;
/// Pieces in which the norm of a matrix is summed up.
pub const CHUNKS: usize = 16;

/// Where the free parameters of a hidden layer lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layer {
    /// The first number of its free matrix, `(width + before) × width`.
    pub free: usize,
    /// The number of its gain.
    pub gain: usize,
    pub width: usize,
    pub before: usize,
    /// Its first hidden unit.
    pub unit: usize,
}

/// Where the free parameters of Q lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    pub free: usize,
    pub gain: usize,
    /// Rows of the free matrix, those without a hidden unit first.
    pub rows: usize,
    pub extra: usize,
    /// Rows of the padded matrix.
    pub padded: usize,
}

/// The layout of a layer as the kernels see it; part of what they are compiled for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Plan {
    pub n: usize,
    /// The common width of the padded layers.
    pub size: usize,
    pub layers: Vec<Layer>,
    pub outer: Option<Outer>,
    pub output_bias: usize,
    pub log_psi: Option<usize>,
    /// Hidden units, numbers in φ.
    pub hidden: usize,
    pub len: usize,
}

impl Plan {
    /// Numbers of the padded matrices of the hidden layers.
    pub fn inner_len(&self) -> usize {
        self.layers.len() * 2 * self.size * self.size
    }

    /// Numbers of all padded free matrices.
    pub fn packed_len(&self) -> usize {
        self.inner_len() + self.outer.map_or(0, |o| o.padded * self.n)
    }

    pub fn matrices(&self) -> usize {
        self.layers.len() + usize::from(self.outer.is_some())
    }

    fn each(&self, what: impl Fn(&Layer) -> usize) -> Vec<usize> {
        self.layers.iter().map(what).collect()
    }

    fn outer_or_none(&self) -> Outer {
        self.outer.unwrap_or(Outer {
            free: 0,
            gain: 0,
            rows: 0,
            extra: 0,
            padded: 0,
        })
    }
}

/// One number of a hidden layer's description, the layer known only when the kernel runs.
#[cube]
fn of_layer(layer: usize, #[comptime] numbers: Vec<usize>) -> usize {
    let mut value = comptime!(numbers[0]).runtime();
    #[unroll]
    for i in 1..comptime!(numbers.len()) {
        if layer == i {
            value = comptime!(numbers[i]).runtime();
        }
    }
    value
}

#[cube]
pub fn width_of(layer: usize, #[comptime] plan: Arc<Plan>) -> usize {
    of_layer(layer, comptime!(plan.each(|l| l.width)))
}

#[cube]
pub fn unit_of(layer: usize, #[comptime] plan: Arc<Plan>) -> usize {
    of_layer(layer, comptime!(plan.each(|l| l.unit)))
}

/// The padded place of a hidden unit.
#[cube]
fn place_of(unit: usize, #[comptime] plan: Arc<Plan>) -> usize {
    let mut layer = 0usize;
    #[unroll]
    for l in 1..comptime!(plan.layers.len()) {
        if unit >= comptime!(plan.layers[l].unit) {
            layer = l.runtime();
        }
    }
    layer * comptime!(plan.size) + unit - unit_of(layer, comptime!(plan.clone()))
}

/// The sum of a matrix's chunks.
#[cube]
fn total(chunks: &Array<f32>, matrix: usize) -> f32 {
    let mut sum = 0.0f32;
    for i in 0..CHUNKS {
        sum += chunks[matrix * CHUNKS + i];
    }
    sum
}

/// Sums a number of every unit of a cube of 256.
#[cube]
fn cube_sum(value: f32) -> f32 {
    let mut shared = SharedMemory::<f32>::new(256usize);
    let unit = UNIT_POS as usize;
    shared[unit] = value;
    sync_cube();
    let mut step = 128usize;
    while step > 0 {
        if unit < step {
            let other = shared[unit + step];
            shared[unit] += other;
        }
        sync_cube();
        step /= 2;
    }
    let sum = shared[0];
    // The compiler may give the same memory to the next who asks.
    sync_cube();
    sum
}

/// `⟨F, F⟩` of every free matrix, or `⟨F, F̂̄⟩` with its cotangent, in chunks.
#[cube(launch)]
pub fn dots(
    phi: &Array<f32>,
    packed: &Array<f32>,
    out: &mut Array<f32>,
    #[comptime] with_packed: bool,
    #[comptime] plan: Arc<Plan>,
) {
    let chunk = CUBE_POS_X as usize;
    let matrix = CUBE_POS_Y as usize;
    let layers = comptime!(plan.layers.len());
    let size = comptime!(plan.size);
    let outer = comptime!(plan.outer_or_none());
    let mut sum = 0.0f32;
    let mut at = chunk * UNITS as usize + UNIT_POS as usize;
    let step = comptime!(CHUNKS * UNITS as usize);
    if matrix < layers {
        let width = width_of(matrix, comptime!(plan.clone()));
        let before = of_layer(matrix, comptime!(plan.each(|l| l.before)));
        let free = of_layer(matrix, comptime!(plan.each(|l| l.free)));
        let count = (width + before) * width;
        while at < count {
            let value = phi[free + at];
            let mut other = value;
            if comptime!(with_packed) {
                let mut row = at / width;
                let mut half = 0usize;
                if row >= width {
                    row -= width;
                    half = 1usize;
                }
                other = packed[((matrix * 2 + half) * size + row) * size + at % width];
            }
            sum += value * other;
            at += step;
        }
    } else {
        let count = comptime!(outer.rows * plan.n);
        while at < count {
            let value = phi[outer.free + at];
            let mut other = value;
            if comptime!(with_packed) {
                other = packed[comptime!(plan.inner_len()) + at];
            }
            sum += value * other;
            at += step;
        }
    }
    let sum = cube_sum(sum);
    if UNIT_POS == 0 {
        out[matrix * CHUNKS + chunk] = sum;
    }
}

/// `f/‖F‖` of a matrix, 0 if it is zero.
#[cube]
fn scale_of(square: f32, gain: f32) -> f32 {
    let mut scale = 0.0f32;
    if square > 0.0 {
        scale = gain / square.sqrt();
    }
    scale
}

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

/// `J₁ = 2X − I` of every hidden layer, and the rows of Q in the order of the padded units from the rows below, `−2ĤX`.
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

/// A small square transform in one cube: `J = 2(I + s(F − Fᵀ))⁻¹ − I`.
#[cube(launch)]
pub fn small_forward(
    free: &Array<f32>,
    gain: &Array<f32>,
    j: &mut Array<f32>,
    n: u32,
    #[comptime] per_unit: usize,
) {
    let n = n as usize;
    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    let mut own = Array::<f32>::new(comptime!(per_unit * per_unit));
    let mut sum = 0.0f32;
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            let mut value = 0.0f32;
            if row < n && col < n {
                let here = free[row * n + col];
                sum += here * here;
                value = here - free[col * n + row];
            }
            own[comptime!(a * per_unit + b)] = value;
        }
    }
    let scale = scale_of(cube_sum(sum), gain[0]);
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let index = comptime!(a * per_unit + b);
            own[index] *= scale;
            if ty + 16 * a == tx + 16 * b {
                own[index] = 1.0;
            }
        }
    }
    invert_block(&mut own, per_unit);
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            if row < n && col < n {
                let mut value = 2.0 * own[comptime!(a * per_unit + b)];
                if row == col {
                    value -= 1.0;
                }
                j[row * n + col] = value;
            }
        }
    }
}

/// Backward through a small square transform: `W̄ = −½(J + I)ᵀJ̄(J + I)ᵀ`, then the scaling.
#[cube(launch)]
pub fn small_backward(
    free: &Array<f32>,
    gain: &Array<f32>,
    j: &Array<f32>,
    dj: &Array<f32>,
    d_free: &mut Array<f32>,
    d_gain: &mut Array<f32>,
    n: u32,
    #[comptime] per_unit: usize,
) {
    let side = comptime!(16 * per_unit);
    let n = n as usize;
    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    let mut shared = SharedMemory::<f32>::new(comptime!(side * side));
    let mut own = Array::<f32>::new(comptime!(per_unit * per_unit));
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            let mut sum = 0.0f32;
            if row < n && col < n {
                sum = dj[row * n + col];
                for k in 0..n {
                    sum += j[k * n + row] * dj[k * n + col];
                }
            }
            shared[row * side + col] = sum;
        }
    }
    sync_cube();
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            let mut sum = shared[row * side + col];
            if row < n && col < n {
                for k in 0..n {
                    sum += shared[row * side + k] * j[col * n + k];
                }
            }
            own[comptime!(a * per_unit + b)] = -0.5 * sum;
        }
    }
    sync_cube();
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            shared[(ty + 16 * a) * side + tx + 16 * b] = own[comptime!(a * per_unit + b)];
        }
    }
    sync_cube();
    let mut square = 0.0f32;
    let mut dot = 0.0f32;
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            let index = comptime!(a * per_unit + b);
            own[index] -= shared[col * side + row];
            if row < n && col < n {
                let f = free[row * n + col];
                square += f * f;
                dot += f * own[index];
            }
        }
    }
    let square = cube_sum(square);
    let dot = cube_sum(dot);
    let scale = scale_of(square, gain[0]);
    let mut along = 0.0f32;
    let mut gradient = 0.0f32;
    if square > 0.0 {
        along = dot / square;
        gradient = dot / square.sqrt();
    }
    if UNIT_POS == 0 {
        d_gain[0] = gradient;
    }
    #[unroll]
    for a in 0..per_unit {
        #[unroll]
        for b in 0..per_unit {
            let (row, col) = (ty + 16 * a, tx + 16 * b);
            if row < n && col < n {
                let at = row * n + col;
                d_free[at] = scale * (own[comptime!(a * per_unit + b)] - along * free[at]);
            }
        }
    }
}

/// The first rows of a square transform, `J = 2X − I`, without its padding.
#[cube(launch)]
pub fn top(x: &Array<f32>, j: &mut Array<f32>, n: u32, size: u32) {
    let at = ABSOLUTE_POS;
    let n = n as usize;
    let (row, col) = (at / n, at % n);
    if row >= n {
        terminate!();
    }
    let mut value = 2.0 * x[row * size as usize + col];
    if row == col {
        value -= 1.0;
    }
    j[at] = value;
}

/// A square matrix into its padded place.
#[cube(launch)]
pub fn pad(from: &Array<f32>, to: &mut Array<f32>, n: u32, size: u32) {
    let at = ABSOLUTE_POS;
    let (n, size) = (n as usize, size as usize);
    let (row, col) = (at / size, at % size);
    if row >= size {
        terminate!();
    }
    let mut value = 0.0f32;
    if row < n && col < n {
        value = from[row * n + col];
    }
    to[at] = value;
}

/// `y = μx + b_y + √(γ/2)·Σ` of the layers' parts, or backward `x̄ = μȳ + √(2γ)·Σ`.
#[cube(launch)]
pub fn finish_rows(
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
pub fn weigh(
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
pub fn finish_bounds(
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

/// What a sum over the rows of the batch is taken of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Column {
    /// A batch without padding, `n` numbers a row.
    Plain,
    /// δ, by hidden unit.
    Bias,
    /// The cotangent of ẑ times `ẑ − vσ'`: that of ln ψ.
    Psi,
}

/// Sums over the rows of the batch, 32 columns a cube, 8 units a column.
#[cube(launch)]
pub fn column_sums(
    values: &Array<f32>,
    z: &Array<f32>,
    pre: &Array<f32>,
    slopes: &Array<f32>,
    out: &mut Array<f32>,
    rows: u32,
    #[comptime] column: Column,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let size = comptime!(plan.size);
    let here = CUBE_POS_X as usize * 32 + UNIT_POS_X as usize;
    let columns = comptime!(if column == Column::Plain {
        plan.n
    } else {
        plan.hidden
    });
    let mut stride = columns.runtime();
    let mut position = here;
    if comptime!(column != Column::Plain) {
        stride = comptime!(plan.layers.len() * size).runtime();
        position = place_of(here, comptime!(plan.clone()));
    }
    let mut sum = 0.0f32;
    if here < columns {
        let mut row = UNIT_POS_Y as usize;
        while row < rows {
            let at = row * stride + position;
            let mut value = values[at];
            if comptime!(column == Column::Psi) {
                value *= z[at] - pre[at] * slopes[at];
            }
            sum += value;
            row += 8;
        }
    }
    let mut shared = SharedMemory::<f32>::new(256usize);
    shared[UNIT_POS_Y as usize * 32 + UNIT_POS_X as usize] = sum;
    sync_cube();
    if UNIT_POS_Y == 0 && here < columns {
        let mut sum = 0.0f32;
        for i in 0..8usize {
            sum += shared[i * 32 + UNIT_POS_X as usize];
        }
        out[here] = sum;
    }
}

/// δ of every row without its padding.
#[cube(launch)]
pub fn unpad_rows(delta: &Array<f32>, out: &mut Array<f32>, count: u32, #[comptime] plan: Arc<Plan>) {
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

/// The cotangent of Q in the order of its free matrix, zero where there is no hidden unit; and `[2X; −2ĤX]` beside it.
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

/// The gradient of φ from the cotangents of the scaled matrices: `s(F̂̄ − F⟨F, F̂̄⟩/‖F‖²)` and `⟨F, F̂̄⟩/‖F‖`.
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

/// The gradient of a lone matrix's gain.
#[cube(launch)]
pub fn finish_gain(squares: &Array<f32>, inner: &Array<f32>, out: &mut Array<f32>) {
    if UNIT_POS == 0 {
        let square = total(squares, 0usize);
        let mut value = 0.0f32;
        if square > 0.0 {
            value = total(inner, 0usize) / square.sqrt();
        }
        out[0] = value;
    }
}

/// One step of Adam, as in [`crate::kernel::adam`].
#[cube(launch)]
pub fn adam(
    w: &Array<f32>,
    g: &Array<f32>,
    m: &Array<f32>,
    v: &Array<f32>,
    new_w: &mut Array<f32>,
    new_m: &mut Array<f32>,
    new_v: &mut Array<f32>,
    count: u32,
    beta1: f32,
    beta2: f32,
    rate: f32,
    correction: f32,
    keep: f32,
    epsilon: f32,
) {
    let at = ABSOLUTE_POS;
    if at >= count as usize {
        terminate!();
    }
    let gradient = g[at];
    let first = beta1 * m[at] + (1.0 - beta1) * gradient;
    let second = beta2 * v[at] + (1.0 - beta2) * gradient * gradient;
    new_m[at] = first;
    new_v[at] = second;
    new_w[at] = w[at] * keep - rate * first / ((second * correction).sqrt() + epsilon);
}
