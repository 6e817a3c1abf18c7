//! Products of batches of matrices in single precision.
//!
//! One tile of the result per cube, 16×16 units, every unit 4×4 or 8×8 entries of it. The factors
//! come through shared memory, the next piece of them on its way while the current one is worked
//! on. No tensor cores: the transforms are to be orthogonal to the last bit of single precision.

use burn::tensor::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::Tma;
use cubecl::prelude::*;
use cubecl::tf32;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::{Strategy, launch_ref};
use cubek::std::InputBinding;

use super::memory::{Buffer, Gpu, count};
use crate::spec::MatmulPrecision;

/// Where the entries of a batch of matrices are in a buffer.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Place {
    pub offset: u32,
    pub batch: u32,
    pub row: u32,
    pub col: u32,
}

/// A batch of matrices in a buffer.
pub struct View<'a, R: Gpu> {
    buffer: &'a Buffer<R>,
    offset: usize,
    batch: usize,
    row: usize,
    col: usize,
}

impl<R: Gpu> Clone for View<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Gpu> Copy for View<'_, R> {}

impl<'a, R: Gpu> View<'a, R> {
    /// Row-major matrices with rows of the given length, one after the other every `batch` numbers.
    pub fn new(buffer: &'a Buffer<R>, row: usize, batch: usize) -> Self {
        View {
            buffer,
            offset: 0,
            batch,
            row,
            col: 1,
        }
    }

    /// A tensor of two dimensions, or of three with the matrices' number first, as it is in
    /// memory, transposed or not.
    pub fn of(buffer: &'a Buffer<R>) -> Self {
        let strides = buffer.0.meta.strides();
        let last = strides.len() - 1;
        View {
            buffer,
            offset: 0,
            batch: if last == 2 { strides[0] } else { 0 },
            row: strides[last - 1],
            col: strides[last],
        }
    }

    /// The same, moved by an offset.
    pub fn at(self, offset: usize) -> Self {
        View {
            offset: self.offset + offset,
            ..self
        }
    }

    /// The transposed matrices.
    pub fn t(self) -> Self {
        View {
            row: self.col,
            col: self.row,
            ..self
        }
    }

    pub fn place(&self) -> PlaceLaunch<R> {
        PlaceLaunch::new(
            self.offset as u32,
            self.batch as u32,
            self.row as u32,
            self.col as u32,
        )
    }
}

/// How a tile is worked on, fixed when a kernel is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    /// Blocks of 4×4 a unit, in each direction: 1 or 2.
    pub blocks: usize,
    /// Whether neighbors in memory are neighbors along the sum, in the left and the right factor.
    pub left_along: bool,
    pub right_along: bool,
}

impl Tile {
    /// Rows and columns of a tile.
    pub fn size(&self) -> usize {
        64 * self.blocks
    }

    /// Terms of the sum in one piece.
    fn depth(&self) -> usize {
        16 / self.blocks
    }

    /// For the product of two views: large tiles where there are enough of them to fill the device
    /// and they do not reach far beyond the matrices.
    pub fn choose<R: Gpu>(a: &View<'_, R>, b: &View<'_, R>, (m, n): (usize, usize), batch: usize) -> Self {
        let area = |size: usize| m.next_multiple_of(size) * n.next_multiple_of(size);
        let large = area(128) / (128 * 128) * batch >= 96 && 2 * area(128) <= 3 * area(64);
        Tile {
            blocks: if large { 2 } else { 1 },
            left_along: a.col == 1,
            right_along: b.row == 1,
        }
    }
}

/// Four numbers that travel together.
pub type Four = Vector<f32, Const<4>>;

/// The unit's four neighboring entries of one factor: entry (`along`, `across`) of it with its
/// bounds.
#[cube]
fn fetch(
    from: &Array<f32>,
    start: usize,
    along: usize,
    across: usize,
    stride_along: usize,
    stride_across: usize,
    limit_along: usize,
    limit_across: usize,
) -> Four {
    let mut out = Four::new(0.0);
    if along < limit_along {
        let base = start + along * stride_along;
        #[unroll]
        for i in 0..4usize {
            if across + i < limit_across {
                out[i] = from[base + (across + i) * stride_across];
            }
        }
    }
    out
}

/// Adds the product of a row of tiles and a column of tiles to the unit's entries.
#[cube]
pub fn accumulate(
    a: &Array<f32>,
    a_at: &Place,
    b: &Array<f32>,
    b_at: &Place,
    m: usize,
    n: usize,
    k: usize,
    first_row: usize,
    first_col: usize,
    batch: usize,
    sums: &mut Array<Four>,
    #[comptime] tile: Tile,
) {
    let size = comptime!(tile.size());
    let depth = comptime!(tile.depth());
    let blocks = comptime!(tile.blocks);
    let quads = comptime!(size / 4);
    // Odd lengths of four numbers would cost the alignment; one spare quad keeps neighbors off each
    // other's banks.
    let pitch = comptime!(quads + 1);
    let mut left = SharedMemory::<Four>::new(comptime!(2 * depth * pitch));
    let mut right = SharedMemory::<Four>::new(comptime!(2 * depth * pitch));

    let unit = UNIT_POS as usize;
    let mut left_along = unit / quads;
    let mut left_quad = unit % quads;
    if comptime!(tile.left_along) {
        left_along = unit % depth;
        left_quad = unit / depth;
    }
    let mut right_along = unit / quads;
    let mut right_quad = unit % quads;
    if comptime!(tile.right_along) {
        right_along = unit % depth;
        right_quad = unit / depth;
    }
    let a_start = a_at.offset as usize + batch * a_at.batch as usize;
    let b_start = b_at.offset as usize + batch * b_at.batch as usize;
    let a_row = a_at.row as usize;
    let a_col = a_at.col as usize;
    let b_row = b_at.row as usize;
    let b_col = b_at.col as usize;
    let left_across = first_row + left_quad * 4;
    let right_across = first_col + right_quad * 4;

    let tx = UNIT_POS_X as usize;
    let ty = UNIT_POS_Y as usize;
    let pieces = k.div_ceil(depth);
    let mut next_left = fetch(a, a_start, left_along, left_across, a_col, a_row, k, m);
    let mut next_right = fetch(b, b_start, right_along, right_across, b_row, b_col, k, n);
    for piece in 0..pieces {
        // Two sets of shared memory in turn: one barrier a piece is enough.
        let base = (piece % 2) * comptime!(depth * pitch);
        left[base + left_along * pitch + left_quad] = next_left;
        right[base + right_along * pitch + right_quad] = next_right;
        sync_cube();
        if piece + 1 < pieces {
            let at = (piece + 1) * depth;
            next_left = fetch(a, a_start, at + left_along, left_across, a_col, a_row, k, m);
            next_right = fetch(b, b_start, at + right_along, right_across, b_row, b_col, k, n);
        }
        for d in 0..depth {
            let row = base + d * pitch;
            #[unroll]
            for bi in 0..blocks {
                let l = left[row + bi * 16 + ty];
                #[unroll]
                for bj in 0..blocks {
                    let r = right[row + bj * 16 + tx];
                    #[unroll]
                    for i in 0..4usize {
                        let index = comptime!((bi * 4 + i) * blocks + bj);
                        sums[index] = fma(Four::new(l[i]), r, sums[index]);
                    }
                }
            }
        }
    }
}

/// The unit's entries, all zero.
#[cube]
pub fn zeros(#[comptime] tile: Tile) -> Array<Four> {
    let count = comptime!(4 * tile.blocks * tile.blocks);
    let mut sums = Array::<Four>::new(count);
    #[unroll]
    for i in 0..count {
        sums[i] = Four::new(0.0);
    }
    sums
}

/// `C = [C +] α·AB` for every matrix of the batch.
#[cube(launch)]
fn product_kernel(
    a: &Array<f32>,
    a_at: &Place,
    b: &Array<f32>,
    b_at: &Place,
    c: &mut Array<f32>,
    c_at: &Place,
    m: u32,
    n: u32,
    k: u32,
    alpha: f32,
    #[comptime] add: bool,
    #[comptime] tile: Tile,
) {
    let blocks = comptime!(tile.blocks);
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let first_row = CUBE_POS_Y as usize * comptime!(tile.size());
    let first_col = CUBE_POS_X as usize * comptime!(tile.size());
    let batch = CUBE_POS_Z as usize;
    let mut sums = zeros(tile);
    accumulate(
        a, a_at, b, b_at, m, n, k, first_row, first_col, batch, &mut sums, tile,
    );
    let start = c_at.offset as usize + batch * c_at.batch as usize;
    let c_row = c_at.row as usize;
    let c_col = c_at.col as usize;
    #[unroll]
    for bi in 0..blocks {
        #[unroll]
        for i in 0..4usize {
            let row = first_row + bi * 64 + UNIT_POS_Y as usize * 4 + i;
            if row < m {
                #[unroll]
                for bj in 0..blocks {
                    let values = sums[comptime!((bi * 4 + i) * blocks + bj)];
                    #[unroll]
                    for j in 0..4usize {
                        let col = first_col + bj * 64 + UNIT_POS_X as usize * 4 + j;
                        if col < n {
                            let at = start + row * c_row + col * c_col;
                            let mut value = alpha * values[j];
                            if comptime!(add) {
                                value += c[at];
                            }
                            c[at] = value;
                        }
                    }
                }
            }
        }
    }
}

/// `C = [C +] α·AB` for `batch` matrices, `A` of `m × k` and `B` of `k × n`.
#[allow(clippy::too_many_arguments)]
pub fn product<R: Gpu>(
    a: View<'_, R>,
    b: View<'_, R>,
    c: View<'_, R>,
    (m, n, k): (usize, usize, usize),
    batch: usize,
    alpha: f32,
    add: bool,
) {
    if m * n * batch == 0 {
        return;
    }
    let tile = Tile::choose(&a, &b, (m, n), batch);
    product_kernel::launch::<R>(
        a.buffer.client(),
        count(n.div_ceil(tile.size()), m.div_ceil(tile.size()), batch),
        CubeDim::new_2d(16, 16),
        a.buffer.array(),
        a.place(),
        b.buffer.array(),
        b.place(),
        c.buffer.array(),
        c.place(),
        m as u32,
        n as u32,
        k as u32,
        alpha,
        add,
        tile,
    );
}

/// Operations from which on a product is worth the fast kind that takes seconds to compile.
const LARGE: usize = 4_000_000_000;

/// The product on tensor cores, factors rounded to 11 bits and sums in single precision; none where
/// the device has no such units or the matrices are too small for them.
///
/// Of the kinds of product that cubek has, those that fetch by the tensor map of the newest GPUs
/// are twice as fast as the others, and take some three seconds each to compile, one for every
/// order of the factors and kind of size: large products get that, the others one that takes a
/// third of a second.
fn on_tensor_cores<R: Gpu>(a: &CubeTensor<R>, b: &CubeTensor<R>) -> Option<CubeTensor<R>> {
    let (mut shape, last) = (a.meta.shape().clone(), a.meta.strides().len() - 1);
    let (m, k, n) = (shape[last - 1], shape[last], b.meta.shape()[last]);
    let batch = if last == 2 { shape[0] } else { 1 };
    let properties = a.client.properties();
    let narrow = tf32::as_type_native_unchecked().storage_type();
    if m.min(n).min(k) < 16 || !properties.supports_type(narrow) {
        return None;
    }
    // The tensor map needs neighbors in one direction, and 16 bytes or a multiple of that in all
    // others.
    let mapped = |t: &CubeTensor<R>| {
        let (strides, shape) = (t.meta.strides(), t.meta.shape());
        let inner = if strides[last] == 1 { last } else { last - 1 };
        strides[inner] == 1
            && shape[inner].is_multiple_of(4)
            && (0..=last).all(|k| k == inner || strides[k].is_multiple_of(4))
            && t.handle.offset_start.unwrap_or(0).is_multiple_of(16)
    };
    let large = 2 * m * n * k * batch >= LARGE;
    let tensor_map = properties.features.tma.contains(Tma::Base);
    let strategy = match large && tensor_map && n.is_multiple_of(4) && mapped(a) && mapped(b) {
        true => Strategy::DoubleTmaMma(Default::default()),
        false => Strategy::SimpleCyclicCmma(Default::default()),
    };
    shape[last] = n;
    let c = Buffer(a.clone()).shaped(shape);
    let number = f32::as_type_native_unchecked().storage_type();
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
        lhs: number,
        rhs: number,
        out: number,
    });
    launch_ref(
        &strategy,
        &a.client,
        InputBinding::new(a.clone().binding(), number),
        InputBinding::new(b.clone().binding(), number),
        c.0.clone().binding(),
        &mut types,
    )
    .ok()?;
    Some(c.0)
}

/// The product of two matrices, or of as many on either side.
pub fn matmul<R: Gpu>(a: &CubeTensor<R>, b: &CubeTensor<R>, precision: MatmulPrecision) -> CubeTensor<R> {
    if precision == MatmulPrecision::TensorCores
        && let Some(c) = on_tensor_cores(a, b)
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
