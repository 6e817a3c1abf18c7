//! Convolutions of images in groups, a few images at a time: the windows that a product needs fit
//! into the cache, and are never all in memory.

use std::ops::Range;

use bilip::Real;
use bilip::faer::{Accum, Mat, MatMut, MatRef};
use rayon::prelude::*;

use super::product::gemm;
use crate::spec::{Convolved, Window};

/// Pixels of an output that are computed by one product.
const PIXELS: usize = 1024;

impl Convolved {
    /// The images of a group that go through one product, range by range.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let images = self.shape[2];
        let chunk = (PIXELS / self.area()).max(1);
        (0..images)
            .step_by(chunk)
            .map(move |first| first..(first + chunk).min(images))
    }

    /// Calls `work` with every line of the windows of some images: its place among the columns,
    /// the place of the row of pixels that it sees, and the part of the line that sees any with the
    /// place of its first pixel; nothing is called for rows outside.
    fn lines(&self, images: Range<usize>, mut work: impl FnMut(Range<usize>, Option<(Range<usize>, usize)>)) {
        let [_, channels, count, size, _] = self.shape;
        let Window { kernel, stride } = self.window;
        let (pad, side) = (self.window.pad(), self.side());
        let mut at = 0;
        for channel in 0..channels {
            for d in 0..kernel * kernel {
                let (a, b) = (d / kernel, d % kernel);
                // The columns q with 0 ≤ q·stride + b − pad < size.
                let low = pad.saturating_sub(b).div_ceil(stride).min(side);
                let high = (size + pad).saturating_sub(b).div_ceil(stride).clamp(low, side);
                for image in images.clone() {
                    let plane = (channel * count + image) * size * size;
                    for p in 0..side {
                        let row = (p * stride + a).checked_sub(pad).filter(|r| *r < size);
                        let seen = row.filter(|_| low < high).map(|row| {
                            let first = low * stride + b - pad;
                            (low..high, plane + row * size + first)
                        });
                        work(at..at + side, seen);
                        at += side;
                    }
                }
            }
        }
    }

    /// The windows of some images of a group as columns, `[height, images·area]`.
    fn unfold<T: Real>(&self, x: &[T], images: Range<usize>, columns: &mut [T]) {
        let stride = self.window.stride;
        self.lines(images, |line, seen| {
            let line = &mut columns[line];
            let Some((part, first)) = seen else {
                return line.fill(T::zero());
            };
            line[..part.start].fill(T::zero());
            line[part.end..].fill(T::zero());
            let part = &mut line[part];
            if stride == 1 {
                part.copy_from_slice(&x[first..first + part.len()]);
            } else {
                for (to, from) in part.iter_mut().zip(x[first..].iter().step_by(stride)) {
                    *to = *from;
                }
            }
        });
    }

    /// The adjoint: columns added to the pixels they came from.
    fn fold<T: Real>(&self, columns: &[T], images: Range<usize>, x: &mut [T]) {
        let stride = self.window.stride;
        self.lines(images, |line, seen| {
            if let Some((part, first)) = seen {
                let line = &columns[line][part];
                for (to, from) in x[first..].iter_mut().step_by(stride).zip(line) {
                    *to += *from;
                }
            }
        });
    }
}

/// The matrix `[outputs, height]` times all windows: `[groups, outputs, images, side, side]`.
pub(crate) fn forward<T: Real>(matrix: &[T], x: &[T], seen: Convolved) -> Vec<T> {
    let (height, area, images) = (seen.height(), seen.area(), seen.shape[2]);
    let outputs = seen.outputs(matrix.len());
    let mut y = vec![T::zero(); seen.result(matrix.len()).iter().product()];
    let matrix = MatRef::from_row_major_slice(matrix, outputs, height);
    (y.par_chunks_mut((outputs * images * area).max(1)))
        .zip(x.par_chunks(seen.group().max(1)))
        .for_each(|(y, x)| {
            let mut y = MatMut::from_row_major_slice_mut(y, outputs, images * area);
            let mut columns = Vec::new();
            for part in seen.chunks() {
                let (first, count) = (part.start * area, part.len() * area);
                columns.resize(height * count, T::zero());
                seen.unfold(x, part, &mut columns);
                gemm(
                    y.as_mut().subcols_mut(first, count),
                    Accum::Replace,
                    matrix,
                    MatRef::from_row_major_slice(&columns, height, count),
                    T::one(),
                );
            }
        });
    y
}

/// Gradients of the matrix and of the images. Sums do not depend on the number of threads.
pub(crate) fn backward<T: Real>(matrix: &[T], x: &[T], dy: &[T], seen: Convolved) -> (Vec<T>, Vec<T>) {
    let (height, area, images) = (seen.height(), seen.area(), seen.shape[2]);
    let outputs = seen.outputs(matrix.len());
    let mut dx = vec![T::zero(); x.len()];
    let matrix = MatRef::from_row_major_slice(matrix, outputs, height);
    let group = seen.group().max(1);
    let parts: Vec<Mat<T>> = (dx.par_chunks_mut(group))
        .zip(x.par_chunks(group))
        .zip(dy.par_chunks((outputs * images * area).max(1)))
        .map(|((dx, x), dy)| {
            let dy = MatRef::from_row_major_slice(dy, outputs, images * area);
            // Transposed, so that its columns are rows of the matrix.
            let mut gradient = Mat::<T>::zeros(height, outputs);
            let mut columns = Vec::new();
            for part in seen.chunks() {
                let (first, count) = (part.start * area, part.len() * area);
                let dy = dy.subcols(first, count);
                columns.resize(height * count, T::zero());
                seen.unfold(x, part.clone(), &mut columns);
                let windows = MatRef::from_row_major_slice(&columns, height, count);
                gemm(gradient.as_mut(), Accum::Add, windows, dy.transpose(), T::one());
                let windows = MatMut::from_row_major_slice_mut(&mut columns, height, count);
                gemm(windows, Accum::Replace, matrix.transpose(), dy, T::one());
                seen.fold(&columns, part, dx);
            }
            gradient
        })
        .collect();
    let mut gradient = vec![T::zero(); outputs * height];
    for part in &parts {
        for (k, row) in gradient.chunks_exact_mut(height.max(1)).enumerate() {
            for (to, from) in row.iter_mut().zip(part.col(k).iter()) {
                *to += *from;
            }
        }
    }
    (gradient, dx)
}
