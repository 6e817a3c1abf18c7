//! The operations of [`crate::ops`] by plain tensor operations, for every backend without a path of its own.
//!
//! The only part that automatic differentiation must not see is the iteration for the inverse. It runs on detached
//! tensors, and one more Newton step `X ← 2X − XWX` with the tracked `W` closes it: its value is the inverse, and its
//! derivative, `−X dW X`, is the derivative of the inverse.

use std::sync::Arc;

use bilip::Activation;
use burn::tensor::activation::{leaky_relu, relu, sigmoid};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, ElementConversion, Tensor};

use crate::kernel::adam::Step;
use crate::kernel::monlip::Layout;
use crate::ops::{Order, Strips, Window};

/// `W⁻¹` for a matrix whose symmetric part is ⪰ I, so that its singular values are at least 1.
fn inverse<B: Backend>(w: Tensor<B, 2>) -> Tensor<B, 2> {
    let fixed = w.clone().detach();
    let [n, _] = fixed.dims();
    let eye = Tensor::<B, 2>::eye(n, &fixed.device()).cast(fixed.dtype());
    let epsilon = if fixed.dtype() == DType::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    // Newton–Schulz from Wᵀ/(‖W‖₁‖W‖∞), from where it always converges (Ben-Israel and Cohen 1966): with κ the
    // condition, 2·log₂κ steps and then quadratically.
    let rows = fixed.clone().abs().sum_dim(1).max();
    let columns = fixed.clone().abs().sum_dim(0).max();
    let mut x = fixed.clone().transpose() / (rows * columns).unsqueeze();
    let mut best = f64::INFINITY;
    for _ in 0..128 {
        let product = fixed.clone().matmul(x.clone());
        let defect = eye.clone() - product;
        let residual: f64 = (defect.clone() * defect.clone())
            .sum()
            .sqrt()
            .into_scalar()
            .elem();
        // The closing step would square the residual of the value, but not that of the derivative.
        if residual < n as f64 * epsilon || (residual < 0.1 && residual >= best) || !residual.is_finite() {
            break;
        }
        best = residual;
        x = x.clone() + x.matmul(defect);
    }
    x.clone().mul_scalar(2.0) - x.clone().matmul(w.matmul(x))
}

/// The same for several matrices, `[count, n, n]`.
pub(crate) fn inverses<B: Backend>(w: Tensor<B, 3>) -> Tensor<B, 3> {
    let [count, n, _] = w.dims();
    let each = (0..count)
        .map(|k| inverse(w.clone().slice([k..k + 1, 0..n, 0..n]).reshape([n, n])).reshape([1, n, n]))
        .collect();
    Tensor::cat(each, 0)
}

/// A product with one of its factors transposed, or none.
pub(crate) fn product<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
    order: Order,
) -> Tensor<B, D> {
    match order {
        Order::Plain => a.matmul(b),
        Order::Left => a.transpose().matmul(b),
        Order::Right => a.matmul(b.transpose()),
    }
}

/// The upper and the lower half of every matrix.
fn halves<B: Backend>(z: Tensor<B, 3>) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let [count, twice, columns] = z.dims();
    let half = |start: usize| z.clone().slice([0..count, start..start + twice / 2, 0..columns]);
    (half(0), half(twice / 2))
}

/// Complex matrices, real parts above imaginary ones, as the real ones of twice the size that multiply as they do: `[[Re, −Im], [Im, Re]]`.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·rows, 2·columns]`
pub(crate) fn embed<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    let (re, im) = halves(z.clone());
    Tensor::cat(vec![z, Tensor::cat(vec![im.neg(), re], 1)], 2)
}

/// The adjoint of [`embed`].
pub(crate) fn fold_embedded<B: Backend>(d: Tensor<B, 3>) -> Tensor<B, 3> {
    let [count, twice, columns] = d.dims();
    let side = |start: usize| d.clone().slice([0..count, 0..twice, start..start + columns / 2]);
    let (re, im) = halves(side(columns / 2));
    side(0) + Tensor::cat(vec![im, re.neg()], 1)
}

/// `G − Gᴴ` of complex matrices, real parts above imaginary ones, and the identity if it is asked for.
pub(crate) fn skew<B: Backend>(g: Tensor<B, 3>, identity: bool) -> Tensor<B, 3> {
    let [_, _, n] = g.dims();
    let place = (&g.device(), g.dtype());
    let w = g.clone() - adjoint(g.clone());
    if !identity {
        return w;
    }
    let eye = Tensor::<B, 2>::eye(n, &g.device()).cast(g.dtype());
    w + Tensor::cat(vec![eye, Tensor::zeros([n, n], place)], 0).unsqueeze::<3>()
}

/// The adjoints of complex matrices, real parts above imaginary ones.
///
/// # Shapes
/// `[count, 2·rows, columns] → [count, 2·columns, rows]`
pub(crate) fn adjoint<B: Backend>(z: Tensor<B, 3>) -> Tensor<B, 3> {
    let (re, im) = halves(z);
    Tensor::cat(vec![re.swap_dims(1, 2), im.swap_dims(1, 2).neg()], 1)
}

/// See [`crate::ops::strips`].
pub(crate) fn strips<B: Backend>(z: Tensor<B, 3>, s: Strips) -> Tensor<B, 3> {
    let [count, _, columns] = z.dims();
    z.reshape([count, 2, s.rows, columns])
        .slice([0..count, 0..2, s.first..s.first + s.pieces * s.stride, 0..columns])
        .reshape([count, 2, s.pieces, s.stride, columns])
        .slice([0..count, 0..2, 0..s.pieces, s.from..s.from + s.height, 0..columns])
        .swap_dims(1, 2)
        .reshape([count * s.pieces, 2 * s.height, columns])
}

/// The adjoint of [`strips`]: the pieces where they came from, zeros elsewhere.
pub(crate) fn laid_back<B: Backend>(d: Tensor<B, 3>, s: Strips) -> Tensor<B, 3> {
    let [all, _, columns] = d.dims();
    let count = all / s.pieces;
    let d = d.reshape([count, s.pieces, 2, s.height, columns]).swap_dims(1, 2);
    let d = framed(d, [s.from, s.stride - s.from - s.height], [0; 2]).reshape([
        count,
        2,
        s.pieces * s.stride,
        columns,
    ]);
    framed(d, [s.first, s.rows - s.first - s.pieces * s.stride], [0; 2]).reshape([count, 2 * s.rows, columns])
}

/// The inverses of complex matrices, real parts above imaginary ones, by real inverses and products.
///
/// `(R + iM)⁻¹ = Z − iTZ` with `T = R⁻¹M` and `Z = (R + MT)⁻¹`. Where the Hermitian part is ⪰ I, so are the symmetric parts of R and of `R + MT`, a Schur complement of
/// the embedded matrix: both inverses are safe without pivots.
pub(crate) fn complex_inverse<B: Backend>(
    w: Tensor<B, 3>,
    inverse: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
    product: impl Fn(Tensor<B, 3>, Tensor<B, 3>) -> Tensor<B, 3>,
) -> Tensor<B, 3> {
    let (re, im) = halves(w);
    let t = product(inverse(re.clone()), im.clone());
    let z = inverse(re + product(im, t.clone()));
    let below = product(t, z.clone()).neg();
    Tensor::cat(vec![z, below], 1)
}

/// Images with zeros around them, with the number of rows above and below, of columns left and right.
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

/// See [`crate::ops::unfold`].
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

/// `J = [2X − I; −2HX]` of a tall free matrix with its gain: orthonormal columns.
pub(crate) fn cayley<B: Backend>(free: Tensor<B, 2>, gain: Tensor<B, 1>) -> Tensor<B, 2> {
    let [rows, cols] = free.dims();
    // The tiny number keeps a zero matrix, whose transform is the identity, from dividing by zero.
    let norm = (free.clone() * free.clone()).sum().add_scalar(1e-30).sqrt();
    let scaled = free * (gain / norm).unsqueeze();
    let g = scaled.clone().slice([0..cols, 0..cols]);
    let eye = Tensor::<B, 2>::eye(cols, &g.device()).cast(g.dtype());
    let mut w = g.clone() - g.transpose() + eye.clone();
    if rows == cols {
        return inverse(w).mul_scalar(2.0) - eye;
    }
    let h = scaled.slice([cols..rows, 0..cols]);
    w = w + h.clone().transpose().matmul(h.clone());
    let x = inverse(w);
    let bottom = h.matmul(x.clone()).mul_scalar(-2.0);
    Tensor::cat(vec![x.mul_scalar(2.0) - eye, bottom], 0)
}

/// `σ(v)`.
pub(crate) fn activate<B: Backend>(activation: Activation, v: Tensor<B, 2>) -> Tensor<B, 2> {
    match activation {
        Activation::Relu => relu(v),
        Activation::LeakyRelu(slope) => leaky_relu(v, slope.get()),
        Activation::Tanh => v.tanh(),
        Activation::Sigmoid => sigmoid(v),
        Activation::Arctan => v.atan(),
        Activation::Softplus => relu(v.clone()) + v.abs().neg().exp().log1p(),
        Activation::Elu => relu(v.clone()) + v.clamp_max(0.0).exp().sub_scalar(1.0),
        Activation::Identity => v,
    }
}

/// `F(x)` of a monotone layer; shapes as in [`crate::ops::monlip`].
pub(crate) fn monlip<B: Backend>(
    x: Tensor<B, 2>,
    phi: Tensor<B, 1>,
    bounds: Tensor<B, 1>,
    bias: Tensor<B, 2>,
    layout: &Arc<Layout>,
) -> Tensor<B, 2> {
    monlip_with(x, phi, bounds, bias, layout, &layout.offsets)
}

/// The same with the first row of Q that each hidden layer takes.
pub(crate) fn monlip_with<B: Backend>(
    x: Tensor<B, 2>,
    phi: Tensor<B, 1>,
    bounds: Tensor<B, 1>,
    bias: Tensor<B, 2>,
    layout: &Arc<Layout>,
    rows_of_q: &[usize],
) -> Tensor<B, 2> {
    let (n, m) = (layout.n, layout.hidden());
    let part = |range: std::ops::Range<usize>| phi.clone().slice(range);
    let one = |at: usize| part(at..at + 1);
    let free_q = part(layout.fq.clone()).reshape([layout.extra + m, n]);
    let q = if layout.extra + m < n {
        cayley(free_q.transpose(), one(layout.gain_q)).transpose()
    } else {
        cayley(free_q, one(layout.gain_q)).slice([layout.extra..layout.extra + m, 0..n])
    };
    let mu = bounds.clone().slice(0..1).unsqueeze::<2>();
    let gain_in = bounds.slice(1..2).mul_scalar(2.0).sqrt().unsqueeze::<2>();
    let mut y = x.clone() * mu + part(layout.output_bias.clone()).unsqueeze();
    let [bias_rows, _] = bias.dims();
    let mut before: Option<Before<B>> = None;
    for (k, &width) in layout.units.iter().enumerate() {
        let offset = layout.offsets[k];
        let rows = layout.fab[k].len() / width;
        let free = part(layout.fab[k].clone()).reshape([rows, width]);
        let j = cayley(free, one(layout.gain_ab.start + k));
        // J = [Aᵀ; Bᵀ].
        let at = j.clone().slice([0..width, 0..width]);
        let q_k = q.clone().slice([rows_of_q[k]..rows_of_q[k] + width, 0..n]);
        let mut s = at.clone().transpose().matmul(q_k.clone());
        let mut v = bias.clone().slice([0..bias_rows, offset..offset + width]);
        if let Some(before) = &before {
            let b = j.slice([width..rows, 0..width]).transpose();
            s = s - b.clone().matmul(before.q.clone());
            // ẑ Vᵀ with V = 2 B Aᵀ₋₁.
            let weight = b.matmul(before.at.clone()).mul_scalar(2.0);
            v = v + before.z.clone().matmul(weight.transpose());
        }
        v = v + x.clone().matmul(s.clone().transpose()) * gain_in.clone();
        let z = match &layout.log_psi {
            None => activate(layout.activation, v),
            Some(range) => {
                let start = range.start + offset;
                let psi = part(start..start + width).exp().unsqueeze::<2>();
                activate(layout.activation, v / psi.clone()) * psi
            }
        };
        y = y + z.clone().matmul(s) * gain_in.clone().div_scalar(2.0);
        before = Some(Before { at, q: q_k, z });
    }
    y
}

/// What a hidden layer leaves to the next: Aᵀ, its rows of Q, and ẑ.
struct Before<B: Backend> {
    at: Tensor<B, 2>,
    q: Tensor<B, 2>,
    z: Tensor<B, 2>,
}

/// One step of Adam on parameters, gradient and both moments.
pub(crate) fn adam_step<B: Backend, const D: usize>(
    [w, g, first, second]: [Tensor<B, D>; 4],
    step: Step,
) -> [Tensor<B, D>; 3] {
    let (b1, b2) = step.beta;
    let correct = |beta: f64| 1.0 / (1.0 - beta.powi(step.time));
    let first = first.mul_scalar(b1) + g.clone().mul_scalar(1.0 - b1);
    let second = second.mul_scalar(b2) + (g.clone() * g).mul_scalar(1.0 - b2);
    let root = second
        .clone()
        .mul_scalar(correct(b2))
        .sqrt()
        .add_scalar(step.epsilon);
    let change = first.clone().mul_scalar(step.rate * correct(b1)) / root;
    let w = w.mul_scalar(1.0 - step.rate * step.decay) - change;
    [w, first, second]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;
    use burn::backend::{Autodiff, Flex, NdArray};
    use burn::tensor::TensorData;

    type F = Autodiff<Flex>;

    fn tensor<B: Backend, const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<B, D> {
        Tensor::from_data(
            TensorData::new(values.to_vec(), shape),
            (&Default::default(), DType::F64),
        )
    }

    fn numbers<B: Backend, const D: usize>(t: Tensor<B, D>) -> Vec<f64> {
        t.to_data().iter::<f64>().collect()
    }

    /// The value and the gradients of x, φ, bounds and bias of one layer by one of the two paths.
    #[allow(clippy::type_complexity)]
    fn all(
        layer: impl Fn(Tensor<F, 2>, Tensor<F, 1>, Tensor<F, 1>, Tensor<F, 2>, &Arc<Layout>) -> Tensor<F, 2>,
        layout: &Arc<Layout>,
        bias_rows: usize,
    ) -> Vec<Vec<f64>> {
        let mut rng = Rng::new(5);
        let rows = 6;
        let x = tensor::<F, 2>(&rng.normals(rows * layout.n), [rows, layout.n]).require_grad();
        let mut phi = rng.normals(layout.len);
        phi[layout.gain_q] = 1.4;
        phi[layout.gain_ab.clone()].fill(1.8);
        let phi = tensor::<F, 1>(&phi, [layout.len]).require_grad();
        let bounds = tensor::<F, 1>(&[0.3, 2.0], [2]).require_grad();
        let m = layout.hidden();
        let bias = tensor::<F, 2>(&rng.normals(bias_rows * m), [bias_rows, m]).require_grad();
        let weight = tensor::<F, 2>(&rng.normals(rows * layout.n), [rows, layout.n]);
        let y = layer(x.clone(), phi.clone(), bounds.clone(), bias.clone(), layout);
        let gradients = (y.clone() * weight).sum().backward();
        vec![
            numbers(y),
            numbers(x.grad(&gradients).unwrap()),
            numbers(phi.grad(&gradients).unwrap()),
            numbers(bounds.grad(&gradients).unwrap()),
            numbers(bias.grad(&gradients).unwrap()),
        ]
    }

    #[test]
    fn the_portable_layer_agrees_with_the_native_one_in_value_and_gradient() {
        for (case, activation) in Activation::ALL.into_iter().enumerate() {
            for (n, units, general) in [
                (3, vec![5, 4, 6], false),
                (6, vec![2, 2], false),
                (2, vec![30, 20], true),
            ] {
                let layout = Arc::new(Layout::new(n, &units, activation, general));
                let bias_rows = [1, 6][case % 2];
                let native = all(crate::ops::monlip::<F>, &layout, bias_rows);
                let portable = all(monlip::<F>, &layout, bias_rows);
                for (what, (a, b)) in native.iter().zip(&portable).enumerate() {
                    let scale = a.iter().fold(1e-3, |s: f64, v| s.max(v.abs()));
                    for (a, b) in a.iter().zip(b) {
                        assert!(
                            (a - b).abs() <= 1e-10 * scale,
                            "{activation} {units:?} {what}: {a} against {b}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn another_backend_takes_the_portable_path_and_steps_alike() {
        fn train<B: burn::tensor::backend::AutodiffBackend>() -> Vec<f64> {
            use crate::{Adam, BiLipNetConfig, BoundsMode, MonLipConfig, PlNet};
            use burn::optim::{GradientsParams, Optimizer};
            // In f64: Adam turns the rounding noise of a gradient that is zero into a full step, unless it is far
            // below its ε.
            let config = MonLipConfig {
                dtype: DType::F64,
                ..MonLipConfig::new(2, &[8, 8], BoundsMode::Distortion(20.0))
            };
            let net = BiLipNetConfig::new(2, config)
                .init::<B>(&Default::default())
                .unwrap();
            let mut model = PlNet::new(net);
            let mut optimizer = Adam::default().init::<B, PlNet<B>>();
            let x = tensor::<B, 2>(&[0.0, 0.5, 1.0, -1.0, -2.0, 1.0], [3, 2]);
            for _ in 0..5 {
                let error = model.forward(x.clone()).sub_scalar(1.0);
                let loss = (error.clone() * error).mean();
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-2, model, gradients);
            }
            numbers(model.forward(x))
        }
        let (flex, other) = (train::<F>(), train::<Autodiff<NdArray>>());
        for (a, b) in flex.iter().zip(&other) {
            assert!((a - b).abs() < 1e-8, "{a} against {b}");
        }
    }

    #[test]
    fn badly_conditioned_transforms_are_still_orthogonal() {
        // A gain of 1,000 makes I + Z as badly conditioned as training ever will; a zero matrix gives the identity.
        for (rows, cols, gain) in [(20, 20, 1e3), (30, 12, 1e3), (9, 4, 1e-3)] {
            let free = tensor::<Flex, 2>(&Rng::new(1).normals(rows * cols), [rows, cols]);
            let j = cayley(free, tensor(&[gain], [1]));
            let gram = numbers(j.clone().transpose().matmul(j));
            for i in 0..cols {
                for k in 0..cols {
                    let expected = if i == k { 1.0 } else { 0.0 };
                    let found = gram[i * cols + k];
                    assert!((found - expected).abs() < 1e-8, "gain {gain}: {found}");
                }
            }
        }
        let zero = cayley(tensor::<Flex, 2>(&[0.0; 4], [2, 2]), tensor(&[1.0], [1]));
        assert_eq!(numbers(zero), [1.0, 0.0, 0.0, 1.0]);
    }
}
