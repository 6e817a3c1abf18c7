//! Inverses of batches of matrices whose symmetric part is ⪰ I, by elimination in blocks.

use burn::tensor::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeDim;
use cubecl::prelude::*;

use super::memory::{Buffer, Gpu, count};
use super::plan::padded;
use super::product::{Place, Tile, View, accumulate, product, zeros};

/// The inverses of a tensor of matrices.
pub fn invert<R: Gpu>(w: &CubeTensor<R>) -> CubeTensor<R> {
    let shape = w.shape();
    let (matrices, n) = (shape[0], shape[1]);
    let size = padded(n);
    let w = Buffer::of(w);
    let x = inverse(bordered(&w, [0, n * n], matrices, n, size), size, matrices);
    let out = w.shaped(shape);
    corners(&x, size, &out, [0, n * n], matrices, n);
    out.0
}

/// The inverses of complex matrices, real parts above imaginary ones.
pub fn invert_complex<R: Gpu>(w: &CubeTensor<R>) -> CubeTensor<R> {
    // As in the portable version, every half in its place.
    let shape = w.shape();
    let (matrices, n) = (shape[0], shape[2]);
    let (size, both, cube) = (padded(n), 2 * n * n, (n, n, n));
    let w = Buffer::of(w);
    let imaginary = View::new(&w, n, both).at(n * n);
    let real = || bordered(&w, [0, both], matrices, n, size);
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
    corners(&z, size, &out, [0, both], matrices, n);
    let below = View::new(&out, n, both).at(n * n);
    let z = View::new(&z, size, size * size);
    product(t_view, z, below, cube, matrices, -1.0, false);
    out.0
}

/// Inverts the matrix that a cube holds in its units' registers: rows `ty, ty + 16, …`, columns
/// `tx, tx + 16, …` of it.
#[cube]
pub fn invert_block(own: &mut Array<f32>, #[comptime] per_unit: usize) {
    let side = comptime!(16 * per_unit);
    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    // Row and column of the pivot, in two sets in turn: one barrier per pivot is enough.
    let mut pivot_row = SharedMemory::<f32>::new(comptime!(2 * side));
    let mut pivot_col = SharedMemory::<f32>::new(comptime!(2 * side));
    #[unroll]
    for block in 0..per_unit {
        for inner in 0..16usize {
            let pivot = block * 16 + inner;
            let set = (inner % 2) * side;
            if ty == inner {
                #[unroll]
                for j in 0..per_unit {
                    pivot_row[set + tx + 16 * j] = own[comptime!(block * per_unit + j)];
                }
            }
            if tx == inner {
                #[unroll]
                for i in 0..per_unit {
                    pivot_col[set + ty + 16 * i] = own[comptime!(i * per_unit + block)];
                }
            }
            sync_cube();
            let inverse = 1.0 / pivot_row[set + pivot];
            #[unroll]
            for i in 0..per_unit {
                let row = ty + 16 * i;
                let c = pivot_col[set + row];
                #[unroll]
                for j in 0..per_unit {
                    let col = tx + 16 * j;
                    let r = pivot_row[set + col] * inverse;
                    let index = comptime!(i * per_unit + j);
                    let mut value = own[index] - c * r;
                    if row == pivot {
                        value = r;
                        if col == pivot {
                            value = inverse;
                        }
                    } else if col == pivot {
                        value = -c * inverse;
                    }
                    own[index] = value;
                }
            }
        }
    }
    // The compiler may give the same memory to the next who asks.
    sync_cube();
}

/// Inverts the diagonal block of this step, `B`, and multiplies it with a tile to its right or
/// left: one tile of `B⁻¹·A_p`, or `B⁻¹` itself in the place of the diagonal block.
#[cube(launch)]
fn pivot_kernel(w: &Array<f32>, panel: &mut Array<f32>, step: u32, size: u32, #[comptime] per_unit: usize) {
    let side = comptime!(16 * per_unit);
    let size = size as usize;
    let step = step as usize;
    let column = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    // The unit's entries of the block: rows ty, ty + 16, …, columns tx, tx + 16, ….
    let mut own = Array::<f32>::new(comptime!(per_unit * per_unit));
    let first = batch * size * size + step * side * size;
    #[unroll]
    for i in 0..per_unit {
        #[unroll]
        for j in 0..per_unit {
            own[comptime!(i * per_unit + j)] = w[first + (ty + 16 * i) * size + step * side + tx + 16 * j];
        }
    }
    invert_block(&mut own, per_unit);
    let out = batch * side * size + column * side;
    if column == step {
        #[unroll]
        for i in 0..per_unit {
            #[unroll]
            for j in 0..per_unit {
                panel[out + (ty + 16 * i) * size + tx + 16 * j] = own[comptime!(i * per_unit + j)];
            }
        }
    } else {
        // The tile in two halves: together with the inverse it would be more than some devices can
        // share.
        let half = comptime!(side / 2);
        let mut inverse = SharedMemory::<f32>::new(comptime!(side * side));
        let mut tile = SharedMemory::<f32>::new(comptime!(half * side));
        #[unroll]
        for i in 0..per_unit {
            #[unroll]
            for j in 0..per_unit {
                inverse[(ty + 16 * i) * side + tx + 16 * j] = own[comptime!(i * per_unit + j)];
                own[comptime!(i * per_unit + j)] = 0.0;
            }
        }
        for part in 0..2usize {
            sync_cube();
            #[unroll]
            for i in 0..comptime!(per_unit / 2) {
                #[unroll]
                for j in 0..per_unit {
                    let (row, col) = (ty + 16 * i, tx + 16 * j);
                    tile[row * side + col] = w[first + (part * half + row) * size + column * side + col];
                }
            }
            sync_cube();
            for d in 0..half {
                #[unroll]
                for i in 0..per_unit {
                    let l = inverse[(ty + 16 * i) * side + part * half + d];
                    #[unroll]
                    for j in 0..per_unit {
                        let index = comptime!(i * per_unit + j);
                        own[index] += l * tile[d * side + tx + 16 * j];
                    }
                }
            }
        }
        #[unroll]
        for i in 0..per_unit {
            #[unroll]
            for j in 0..per_unit {
                panel[out + (ty + 16 * i) * size + tx + 16 * j] = own[comptime!(i * per_unit + j)];
            }
        }
    }
}

/// One step of the elimination, from one buffer to another.
#[cube(launch)]
fn eliminate_kernel(
    w: &Array<f32>,
    w_at: &Place,
    panel: &Array<f32>,
    panel_at: &Place,
    out: &mut Array<f32>,
    step: u32,
    size: u32,
    #[comptime] tile: Tile,
) {
    let size = size as usize;
    let step = step as usize;
    let row_tile = CUBE_POS_Y as usize;
    let col_tile = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let mut sums = zeros(tile);
    if row_tile != step {
        accumulate(
            w,
            w_at,
            panel,
            panel_at,
            size,
            size,
            64usize,
            row_tile * 64,
            col_tile * 64,
            batch,
            &mut sums,
            tile,
        );
    }
    #[unroll]
    for i in 0..4usize {
        let values = sums[i];
        let row = UNIT_POS_Y as usize * 4 + i;
        #[unroll]
        for j in 0..4usize {
            let col = col_tile * 64 + UNIT_POS_X as usize * 4 + j;
            let at = (batch * size + row_tile * 64 + row) * size + col;
            let mut value = -values[j];
            if row_tile == step {
                value = panel[(batch * 64 + row) * size + col];
            } else if col_tile != step {
                value += w[at];
            }
            out[at] = value;
        }
    }
}

/// The inverses of `count` matrices of `size × size` (32, or a multiple of 64) whose symmetric
/// parts are ⪰ I, by Gauss–Jordan elimination in blocks. Every leading block and every Schur
/// complement inherits a symmetric part ⪰ I, so there is no need for pivots, and nothing to wait
/// for.
pub fn inverse<R: Gpu>(mut w: Buffer<R>, size: usize, matrices: usize) -> Buffer<R> {
    let side = size.min(64);
    let steps = size / side;
    for step in 0..steps {
        let panel = w.like(matrices * side * size);
        pivot_kernel::launch::<R>(
            w.client(),
            count(steps, 1, matrices),
            CubeDim::new_2d(16, 16),
            w.array(),
            panel.array(),
            step as u32,
            size as u32,
            side / 16,
        );
        if steps == 1 {
            return panel;
        }
        let out = w.like(matrices * size * size);
        let from = View::new(&w, size, size * size).at(step * side);
        let through = View::new(&panel, size, side * size);
        eliminate_kernel::launch::<R>(
            w.client(),
            count(steps, steps, matrices),
            CubeDim::new_2d(16, 16),
            w.array(),
            from.place(),
            panel.array(),
            through.place(),
            out.array(),
            step as u32,
            size as u32,
            Tile {
                blocks: 1,
                left_along: true,
                right_along: false,
            },
        );
        w = out;
    }
    w
}

/// Matrices of `n × n`, the first at `start` and another every `batch` numbers, in the corner of
/// larger ones that are the identity elsewhere.
fn bordered<R: Gpu>(
    w: &Buffer<R>,
    [start, batch]: [usize; 2],
    matrices: usize,
    n: usize,
    size: usize,
) -> Buffer<R> {
    let total = matrices * size * size;
    let wide = w.like(total);
    let (cubes, dim) = w.units(total);
    border::launch::<R>(
        w.client(),
        cubes,
        dim,
        w.array(),
        wide.array(),
        total as u32,
        start as u32,
        batch as u32,
        n,
        size,
    );
    wide
}

/// The corners again, into their places.
fn corners<R: Gpu>(
    wide: &Buffer<R>,
    size: usize,
    to: &Buffer<R>,
    [start, batch]: [usize; 2],
    matrices: usize,
    n: usize,
) {
    let total = matrices * n * n;
    let (cubes, dim) = wide.units(total);
    corner::launch::<R>(
        wide.client(),
        cubes,
        dim,
        wide.array(),
        to.array(),
        total as u32,
        start as u32,
        batch as u32,
        n,
        size,
    );
}

/// Matrices in the corner of larger ones that are the identity elsewhere.
#[cube(launch)]
fn border(
    from: &Array<f32>,
    to: &mut Array<f32>,
    count: u32,
    offset: u32,
    batch: u32,
    #[comptime] n: usize,
    #[comptime] size: usize,
) {
    let at = ABSOLUTE_POS;
    if at >= count as usize {
        terminate!();
    }
    let (row, col) = (at / size % size, at % size);
    let mut value = 0.0f32;
    if row == col {
        value = 1.0f32;
    }
    if row < n && col < n {
        value = from[offset as usize + at / comptime!(size * size) * batch as usize + row * n + col];
    }
    to[at] = value;
}

/// The corners again.
#[cube(launch)]
fn corner(
    from: &Array<f32>,
    to: &mut Array<f32>,
    count: u32,
    offset: u32,
    batch: u32,
    #[comptime] n: usize,
    #[comptime] size: usize,
) {
    let at = ABSOLUTE_POS;
    if at >= count as usize {
        terminate!();
    }
    let (row, col) = (at / n % n, at % n);
    let matrix = at / comptime!(n * n);
    to[offset as usize + matrix * batch as usize + row * n + col] = from[(matrix * size + row) * size + col];
}
