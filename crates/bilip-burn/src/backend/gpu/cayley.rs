//! Cayley transforms of square matrices: small ones in one launch.

// A condition of the compiler's and one of the running kernel's are two conditions.
#![allow(clippy::collapsible_if)]

use std::sync::Arc;

use burn::tensor::TensorMetadata;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeDim;
use cubecl::prelude::*;

use super::inverse::invert_block;
use super::memory::{Buffer, Gpu, count};
use super::plan::{Plan, square_plan};
use super::sums::{cube_sum, scale_of, total};
use super::transforms::Transforms;

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

pub fn forward<R: Gpu>(free: &CubeTensor<R>, gain: &CubeTensor<R>) -> (CubeTensor<R>, CayleyTape<R>) {
    let (free, gain) = (Buffer::of(free), Buffer::of(gain));
    let n = free.0.shape()[0];
    let j = free.shaped([n, n]);
    let large = if let Some(per_unit) = small(n) {
        small_forward::launch::<R>(
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
        top::launch::<R>(
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

pub fn backward<R: Gpu>(
    tape: &CayleyTape<R>,
    free: &CubeTensor<R>,
    cotangent: CubeTensor<R>,
) -> [CubeTensor<R>; 2] {
    let (free, dj) = (Buffer::of(free), Buffer::of(&cotangent));
    let gain = &tape.gain;
    let n = free.0.shape()[0];
    let d_gain = free.shaped([1]);
    let Some((transforms, plan)) = &tape.large else {
        let d_free = free.shaped([n, n]);
        small_backward::launch::<R>(
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
    pad::launch::<R>(
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
    finish_gain::launch::<R>(
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

/// A small square transform in one cube: `J = 2(I + s(F − Fᵀ))⁻¹ − I`.
#[cube(launch)]
fn small_forward(
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
fn small_backward(
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
fn top(x: &Array<f32>, j: &mut Array<f32>, n: u32, size: u32) {
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
fn pad(from: &Array<f32>, to: &mut Array<f32>, n: u32, size: u32) {
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

/// The gradient of a lone matrix's gain.
#[cube(launch)]
fn finish_gain(squares: &Array<f32>, inner: &Array<f32>, out: &mut Array<f32>) {
    if UNIT_POS == 0 {
        let square = total(squares, 0usize);
        let mut value = 0.0f32;
        if square > 0.0 {
            value = total(inner, 0usize) / square.sqrt();
        }
        out[0] = value;
    }
}
