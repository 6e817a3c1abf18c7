//! How exactly a monotone layer is evaluated: see [`crate::layers::evaluate`].

use super::MonLip;
use crate::base::double::{Pair, add_dot, add_product, double_gamma, renormalize, sqrt_pair, times, two_sum};
use crate::base::real::UNIT_ROUNDOFF;
use crate::base::rounding::{SAFETY, floor, gamma, norm};
use crate::layers::activation::activate;
use crate::layers::layer::{Evaluate, EvaluatedRow, Layer};

impl Evaluate for MonLip<f64> {
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64 {
        let sizes = Sizes {
            input: norm(row.x) * SAFETY,
            hidden: row.hidden_norm2.sqrt() * SAFETY,
            bias: norm(row.bias),
        };
        plain_error(self, &sizes, row.bias_error)
    }

    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        accurate(self, x, bias, bias_error)
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
    let n = layer.size();
    // The constants cover the gains (two roundings each), the bias, ψ, the activation (≤ 4 ulp) and
    // its argument.
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
    let n = layer.size();
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

/// The layer in double-double arithmetic, and a bound on its error.
fn accurate(layer: &MonLip<f64>, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
    let w = &*layer.weights;
    let n = w.n;
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
        // The activation itself: two libm calls of 4 ulp (8u) each, the operations between, ψ and
        // the argument.
        let own = 32.0 * UNIT_ROUNDOFF * (sizes.hidden + pre_norm2.sqrt() * SAFETY);
        let norms = layer.norms();
        let v2 = norms.v2.iter().copied().fold(0.0, f64::max);
        let (_, gain_out) = layer.gains();
        error += gain_out * (through_output(layer, v2 * own) + norms.s2 * own) * SAFETY;
    }
    (y, error)
}
