//! Windows of images, by tensor operations.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::spec::Window;

/// Images with zeros around them, with the number of rows above and below, of columns left and
/// right.
pub(crate) fn framed<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    rows: [usize; 2],
    columns: [usize; 2],
) -> Tensor<B, D> {
    let place = (&x.device(), x.dtype());
    let around = |x: Tensor<B, D>, dim: usize, counts: [usize; 2]| {
        let zeros = |count: usize| {
            let mut shape = x.dims();
            shape[dim] = count;
            (count > 0).then(|| Tensor::<B, D>::zeros(shape, place))
        };
        let [before, after] = counts.map(zeros);
        match (before, after) {
            (None, None) => x,
            (before, after) => Tensor::cat([before, Some(x), after].into_iter().flatten().collect(), dim),
        }
    };
    around(around(x, D - 2, rows), D - 1, columns)
}

/// The windows of images as columns, by channel and place in the window.
pub(crate) fn unfold<B: Backend>(x: Tensor<B, 5>, window: Window) -> Tensor<B, 3> {
    let [groups, channels, images, size, _] = x.dims();
    let Window { kernel, stride } = window;
    let (side, pad) = (size / stride, window.pad());
    let padded = framed(x, [pad; 2], [pad; 2]);
    let seen: Vec<Tensor<B, 5>> = (0..kernel * kernel)
        .map(|d| {
            let (a, b) = (d / kernel, d % kernel);
            let shifted = padded
                .clone()
                .slice([0..groups, 0..channels, 0..images, a..a + size, b..b + size]);
            // The first of every `stride` rows and columns.
            let count = groups * channels * images;
            shifted
                .reshape([count * side, stride * size])
                .slice([0..count * side, 0..size])
                .reshape([count * side * side, stride])
                .slice([0..count * side * side, 0..1])
                .reshape([groups, channels, images, side, side])
        })
        .collect();
    Tensor::stack::<6>(seen, 2).reshape([groups, channels * kernel * kernel, images * side * side])
}

/// The adjoint of [`unfold`]: every column's numbers added where they came from.
pub(crate) fn fold<B: Backend>(columns: Tensor<B, 3>, window: Window, shape: [usize; 5]) -> Tensor<B, 5> {
    let [groups, channels, images, size, _] = shape;
    let Window { kernel, stride } = window;
    let (side, pad) = (size / stride, window.pad());
    let count = groups * channels * images;
    let columns = columns.reshape([groups * channels, kernel * kernel, images * side * side]);
    let padded = (0..kernel * kernel)
        .map(|d| {
            let (a, b) = (d / kernel, d % kernel);
            let seen = columns
                .clone()
                .slice([0..groups * channels, d..d + 1, 0..images * side * side]);
            // Zeros after every number, and rows of zeros after every row.
            let wide = framed(seen.reshape([count * side * side, 1]), [0; 2], [0, stride - 1]);
            let tall = framed(
                wide.reshape([count * side, size]),
                [0; 2],
                [0, (stride - 1) * size],
            );
            framed(
                tall.reshape([groups, channels, images, size, size]),
                [a, kernel - 1 - a],
                [b, kernel - 1 - b],
            )
        })
        .reduce(|sum, piece| sum + piece);
    let inner = pad..pad + size;
    match padded {
        Some(padded) => padded.slice([0..groups, 0..channels, 0..images, inner.clone(), inner]),
        None => columns.reshape(shape),
    }
}
