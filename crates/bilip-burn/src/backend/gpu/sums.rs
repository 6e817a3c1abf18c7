//! Sums: of the entries of matrices, with the scalings by norms, and over the rows of a batch.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use cubecl::prelude::*;

use super::memory::UNITS;
use super::plan::{Plan, of_layer, place_of, width_of};

/// Pieces in which the norm of a matrix is summed up.
pub const CHUNKS: usize = 16;

/// The sum of a matrix's chunks.
#[cube]
pub fn total(chunks: &Array<f32>, matrix: usize) -> f32 {
    let mut sum = 0.0f32;
    for i in 0..CHUNKS {
        sum += chunks[matrix * CHUNKS + i];
    }
    sum
}

/// `f/‖F‖` of a matrix, 0 if it is zero.
#[cube]
pub fn scale_of(square: f32, gain: f32) -> f32 {
    let mut scale = 0.0f32;
    if square > 0.0 {
        scale = gain / square.sqrt();
    }
    scale
}

/// Sums a number of every unit of a cube of 256.
#[cube]
pub fn cube_sum(value: f32) -> f32 {
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

/// What a sum over the rows of the batch is taken of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ColumnSum {
    /// A batch without padding, `n` numbers per row.
    Plain,
    /// δ, by hidden unit.
    Bias,
    /// The cotangent of ẑ times `ẑ − vσ'`: that of ln ψ.
    Psi,
}

/// Sums over the rows of the batch, 32 columns per cube, 8 units per column.
#[cube(launch)]
pub fn column_sums(
    values: &Array<f32>,
    z: &Array<f32>,
    pre: &Array<f32>,
    slopes: &Array<f32>,
    out: &mut Array<f32>,
    rows: u32,
    #[comptime] column: ColumnSum,
    #[comptime] plan: Arc<Plan>,
) {
    let rows = rows as usize;
    let size = comptime!(plan.size);
    let here = CUBE_POS_X as usize * 32 + UNIT_POS_X as usize;
    let columns = comptime!(if column == ColumnSum::Plain {
        plan.n
    } else {
        plan.hidden
    });
    let mut stride = columns.runtime();
    let mut position = here;
    if comptime!(column != ColumnSum::Plain) {
        stride = comptime!(plan.layers.len() * size).runtime();
        position = place_of(here, comptime!(plan.clone()));
    }
    let mut sum = 0.0f32;
    if here < columns {
        let mut row = UNIT_POS_Y as usize;
        while row < rows {
            let at = row * stride + position;
            let mut value = values[at];
            if comptime!(column == ColumnSum::Psi) {
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
