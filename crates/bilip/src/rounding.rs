//! Evaluation with a proved bound on its own rounding error, at two prices.
//!
//! *Plain*: the ordinary f64 forward pass, with an a-priori bound from the norms of the weights and the size of the
//! hidden state (Higham's γ_k; any order of summation, fused or not).
//! *Accurate*: the same pass in double-double arithmetic (error-free products and sums), at several times the cost,
//! for the rows whose plain bound is not good enough; its error is quadratic in the unit roundoff for piecewise
//! linear activations and a few roundings of the activation otherwise.
//!
//! Inside a monotone layer a perturbation `e` of the pre-activations moves the hidden state by `w = D(Vw + e)` with
//! slopes `0 ⪯ D ⪯ I`. Then `⟨w, Vw + e − w⟩ ≥ 0`, so `‖Sᵀw‖² ≤ wᵀ(I − (V+Vᵀ)/2)w ≤ ⟨w, e⟩ ≤ a‖e‖²` with `‖w‖ ≤ a‖e‖`
//! by recursion over the layers: the output feels only the square root of the amplification `a`. Between layers an
//! error grows by the certified ν.
//!
//! The elementary functions of the platform's libm are taken to be accurate to 4 units in the last place, which the
//! common ones (glibc, musl, Apple, MSVC) meet with room to spare.

use faer::{MatMut, MatRef};

use crate::activation::Activation;
use crate::bias::Bias;
use crate::certificate::rounding_up::gamma;
use crate::map::{BiLipschitz, LayerRef, Stack};
use crate::monlip::{Buffers, MonLip, Record};
use crate::orthogonal::Orthogonal;
use crate::real::UNIT_ROUNDOFF;
use crate::scaling::Scaling;

/// Guards the norms and sums below, themselves computed in f64: layers have at most [`MAX_UNITS`] terms to a sum.
pub(crate) const SAFETY: f64 = 1.0 + 1e-9;

/// Largest number of hidden units and inputs of a layer together; sums of so many terms are within [`SAFETY`].
pub(crate) const MAX_UNITS: usize = 4_000_000;

/// Numbers so small that squares, products or quotients by ψ may have underflowed are counted at this size.
const FLOOR: f64 = 1e-150;

/// Reusable buffers of [`evaluate_block`].
#[derive(Default)]
pub(crate) struct EvaluateBuffers {
    hidden: Buffers<f64>,
    scratch: Vec<f64>,
    hidden_norm2: Vec<f64>,
}

/// `G(x)` and a bound on the Euclidean error of each row.
pub(crate) fn evaluate(stack: &Stack<'_, f64>, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut y = x.to_vec();
    let mut errors = vec![0.0; x.len() / stack.n];
    evaluate_block(stack, &mut y, &mut errors, &mut EvaluateBuffers::default());
    (y, errors)
}

/// As [`evaluate`], in place and without allocating when the buffers have been used before.
///
/// The columns are those of the stack's batch, in order.
pub(crate) fn evaluate_block(
    stack: &Stack<'_, f64>,
    x: &mut [f64],
    errors: &mut [f64],
    buffers: &mut EvaluateBuffers,
) {
    let (n, columns) = (stack.n, errors.len());
    errors.fill(0.0);
    buffers.scratch.resize(x.len(), 0.0);
    buffers.hidden_norm2.resize(columns, 0.0);
    for (k, layer) in stack.layers.iter().enumerate() {
        let bias = stack.bias(k);
        let from = MatRef::from_column_major_slice(&*x, n, columns);
        let to = MatMut::from_column_major_slice_mut(&mut buffers.scratch, n, columns);
        match layer {
            LayerRef::Orthogonal(l) => l.forward_cols(from, to, bias),
            LayerRef::Scaling(l) => l.forward_cols(from, to, bias),
            LayerRef::MonLip(l) => {
                let record = Record {
                    slopes: None,
                    hidden_norm2: Some(&mut buffers.hidden_norm2[..columns]),
                };
                l.forward_cols(from, to, bias, &mut buffers.hidden, record);
            }
        }
        for j in 0..columns {
            let size = norm(&x[j * n..(j + 1) * n]) * SAFETY;
            let bias_error = stack.biases.as_ref().map_or(0.0, |b| b.errors[k][j]);
            errors[j] = SAFETY
                * match layer {
                    LayerRef::Orthogonal(l) => {
                        let nu = l.bounds().nu();
                        nu * errors[j]
                            + gamma(n + 8) * ((n as f64).sqrt() * nu * size + norm(bias.column(j)))
                            + floor(n)
                            + bias_error
                    }
                    LayerRef::Scaling(l) => {
                        // The products are exact but for underflow; the sum rounds once.
                        let nu = l.bounds().nu();
                        nu * errors[j] + gamma(2) * (nu * size + norm(bias.column(j))) + floor(n) + bias_error
                    }
                    LayerRef::MonLip(l) => {
                        let hidden = buffers.hidden_norm2[j].sqrt() * SAFETY;
                        let sizes = Sizes {
                            input: size,
                            hidden,
                            bias: norm(bias.column(j)),
                        };
                        l.bounds().nu() * errors[j] + plain_error(l, &sizes, bias_error)
                    }
                };
        }
        x.copy_from_slice(&buffers.scratch);
    }
}

struct Sizes {
    input: f64,
    hidden: f64,
    bias: f64,
}

/// Rounding error of one monotone layer evaluated in f64.
fn plain_error(layer: &MonLip<f64>, sizes: &Sizes, bias_error: f64) -> f64 {
    let widest = layer.units().iter().copied().max().unwrap_or(0);
    let n = layer.dim();
    // The constants cover the gains (two roundings each), the bias, ψ, the activation (≤ 4 ulp) and its argument.
    propagate(
        layer,
        sizes,
        bias_error,
        gamma(widest + n + 32),
        gamma(layer.hidden() + n + 32),
    )
}

/// Output error from relative errors `inner` of the pre-activations and `outer` of the output sum.
fn propagate(layer: &MonLip<f64>, sizes: &Sizes, bias_error: f64, inner: f64, outer: f64) -> f64 {
    let norms = layer.norms();
    let n = layer.dim();
    let (gain_in, gain_out) = layer.gains();
    let pre = norms.v_frobenius * sizes.hidden + gain_in * norms.s_frobenius * sizes.input + sizes.bias;
    let local = inner * pre + floor(layer.hidden() + n) + bias_error;
    let output = outer
        * (layer.design().mu() * sizes.input
            + gain_out * norms.s_frobenius * sizes.hidden
            + norm(layer.output_bias()))
        + floor(layer.hidden() + n);
    (gain_out * through_output(layer, local) + output) * SAFETY
}

/// Bound on `‖Sᵀw‖` for `w = D(Vw + e)`, `‖e‖ = local`.
fn through_output(layer: &MonLip<f64>, local: f64) -> f64 {
    let norms = layer.norms();
    let direct = norms.s2 * norms.amplification * local;
    if layer.layer_certificate().holds() {
        direct.min(norms.amplification.sqrt() * local)
    } else {
        direct
    }
}

/// Euclidean norm, computed without overflow or underflow of the squares.
pub(crate) fn norm(v: &[f64]) -> f64 {
    let sum = v.iter().map(|v| v * v).sum::<f64>();
    if (1e-280..1e280).contains(&sum) {
        return sum.sqrt();
    }
    if sum.is_nan() {
        return f64::NAN;
    }
    let largest = v.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * v.iter().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}

/// An upper bound on the Euclidean norm.
pub(crate) fn norm_up(v: &[f64]) -> f64 {
    norm(v) * (1.0 + 2.0 * gamma(v.len() + 8)) + f64::MIN_POSITIVE
}

/// What underflow may have taken from sums of `terms` terms.
pub(crate) fn floor(terms: usize) -> f64 {
    (terms + 16) as f64 * FLOOR
}

/// A vector as an unevaluated sum of two: `hi + lo`.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) hi: Vec<f64>,
    pub(crate) lo: Vec<f64>,
}

impl Pair {
    pub(crate) fn zeros(len: usize) -> Self {
        let (hi, lo) = (vec![0.0; len], vec![0.0; len]);
        Pair { hi, lo }
    }
}

/// `G(x) − y` for the single row of the stack's batch, with a bound on its Euclidean error.
pub(crate) fn accurate_residual(stack: &Stack<'_, f64>, x: &[f64], y: &[f64]) -> (Vec<f64>, f64) {
    let n = stack.n;
    let mut at = Pair {
        hi: x.to_vec(),
        lo: vec![0.0; n],
    };
    let mut error = 0.0;
    for (k, layer) in stack.layers.iter().enumerate() {
        let bias = stack.bias(k);
        let bias_error = stack.biases.as_ref().map_or(0.0, |b| b.errors[k][0]);
        let (next, local) = match layer {
            LayerRef::Orthogonal(l) => orthogonal(l, &at, bias, bias_error),
            LayerRef::MonLip(l) => monlip(l, &at, bias, bias_error),
            LayerRef::Scaling(l) => scaling(l, &at, bias, bias_error),
        };
        error = (layer.bounds().nu() * error + local) * SAFETY;
        at = next;
    }
    let residual: Vec<f64> = (0..n).map(|i| (at.hi[i] - y[i]) + at.lo[i]).collect();
    let error = error + 4.0 * UNIT_ROUNDOFF * norm(&residual);
    (residual, error * SAFETY)
}

/// Relative error of a double-double sum of `k` products: `3k²u²` (Ogita, Rump, Oishi 2005), with room.
pub(crate) fn double_gamma(k: usize) -> f64 {
    let ku = (k as f64 + 8.0) * UNIT_ROUNDOFF;
    8.0 * ku * ku
}

fn orthogonal(layer: &Orthogonal<f64>, x: &Pair, bias: Bias<'_, f64>, bias_error: f64) -> (Pair, f64) {
    let n = layer.dim();
    let bias = bias.column(0);
    let mut y = Pair {
        hi: bias.to_vec(),
        lo: vec![0.0; n],
    };
    add_product(layer.matrix(), &x.hi, &x.lo, &mut y.hi, &mut y.lo);
    renormalize(&mut y);
    let nu = layer.bounds().nu();
    let size = norm(&x.hi) * SAFETY;
    let error = double_gamma(n) * ((n as f64).sqrt() * nu * size + norm(bias)) + floor(n) + bias_error;
    (y, error)
}

fn scaling(layer: &Scaling<f64>, x: &Pair, bias: Bias<'_, f64>, bias_error: f64) -> (Pair, f64) {
    let n = layer.dim();
    let bias = bias.column(0);
    let mut y = Pair::zeros(n);
    for i in 0..n {
        let scale = layer.scale()[i];
        let (sum, error) = two_sum(scale * x.hi[i], bias[i]);
        y.hi[i] = sum;
        y.lo[i] = error + scale * x.lo[i];
    }
    renormalize(&mut y);
    let size = norm(&x.hi) * SAFETY;
    let error = double_gamma(2) * (layer.bounds().nu() * size + norm(bias)) + floor(n) + bias_error;
    (y, error)
}

fn monlip(layer: &MonLip<f64>, x: &Pair, bias: Bias<'_, f64>, bias_error: f64) -> (Pair, f64) {
    let w = &*layer.weights;
    let n = w.n;
    let bias = bias.column(0);
    let gamma = two_sum(w.design.nu(), -w.design.mu());
    let gain_in = sqrt_pair(2.0 * gamma.0, 2.0 * gamma.1);
    let gain_out = sqrt_pair(0.5 * gamma.0, 0.5 * gamma.1);
    let scaled = Pair {
        hi: (0..n).map(|i| times(x.hi[i], x.lo[i], gain_in).0).collect(),
        lo: (0..n).map(|i| times(x.hi[i], x.lo[i], gain_in).1).collect(),
    };
    let mut sums = Pair::zeros(n);
    let mut previous = Pair {
        hi: vec![],
        lo: vec![],
    };
    let (mut hidden_norm2, mut pre_norm2) = (0.0, 0.0);
    for (k, &m) in w.units.iter().enumerate() {
        let range = w.offsets[k]..w.offsets[k] + m;
        let s = w.s.as_ref().subrows(w.offsets[k], m);
        let mut z = Pair {
            hi: bias[range.clone()].to_vec(),
            lo: vec![0.0; m],
        };
        add_product(s, &scaled.hi, &scaled.lo, &mut z.hi, &mut z.lo);
        if k > 0 {
            add_product(
                w.v[k - 1].as_ref(),
                &previous.hi,
                &previous.lo,
                &mut z.hi,
                &mut z.lo,
            );
        }
        renormalize(&mut z);
        pre_norm2 += z.hi.iter().map(|v| v * v).sum::<f64>();
        let psi = w.psi.as_ref().map(|psi| &psi[range.clone()]);
        activate(w.activation, &mut z, psi);
        hidden_norm2 += z.hi.iter().map(|v| v * v).sum::<f64>();
        for j in 0..n {
            let pair = (sums.hi[j], sums.lo[j]);
            (sums.hi[j], sums.lo[j]) = match s.col(j).try_as_col_major() {
                Some(column) => add_dot(column.as_slice(), &z.hi, &z.lo, pair),
                None => add_dot(&s.col(j).iter().copied().collect::<Vec<_>>(), &z.hi, &z.lo, pair),
            };
        }
        previous = z;
    }
    let mut y = Pair::zeros(n);
    for i in 0..n {
        let (hi, lo) = two_sum(sums.hi[i], sums.lo[i]);
        let (a, a_lo) = times(hi, lo, gain_out);
        let (b, b_lo) = times(x.hi[i], x.lo[i], (w.design.mu(), 0.0));
        let (sum, e1) = two_sum(a, b);
        let (sum, e2) = two_sum(sum, w.output_bias[i]);
        y.hi[i] = sum;
        y.lo[i] = e1 + e2 + a_lo + b_lo;
    }
    renormalize(&mut y);

    let sizes = Sizes {
        input: norm(&x.hi) * SAFETY,
        hidden: hidden_norm2.sqrt() * SAFETY,
        bias: norm(bias),
    };
    let widest = w.units.iter().copied().max().unwrap_or(0);
    let mut error = propagate(
        layer,
        &sizes,
        bias_error,
        double_gamma(widest + n),
        double_gamma(layer.hidden() + n),
    );
    if !w.activation.is_homogeneous() {
        // The activation itself: two libm calls of 4 ulp (8u) each, the operations between, ψ and the argument.
        let own = 32.0 * UNIT_ROUNDOFF * (sizes.hidden + pre_norm2.sqrt() * SAFETY);
        let norms = layer.norms();
        let v2 = norms.v2.iter().copied().fold(0.0, f64::max);
        let (_, gain_out) = layer.gains();
        error += gain_out * (through_output(layer, v2 * own) + norms.s2 * own) * SAFETY;
    }
    (y, error)
}

pub(crate) fn activate(activation: Activation, z: &mut Pair, psi: Option<&[f64]>) {
    for i in 0..z.hi.len() {
        let (hi, lo) = (z.hi[i], z.lo[i]);
        (z.hi[i], z.lo[i]) = match activation {
            Activation::Identity => (hi, lo),
            // After renormalisation the sign of the sum is the sign of its head.
            Activation::Relu if hi > 0.0 => (hi, lo),
            Activation::Relu => (0.0, 0.0),
            Activation::LeakyRelu(_) if hi > 0.0 => (hi, lo),
            Activation::LeakyRelu(slope) => times(hi, lo, (slope.get(), 0.0)),
            smooth => {
                let psi = psi.map_or(1.0, |p| p[i]);
                (psi * smooth.value(hi / psi), smooth.derivative(hi / psi) * lo)
            }
        };
    }
}

/// `acc += A (x_hi + x_lo)` in double-double arithmetic.
pub(crate) fn add_product(
    a: MatRef<'_, f64>,
    x_hi: &[f64],
    x_lo: &[f64],
    acc_hi: &mut [f64],
    acc_lo: &mut [f64],
) {
    // Columns of zeros are passed over (about half of them behind a ReLU); the others are taken four at a time, so
    // that the sums are loaded and stored once for four products.
    let used: Vec<usize> = (0..a.ncols())
        .filter(|j| x_hi[*j] != 0.0 || x_lo[*j] != 0.0)
        .collect();
    if a.row_stride() != 1 {
        let dense = a.to_owned();
        return add_product(dense.as_ref(), x_hi, x_lo, acc_hi, acc_lo);
    }
    let column = |j: usize| a.col(j).try_as_col_major().map_or(&[][..], |c| c.as_slice());
    let mut groups = used.chunks_exact(4);
    for g in &mut groups {
        let g = [g[0], g[1], g[2], g[3]];
        add_columns(
            g.map(column),
            g.map(|j| x_hi[j]),
            g.map(|j| x_lo[j]),
            acc_hi,
            acc_lo,
        );
    }
    for &j in groups.remainder() {
        add_columns([column(j)], [x_hi[j]], [x_lo[j]], acc_hi, acc_lo);
    }
}

fn add_columns<const K: usize>(
    columns: [&[f64]; K],
    x_hi: [f64; K],
    x_lo: [f64; K],
    acc_hi: &mut [f64],
    acc_lo: &mut [f64],
) {
    let rows = acc_hi.len();
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let columns = columns.map(|c| &c[..rows]);
            let (acc_hi, acc_lo) = (&mut acc_hi[..rows], &mut acc_lo[..rows]);
            for i in 0..rows {
                let (mut hi, mut lo) = (acc_hi[i], acc_lo[i]);
                for k in 0..K {
                    let entry = columns[k][i];
                    let (p, e) = two_product(entry, x_hi[k]);
                    let (s, e2) = two_sum(hi, p);
                    hi = s;
                    lo += e + e2 + entry * x_lo[k];
                }
                (acc_hi[i], acc_lo[i]) = (hi, lo);
            }
        },
    );
}

/// `Σ aᵢ(bᵢ + cᵢ)` in double-double arithmetic, added to a given pair.
fn add_dot(a: &[f64], b: &[f64], c: &[f64], start: (f64, f64)) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut hi, mut lo) = ([0.0; LANES], [0.0; LANES]);
    let whole = a.len() / LANES * LANES;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let blocks = a
                .chunks_exact(LANES)
                .zip(b.chunks_exact(LANES))
                .zip(c.chunks_exact(LANES));
            for ((a, b), c) in blocks {
                for k in 0..LANES {
                    let (p, e) = two_product(a[k], b[k]);
                    let (s, e2) = two_sum(hi[k], p);
                    hi[k] = s;
                    lo[k] += e + e2 + a[k] * c[k];
                }
            }
        },
    );
    let mut sum = start;
    let mut add = |p: f64, rest: f64| {
        let (s, e) = two_sum(sum.0, p);
        sum = (s, sum.1 + (e + rest));
    };
    for k in 0..LANES {
        add(hi[k], lo[k]);
    }
    for i in whole..a.len() {
        let (p, e) = two_product(a[i], b[i]);
        add(p, e + a[i] * c[i]);
    }
    sum
}

pub(crate) fn renormalize(v: &mut Pair) {
    for (hi, lo) in v.hi.iter_mut().zip(&mut v.lo) {
        (*hi, *lo) = two_sum(*hi, *lo);
    }
}

/// `a + b` as head and exact tail.
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// `a · b` as head and exact tail.
#[inline(always)]
fn two_product(a: f64, b: f64) -> (f64, f64) {
    let p = a * b;
    (p, a.mul_add(b, -p))
}

/// `(hi + lo)·c` in double-double.
pub(crate) fn times(hi: f64, lo: f64, c: (f64, f64)) -> (f64, f64) {
    let (p, e) = two_product(hi, c.0);
    two_sum(p, e + (hi * c.1 + lo * c.0))
}

/// `√(hi + lo)` in double-double: one Newton step from the rounded root.
pub(crate) fn sqrt_pair(hi: f64, lo: f64) -> (f64, f64) {
    let r = hi.sqrt();
    if r == 0.0 {
        return (0.0, 0.0);
    }
    let (p, e) = two_product(r, r);
    two_sum(r, ((hi - p) - e + lo) / (2.0 * r))
}
