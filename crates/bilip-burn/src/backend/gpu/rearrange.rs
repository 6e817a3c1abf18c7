//! The kernels of linear maps that rearrange numbers, their adjoints, and their launches.

use burn::tensor::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeDim;
use cubecl::prelude::*;

use super::memory::{Buffer, Gpu, UNITS, count};
use crate::spec::{Rearrangement, Strips, Window};

/// The map of a tensor.
pub fn rearrange<R: Gpu>(map: Rearrangement, x: &CubeTensor<R>) -> CubeTensor<R> {
    match map {
        Rearrangement::Embed => embedded(x),
        Rearrangement::Skew => skewed(x, true),
        Rearrangement::Unfold(window, _) => windows(x, window),
        Rearrangement::Fold(window, shape) => images(x, window, shape),
        Rearrangement::Strips(strips) => taken(x, strips),
        Rearrangement::Exchange(shape) => exchanged(x, shape),
    }
}

/// Its adjoint.
pub fn rearrange_adjoint<R: Gpu>(map: Rearrangement, d: &CubeTensor<R>) -> CubeTensor<R> {
    match map {
        Rearrangement::Embed => folded(d),
        Rearrangement::Skew => skewed(d, false),
        Rearrangement::Unfold(window, shape) => images(d, window, shape),
        Rearrangement::Fold(window, _) => windows(d, window),
        Rearrangement::Strips(strips) => laid_back(d, strips),
        Rearrangement::Exchange([outer, a, b, inner]) => exchanged(d, [outer, b, a, inner]),
    }
}

fn embedded<R: Gpu>(z: &CubeTensor<R>) -> CubeTensor<R> {
    let [count, twice, columns] = z.shape().dims();
    let z = Buffer::of(z);
    let out = z.shaped([count, twice, 2 * columns]);
    let (cubes, dim) = z.units(2 * count * twice * columns);
    let [count, rows, columns] = [count, twice / 2, columns].map(|v| v as u32);
    complex_embed::launch::<R>(
        z.client(),
        cubes,
        dim,
        z.array(),
        out.array(),
        count,
        rows,
        columns,
    );
    out.0
}

fn folded<R: Gpu>(d: &CubeTensor<R>) -> CubeTensor<R> {
    let [count, twice, columns] = d.shape().dims();
    let d = Buffer::of(d);
    let out = d.shaped([count, twice, columns / 2]);
    let (cubes, dim) = d.units(count * twice * columns / 2);
    let [count, rows, columns] = [count, twice / 2, columns / 2].map(|v| v as u32);
    complex_fold::launch::<R>(
        d.client(),
        cubes,
        dim,
        d.array(),
        out.array(),
        count,
        rows,
        columns,
    );
    out.0
}

fn skewed<R: Gpu>(g: &CubeTensor<R>, identity: bool) -> CubeTensor<R> {
    let shape = g.shape();
    let [matrices, _, n] = shape.dims();
    let g = Buffer::of(g);
    let out = g.shaped(shape);
    let tiles = n.div_ceil(32);
    complex_skew::launch::<R>(
        g.client(),
        count(2 * matrices, tiles, tiles),
        CubeDim::new_2d(32, 8),
        g.array(),
        out.array(),
        n as u32,
        identity,
    );
    out.0
}

fn windows<R: Gpu>(x: &CubeTensor<R>, window: Window) -> CubeTensor<R> {
    let [groups, channels, images, size, _] = x.shape().dims();
    let side = size / window.stride;
    let x = Buffer::of(x);
    let square = window.kernel * window.kernel;
    let columns = x.shaped([groups, channels * square, images * side * side]);
    let (cubes, dim) = x.units(groups * channels * square * images * side * side);
    unfold::launch::<R>(
        x.client(),
        cubes,
        dim,
        x.array(),
        columns.array(),
        (groups * channels) as u32,
        images as u32,
        size,
        window.kernel,
        window.stride,
    );
    columns.0
}

fn images<R: Gpu>(columns: &CubeTensor<R>, window: Window, shape: [usize; 5]) -> CubeTensor<R> {
    let [groups, channels, images, size, _] = shape;
    let columns = Buffer::of(columns);
    let x = columns.shaped(shape);
    let (cubes, dim) = columns.units(shape.iter().product());
    fold::launch::<R>(
        columns.client(),
        cubes,
        dim,
        columns.array(),
        x.array(),
        (groups * channels) as u32,
        images as u32,
        size,
        window.kernel,
        window.stride,
    );
    x.0
}

fn taken<R: Gpu>(z: &CubeTensor<R>, strips: Strips) -> CubeTensor<R> {
    let [matrices, _, columns] = z.shape().dims();
    let z = Buffer::of(z);
    let out = z.shaped([matrices * strips.pieces, 2 * strips.height, columns]);
    let cubes = count(
        (strips.height * columns).div_ceil(UNITS as usize),
        2 * strips.pieces,
        matrices,
    );
    let (dim, place) = (CubeDim::new_1d(UNITS), numbers(strips, columns));
    take::launch::<R>(z.client(), cubes, dim, z.array(), out.array(), place);
    out.0
}

fn laid_back<R: Gpu>(d: &CubeTensor<R>, strips: Strips) -> CubeTensor<R> {
    let [all, _, columns] = d.shape().dims();
    let matrices = all / strips.pieces;
    let d = Buffer::of(d);
    let out = d.shaped([matrices, 2 * strips.rows, columns]);
    let cubes = count((strips.rows * columns).div_ceil(UNITS as usize), 2, matrices);
    let (dim, place) = (CubeDim::new_1d(UNITS), numbers(strips, columns));
    lay_back::launch::<R>(d.client(), cubes, dim, d.array(), out.array(), place);
    out.0
}

fn exchanged<R: Gpu>(x: &CubeTensor<R>, [outer, a, b, inner]: [usize; 4]) -> CubeTensor<R> {
    let x = Buffer::of(x);
    let out = x.shaped([outer, b, a, inner]);
    let cubes = count(inner.div_ceil(UNITS as usize), b, outer * a);
    let [a, b, inner] = [a, b, inner].map(|v| v as u32);
    let dim = CubeDim::new_1d(UNITS);
    exchange::launch::<R>(x.client(), cubes, dim, x.array(), out.array(), a, b, inner);
    out.0
}

/// [`Strips`] in numbers instead of rows.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Numbers {
    rows: u32,
    first: u32,
    stride: u32,
    pieces: u32,
    from: u32,
    height: u32,
}

fn numbers<R: Gpu>(strips: Strips, columns: usize) -> NumbersLaunch<R> {
    let of = |rows: usize| (rows * columns) as u32;
    NumbersLaunch::new(
        of(strips.rows),
        of(strips.first),
        of(strips.stride),
        strips.pieces as u32,
        of(strips.from),
        of(strips.height),
    )
}

/// Some rows of complex matrices: one number per unit, cubes by place in the piece, piece and part,
/// and matrix.
#[cube(launch)]
fn take(from: &Array<f32>, to: &mut Array<f32>, place: &Numbers) {
    let within = ABSOLUTE_POS_X as usize;
    let height = place.height as usize;
    if within >= height {
        terminate!();
    }
    let piece_and_part = CUBE_POS_Y as usize;
    let matrix = CUBE_POS_Z as usize;
    let (piece, part) = (piece_and_part / 2, piece_and_part % 2);
    let start = (2 * matrix + part) * place.rows as usize + place.first as usize;
    let taken = from[start + piece * place.stride as usize + place.from as usize + within];
    to[(matrix * 2 * place.pieces as usize + piece_and_part) * height + within] = taken;
}

/// The same rows where they came from, zeros elsewhere: cubes by place in the part, part, and
/// matrix.
#[cube(launch)]
fn lay_back(from: &Array<f32>, to: &mut Array<f32>, place: &Numbers) {
    let at = ABSOLUTE_POS_X as usize;
    let rows = place.rows as usize;
    if at >= rows {
        terminate!();
    }
    let part = CUBE_POS_Y as usize;
    let matrix = CUBE_POS_Z as usize;
    let height = place.height as usize;
    let pieces = place.pieces as usize;
    let stride = place.stride as usize;
    let first = place.first as usize;
    let inner = place.from as usize;
    let mut value = 0.0f32;
    if at >= first && at < first + pieces * stride {
        let piece = (at - first) / stride;
        let within = (at - first) % stride;
        if within >= inner && within < inner + height {
            value = from[((matrix * pieces + piece) * 2 + part) * height + within - inner];
        }
    }
    to[(2 * matrix + part) * rows + at] = value;
}

/// Two dimensions exchanged: cubes by place in the inner one, in the second, and in the first with
/// what is around it.
#[cube(launch)]
fn exchange(from: &Array<f32>, to: &mut Array<f32>, a: u32, b: u32, inner: u32) {
    let within = ABSOLUTE_POS_X as usize;
    let (a, b, inner) = (a as usize, b as usize, inner as usize);
    if within >= inner {
        terminate!();
    }
    let second = CUBE_POS_Y as usize;
    let first = CUBE_POS_Z as usize;
    let place = (first / a * b + second) * a + first % a;
    to[place * inner + within] = from[(first * b + second) * inner + within];
}

/// `[[Re, −Im], [Im, Re]]` of complex matrices, real parts above imaginary ones: one number per
/// unit.
#[cube(launch)]
fn complex_embed(from: &Array<f32>, to: &mut Array<f32>, count: u32, rows: u32, columns: u32) {
    let at = ABSOLUTE_POS;
    let (rows, columns) = (rows as usize, columns as usize);
    if at >= count as usize * 4 * rows * columns {
        terminate!();
    }
    let col = at % (2 * columns);
    let row = at / (2 * columns) % (2 * rows);
    let start = at / (4 * rows * columns) * 2 * rows * columns;
    if col < columns {
        to[at] = from[start + row * columns + col];
    } else if row < rows {
        to[at] = -from[start + (row + rows) * columns + col - columns];
    } else {
        to[at] = from[start + (row - rows) * columns + col - columns];
    }
}

/// Its adjoint.
#[cube(launch)]
fn complex_fold(from: &Array<f32>, to: &mut Array<f32>, count: u32, rows: u32, columns: u32) {
    let at = ABSOLUTE_POS;
    let (rows, columns) = (rows as usize, columns as usize);
    if at >= count as usize * 2 * rows * columns {
        terminate!();
    }
    let col = at % columns;
    let row = at / columns % (2 * rows);
    let start = at / (2 * rows * columns) * 4 * rows * columns;
    let mut value = from[start + row * 2 * columns + col];
    if row < rows {
        value += from[start + (row + rows) * 2 * columns + columns + col];
    } else {
        value -= from[start + (row - rows) * 2 * columns + columns + col];
    }
    to[at] = value;
}

/// `G − Gᴴ` of complex matrices, real parts above imaginary ones, and the identity: a tile a cube
/// of 32 × 8 units, its mirror image through shared memory.
#[cube(launch)]
fn complex_skew(from: &Array<f32>, to: &mut Array<f32>, n: u32, #[comptime] identity: bool) {
    let n = n as usize;
    let mut mirror = SharedMemory::<f32>::new(comptime!(32 * 33usize));
    let part = CUBE_POS_X as usize;
    let base = part * n * n;
    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    let (first_row, first_col) = (CUBE_POS_Y as usize * 32, CUBE_POS_Z as usize * 32);
    #[unroll]
    for k in 0..4usize {
        let (row, col) = (first_col + ty + 8 * k, first_row + tx);
        if row < n && col < n {
            mirror[(ty + 8 * k) * 33 + tx] = from[base + row * n + col];
        }
    }
    sync_cube();
    #[unroll]
    for k in 0..4usize {
        let (row, col) = (first_row + ty + 8 * k, first_col + tx);
        if row < n && col < n {
            let mirrored = mirror[tx * 33 + ty + 8 * k];
            let mut value = from[base + row * n + col];
            // Real parts at even places, imaginary ones at odd.
            if part % 2 == 1 {
                value += mirrored;
            } else {
                value -= mirrored;
                if comptime!(identity) && row == col {
                    value += 1.0;
                }
            }
            to[base + row * n + col] = value;
        }
    }
}

/// Windows of images as columns: one number per unit.
#[cube(launch)]
fn unfold(
    from: &Array<f32>,
    to: &mut Array<f32>,
    channels: u32,
    images: u32,
    #[comptime] size: usize,
    #[comptime] kernel: usize,
    #[comptime] stride: usize,
) {
    let at = ABSOLUTE_POS;
    let (channels, images) = (channels as usize, images as usize);
    let square = comptime!(kernel * kernel);
    let pad = comptime!((kernel - 1) / 2);
    let side = comptime!(size / stride);
    let per_window = images * comptime!(side * side);
    if at >= channels * square * per_window {
        terminate!();
    }
    let window = at / per_window;
    let within = at % per_window;
    let place = window % square;
    // Rows and columns of the image with its zeros.
    let row = within / side % side * stride + place / kernel;
    let col = within % side * stride + place % kernel;
    let mut value = 0.0f32;
    if row >= pad && row < size + pad && col >= pad && col < size + pad {
        let image = window / square * images + within / comptime!(side * side);
        value = from[(image * size + row - pad) * size + col - pad];
    }
    to[at] = value;
}

/// The adjoint: every pixel the sum of its places in the columns.
#[cube(launch)]
fn fold(
    from: &Array<f32>,
    to: &mut Array<f32>,
    channels: u32,
    images: u32,
    #[comptime] size: usize,
    #[comptime] kernel: usize,
    #[comptime] stride: usize,
) {
    let at = ABSOLUTE_POS;
    let (channels, images) = (channels as usize, images as usize);
    let square = comptime!(kernel * kernel);
    let pad = comptime!((kernel - 1) / 2);
    let side = comptime!(size / stride);
    if at >= channels * images * comptime!(size * size) {
        terminate!();
    }
    let row = at / size % size + pad;
    let col = at % size + pad;
    let image = at / comptime!(size * size);
    let (channel, image) = (image / images, image % images);
    let mut sum = 0.0f32;
    #[unroll]
    for place in 0..square {
        let down = comptime!(place / kernel);
        let right = comptime!(place % kernel);
        if row >= down && col >= right {
            let (above, before) = (row - down, col - right);
            if above % stride == 0 && before % stride == 0 && above / stride < side && before / stride < side
            {
                let window = channel * square + place;
                sum += from[((window * images + image) * side + above / stride) * side + before / stride];
            }
        }
    }
    to[at] = sum;
}
