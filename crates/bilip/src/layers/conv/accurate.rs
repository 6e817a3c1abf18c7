//! How exactly a layer on images is evaluated: in f64, and in double-double arithmetic for when the
//! rounding of the plain evaluation hides the error that is to be proved.

use std::ops::Range;

use faer::{Mat, MatRef};

use super::fourier::around;
use super::{Complex, ConvMonLip};
use crate::base::double::{Pair, add_product, double_gamma, renormalize, sqrt_pair, times, two_sum};
use crate::base::parallel;
use crate::base::real::UNIT_ROUNDOFF;
use crate::base::rounding::norm_up;
use crate::layers::activation::activate;
use crate::layers::layer::{Evaluate, EvaluatedRow};

/// What the operations of an evaluation lose, relative to the sizes of what they work on.
struct Rounding {
    /// One operation.
    unit: f64,
    /// A Fourier transform, or its inverse, scaled to be unitary.
    transform: f64,
    /// A complex product with this many terms.
    product: fn(usize) -> f64,
    /// An activation.
    own: f64,
}

/// Norms of what an evaluation went through.
struct Sizes {
    x: f64,
    y: f64,
    hidden: f64,
    bias: f64,
    bias_error: f64,
}

impl Evaluate for ConvMonLip<f64> {
    fn rounding_error(&self, row: EvaluatedRow<'_>) -> f64 {
        let s = self.image() as f64;
        let sizes = Sizes {
            x: norm_up(row.x),
            y: norm_up(row.y),
            // Squares of numbers too small for it are missing from the sum.
            hidden: row.hidden_norm2.sqrt() * (1.0 + 1e-9) + 1e-150,
            bias: norm_up(row.bias),
            bias_error: row.bias_error,
        };
        let rounding = Rounding {
            unit: UNIT_ROUNDOFF,
            // Of the unitary transform: two products of length s (sums of two), each √s above its
            // norm.
            transform: 3.0 * s.sqrt() * (2.0 * s + 16.0) * UNIT_ROUNDOFF,
            product: |length| (2.0 * length as f64 + 8.0) * UNIT_ROUNDOFF * 1.5,
            own: 16.0 * UNIT_ROUNDOFF,
        };
        self.error_of(&sizes, &rounding)
    }

    fn evaluate_accurately(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        Accurate::new(self).evaluate(x, bias, bias_error)
    }
}

impl ConvMonLip<f64> {
    /// What an evaluation may have lost.
    ///
    /// Norm by norm through the formula: a product with the matrix of the Fourier transform,
    /// entries at most one and known to a few units in the last place, loses `(γ_s + 8u)·s` for a
    /// matrix of norm √s; a product at a frequency `γ·‖·‖_F`; and of what is lost before an
    /// activation, the output feels the square root of
    /// [`Norms::amplification`](crate::certify::Norms), for the reason given in
    /// [`crate::layers::evaluate`].
    fn error_of(&self, sizes: &Sizes, r: &Rounding) -> f64 {
        let (e, norms) = (&self.explicit, self.norms());
        let s = e.image as f64;
        let widest = e.units.iter().copied().max().unwrap_or(1);
        let gain = (2.0 * e.bounds.gap()).sqrt();
        let (s2, v2) = (norms.s2, norms.v2.iter().copied().fold(0.0, f64::max));
        let (size_x, size_z) = (sizes.x, sizes.hidden);
        // Pre-activations without the bias; rounding is far below the last factor.
        let size_v = (v2 * size_z + gain * s2 * size_x) * (1.0 + 1e-6);
        let size_b = sizes.bias * s;
        let lost_x = r.transform * size_x;
        // What S gives is in the sum to which the products with V are then added, one by one.
        let driven =
            s2 * lost_x + (r.product)(self.channels() + widest) * norms.s_frobenius * (size_x + lost_x);
        let before = gain * driven
            + ((r.product)(widest) * norms.v_frobenius + v2 * r.transform) * size_z
            + (r.transform + 8.0 * r.unit) * (size_v + size_b)
            + s * sizes.bias_error;
        // The activation's own rounding, which later layers and the output see.
        let own = (r.own + 16.0 * r.unit) * (size_v + size_b + size_z);
        // The square root is for weights whose condition is proved.
        let amplified = match self.layer_certificate().holds() {
            true => norms.amplification.sqrt(),
            false => s2 * norms.amplification,
        };
        let through = amplified * (before + (1.0 + v2) * own);
        let out = through
            + s2 * (own + r.transform * size_z)
            + (r.product)(e.hidden_bias.len()) * norms.s_frobenius * size_z;
        let output_bias = norm_up(&e.output_bias) * s;
        let error = 0.5 * gain * (out + r.transform * s2 * size_z)
            + 8.0 * r.unit * (sizes.y + e.bounds.mu() * size_x + output_bias);
        // What was left out is of second order, and what underflow takes is nothing.
        1.01 * error + 1e-140
    }
}

/// Cosines and sines are known to this much: some eighty operations, each good to 2⁻¹⁰⁰, on terms
/// that add up to less than 3.
const TABLE: f64 = 2e-28;

/// A number as the sum of two.
type Number = (f64, f64);

/// A matrix as the sum of two.
struct Matrix {
    hi: Mat<f64>,
    lo: Mat<f64>,
}

impl Matrix {
    fn from_fn(size: usize, f: impl Fn(usize, usize) -> Number) -> Self {
        Matrix {
            hi: Mat::from_fn(size, size, |i, j| f(i, j).0),
            lo: Mat::from_fn(size, size, |i, j| f(i, j).1),
        }
    }

    /// Adds the product of its upper left part and a vector, with a sign.
    fn add(&self, x: &Pair, sign: f64, to: &mut Pair) {
        let (rows, columns) = (to.hi.len(), x.hi.len());
        let x = signed(x, sign);
        let part = |m: &Mat<f64>, x_hi: &[f64], x_lo: &[f64], to: &mut Pair| {
            add_product(
                m.submatrix(0, 0, rows, columns),
                x_hi,
                x_lo,
                &mut to.hi,
                &mut to.lo,
            );
        };
        part(&self.hi, &x.hi, &x.lo, to);
        part(&self.lo, &x.hi, &vec![0.0; columns], to);
    }
}

fn signed(x: &Pair, sign: f64) -> Pair {
    Pair {
        hi: x.hi.iter().map(|v| sign * v).collect(),
        lo: x.lo.iter().map(|v| sign * v).collect(),
    }
}

fn scaled(x: &Pair, factor: Number) -> Pair {
    let (hi, lo) = (x.hi.iter().zip(&x.lo))
        .map(|(hi, lo)| times(*hi, *lo, factor))
        .unzip();
    Pair { hi, lo }
}

/// Every `step`-th number from a start on.
fn gathered(x: &Pair, start: usize, step: usize, count: usize) -> Pair {
    let take = |v: &[f64]| (0..count).map(|k| v[start + k * step]).collect();
    Pair {
        hi: take(&x.hi),
        lo: take(&x.lo),
    }
}

fn scatter(x: &Pair, to: &mut Pair, start: usize, step: usize) {
    for k in 0..x.hi.len() {
        to.hi[start + k * step] = x.hi[k];
        to.lo[start + k * step] = x.lo[k];
    }
}

fn divided(x: Number, by: f64) -> Number {
    let head = x.0 / by;
    let rest = (-head).mul_add(by, x.0) + x.1;
    two_sum(head, rest / by)
}

fn sum(a: Number, b: Number) -> Number {
    let (hi, lo) = two_sum(a.0, b.0);
    two_sum(hi, lo + (a.1 + b.1))
}

/// Cosine and sine of `πa/n` for `2a ≤ n`, by their series at angles of at most π/4.
fn quarter(a: usize, n: usize) -> (Number, Number) {
    const PI: Number = (std::f64::consts::PI, 1.224_646_799_147_353_2e-16);
    let series = |over: usize, under: usize| {
        let angle = divided(times(PI.0, PI.1, (over as f64, 0.0)), under as f64);
        let (cos, sin) = (1..30)
            .fold(
                (((1.0, 0.0), (0.0, 0.0)), (1.0, 0.0)),
                |((cos, sin), power): ((Number, Number), Number), k| {
                    let next = divided(times(power.0, power.1, angle), k as f64);
                    // + cos, + sin, − cos, − sin.
                    let term = if k % 4 == 2 || k % 4 == 3 {
                        (-next.0, -next.1)
                    } else {
                        next
                    };
                    match k % 2 {
                        0 => ((sum(cos, term), sin), next),
                        _ => ((cos, sum(sin, term)), next),
                    }
                },
            )
            .0;
        (cos, sin)
    };
    if 4 * a <= n {
        series(a, n)
    } else {
        let (cos, sin) = series(n - 2 * a, 2 * n);
        (sin, cos)
    }
}

/// Numbers of all channels at every frequency, for one image.
struct Spectrum {
    re: Vec<Pair>,
    im: Vec<Pair>,
}

impl Spectrum {
    fn zeros(frequencies: usize, channels: usize) -> Self {
        Spectrum {
            re: vec![Pair::zeros(channels); frequencies],
            im: vec![Pair::zeros(channels); frequencies],
        }
    }

    /// Adds the products of matrices, or of their adjoints, and another spectrum.
    fn add<'a>(
        &mut self,
        matrix: impl Fn(usize) -> (MatRef<'a, f64>, MatRef<'a, f64>) + Sync + Send,
        adjoint: bool,
        x: &Spectrum,
    ) {
        // Some twenty operations for each of four products of numbers.
        let flops = 80 * self.re[0].hi.len() * x.re[0].hi.len();
        let pieces = self.re.iter_mut().zip(&mut self.im).collect();
        parallel::for_each(pieces, flops, |f, (to_re, to_im): (&mut Pair, &mut Pair)| {
            let (re, im) = matrix(f);
            let (re, im, sign) = match adjoint {
                true => (re.transpose(), im.transpose(), -1.0),
                false => (re, im, 1.0),
            };
            let add = |m: MatRef<'_, f64>, x: &Pair, to: &mut Pair| {
                add_product(m, &x.hi, &x.lo, &mut to.hi, &mut to.lo);
            };
            add(re, &x.re[f], to_re);
            add(im, &signed(&x.im[f], -sign), to_re);
            add(re, &x.im[f], to_im);
            add(im, &signed(&x.re[f], sign), to_im);
            renormalize(to_re);
            renormalize(to_im);
        });
    }
}

/// Evaluates a layer in double-double arithmetic.
struct Accurate<'a> {
    layer: &'a ConvMonLip<f64>,
    cos: Matrix,
    sin: Matrix,
}

impl<'a> Accurate<'a> {
    fn new(layer: &'a ConvMonLip<f64>) -> Self {
        let s = layer.image();
        let at = |i: usize, j: usize| around(i * j % s, s, quarter, |v: Number| (-v.0, -v.1));
        Accurate {
            layer,
            cos: Matrix::from_fn(s, |i, j| at(i, j).0),
            sin: Matrix::from_fn(s, |i, j| at(i, j).1),
        }
    }

    fn half(&self) -> usize {
        self.layer.image() / 2 + 1
    }

    fn spectrum(&self, images: &Pair, channels: usize) -> Spectrum {
        let fourier = &self.layer.fourier;
        let (s, half) = (fourier.size, self.half());
        let transformed = parallel::map(channels, |n| {
            // Along the image's rows, [row, frequency].
            let (mut re, mut im) = (Pair::zeros(s * half), Pair::zeros(s * half));
            for p in 0..s {
                let row = gathered(images, (n * s + p) * s, 1, s);
                let (mut a, mut b) = (Pair::zeros(half), Pair::zeros(half));
                self.cos.add(&row, 1.0, &mut a);
                self.sin.add(&row, -1.0, &mut b);
                renormalize(&mut a);
                renormalize(&mut b);
                scatter(&a, &mut re, p * half, 1);
                scatter(&b, &mut im, p * half, 1);
            }
            // And along its columns.
            let mut columns = Vec::with_capacity(half);
            for j in 0..half {
                let (a, b) = (gathered(&re, j, half, s), gathered(&im, j, half, s));
                let (mut z_re, mut z_im) = (Pair::zeros(s), Pair::zeros(s));
                self.cos.add(&a, 1.0, &mut z_re);
                self.sin.add(&b, 1.0, &mut z_re);
                self.cos.add(&b, 1.0, &mut z_im);
                self.sin.add(&a, -1.0, &mut z_im);
                renormalize(&mut z_re);
                renormalize(&mut z_im);
                columns.push((z_re, z_im));
            }
            columns
        });
        let mut out = Spectrum::zeros(fourier.frequencies.len(), channels);
        for (n, columns) in transformed.iter().enumerate() {
            for (f, &(i, j)) in fourier.frequencies.iter().enumerate() {
                let (re, im) = &columns[j];
                (out.re[f].hi[n], out.re[f].lo[n]) = (re.hi[i], re.lo[i]);
                if !fourier.is_real(f) {
                    (out.im[f].hi[n], out.im[f].lo[n]) = (im.hi[i], im.lo[i]);
                }
            }
        }
        out
    }

    fn images(&self, spectrum: &Spectrum) -> Pair {
        let fourier = &self.layer.fourier;
        let (s, half) = (fourier.size, self.half());
        let channels = spectrum.re[0].hi.len();
        let pixels = s * s;
        let planes = parallel::map(channels, |n| {
            let mut out = Pair::zeros(pixels);
            let (mut re, mut im) = (Pair::zeros(s * half), Pair::zeros(s * half));
            for j in 0..half {
                // A frequency that stands for its conjugate too counts twice.
                let count = if j == 0 || 2 * j == s { 1.0 } else { 2.0 };
                let (mut a, mut b) = (Pair::zeros(s), Pair::zeros(s));
                for i in 0..s {
                    let (f, conjugate) = fourier.places[i * half + j];
                    let sign = if conjugate { -count } else { count };
                    (a.hi[i], a.lo[i]) = (count * spectrum.re[f].hi[n], count * spectrum.re[f].lo[n]);
                    (b.hi[i], b.lo[i]) = (sign * spectrum.im[f].hi[n], sign * spectrum.im[f].lo[n]);
                }
                let (mut y_re, mut y_im) = (Pair::zeros(s), Pair::zeros(s));
                self.cos.add(&a, 1.0, &mut y_re);
                self.sin.add(&b, -1.0, &mut y_re);
                self.cos.add(&b, 1.0, &mut y_im);
                self.sin.add(&a, 1.0, &mut y_im);
                renormalize(&mut y_re);
                renormalize(&mut y_im);
                scatter(&y_re, &mut re, j, half);
                scatter(&y_im, &mut im, j, half);
            }
            for p in 0..s {
                let (a, b) = (gathered(&re, p * half, 1, half), gathered(&im, p * half, 1, half));
                let mut row = Pair::zeros(s);
                self.cos.add(&a, 1.0, &mut row);
                self.sin.add(&b, -1.0, &mut row);
                renormalize(&mut row);
                scatter(&row, &mut out, p * s, 1);
            }
            out
        });
        let mut out = Pair::zeros(channels * pixels);
        for (n, plane) in planes.iter().enumerate() {
            scatter(plane, &mut out, n * pixels, 1);
        }
        scaled(&out, divided((1.0, 0.0), pixels as f64))
    }

    /// `F(x)` of one image, and a bound on its Euclidean error.
    fn evaluate(&self, x: &Pair, bias: &[f64], bias_error: f64) -> (Pair, f64) {
        let e = &*self.layer.explicit;
        let (channels, pixels) = (self.layer.channels(), e.image * e.image);
        let gamma = two_sum(e.bounds.nu(), -e.bounds.mu());
        let gain_in = sqrt_pair(2.0 * gamma.0, 2.0 * gamma.1);
        let gain_out = sqrt_pair(0.5 * gamma.0, 0.5 * gamma.1);
        let driving = self.spectrum(&scaled(x, gain_in), channels);
        let all = e.frequencies.len();
        let part = |m: &'a Complex<f64>, rows: Range<usize>| {
            let cut = |m: &'a Mat<f64>| m.as_ref().subrows(rows.start, rows.len());
            (cut(&m.re), cut(&m.im))
        };
        let frequencies = &self.layer.explicit.frequencies;
        let mut squares = 0.0;
        let mut out = Spectrum::zeros(all, channels);
        let mut before: Option<Spectrum> = None;
        for k in 0..e.units.len() {
            let units = self.layer.units_of(k);
            let mut inputs = Spectrum::zeros(all, units.len());
            inputs.add(|f| part(&frequencies[f].s, units.clone()), false, &driving);
            if let Some(z) = &before {
                let v = |f: usize| part(&frequencies[f].v[k - 1], 0..units.len());
                inputs.add(v, false, z);
            }
            let mut v = self.images(&inputs);
            for (at, unit) in units.clone().enumerate() {
                let range = at * pixels..(at + 1) * pixels;
                for i in range {
                    (v.hi[i], v.lo[i]) = sum((v.hi[i], v.lo[i]), (bias[unit], 0.0));
                }
            }
            let psi: Option<Vec<f64>> = e
                .psi
                .as_ref()
                .map(|psi| (0..v.hi.len()).map(|i| psi[units.start + i / pixels]).collect());
            activate(e.activation, &mut v, psi.as_deref());
            squares += v.hi.iter().map(|v| v * v).sum::<f64>();
            let z = self.spectrum(&v, units.len());
            out.add(|f| part(&frequencies[f].s, units.clone()), true, &z);
            before = Some(z);
        }
        let back = scaled(&self.images(&out), gain_out);
        let mut y = Pair::zeros(x.hi.len());
        for i in 0..x.hi.len() {
            let direct = times(x.hi[i], x.lo[i], (e.bounds.mu(), 0.0));
            (y.hi[i], y.lo[i]) = sum(
                sum((back.hi[i], back.lo[i]), direct),
                (e.output_bias[i / pixels], 0.0),
            );
        }
        let s = e.image;
        let rounding = Rounding {
            unit: 8.0 * UNIT_ROUNDOFF * UNIT_ROUNDOFF,
            transform: 3.0 * (s as f64).sqrt() * (double_gamma(4 * s + 16) + TABLE),
            product: |length| 1.5 * double_gamma(2 * length + 8),
            own: match e.activation.is_homogeneous() {
                true => 0.0,
                false => 32.0 * UNIT_ROUNDOFF,
            },
        };
        let sizes = Sizes {
            x: norm_up(&x.hi),
            y: norm_up(&y.hi),
            hidden: squares.sqrt() * (1.0 + 1e-9) + 1e-150,
            bias: norm_up(bias),
            bias_error,
        };
        let error = self.layer.error_of(&sizes, &rounding);
        (y, error * (1.0 + 1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::bounds::Bounds;
    use crate::base::random::Rng;
    use crate::layers::activation::Activation;
    use crate::layers::bias::Bias;
    use crate::layers::conv::{ConvFree, RandomConvLayer};
    use crate::layers::layer::{Buffers, Layer};

    #[test]
    fn tables_and_transforms_are_good_to_twice_the_digits() -> crate::base::error::Result<()> {
        for (image, channels) in [(1, 1), (2, 1), (3, 2), (8, 1), (12, 1)] {
            let free = ConvFree::random(
                &RandomConvLayer::new(channels, image, &[1], Bounds::new(0.5, 2.0)?)
                    .with_kernel(1)
                    .with_bias(0.0),
                &mut Rng::new(1),
            )?;
            let layer = ConvMonLip::<f64>::from_free(&free)?;
            let accurate = Accurate::new(&layer);
            for i in 0..image {
                for j in 0..image {
                    let (c, s) = (
                        (accurate.cos.hi[(i, j)], accurate.cos.lo[(i, j)]),
                        (accurate.sin.hi[(i, j)], accurate.sin.lo[(i, j)]),
                    );
                    let one = sum(times(c.0, c.1, c), times(s.0, s.1, s));
                    assert!((one.0 - 1.0 + one.1).abs() < 1e-30, "{one:?}");
                    let angle = std::f64::consts::TAU * (i * j % image) as f64 / image as f64;
                    assert!((c.0 - angle.cos()).abs() < 1e-15 && (s.0 - angle.sin()).abs() < 1e-15);
                }
            }
            let x = Pair {
                hi: Rng::new(2).normals(channels * image * image),
                lo: vec![0.0; channels * image * image],
            };
            let back = accurate.images(&accurate.spectrum(&x, channels));
            for k in 0..x.hi.len() {
                let off = (back.hi[k] - x.hi[k]) + back.lo[k];
                assert!(off.abs() < 1e-28, "{off}");
            }
        }
        Ok(())
    }

    #[test]
    fn accurate_and_plain_evaluation_differ_by_the_rounding_of_the_plain_one()
    -> crate::base::error::Result<()> {
        for activation in [Activation::Relu, Activation::Tanh] {
            let free = ConvFree::random(
                &RandomConvLayer::new(3, 6, &[2, 3], Bounds::new(0.1, 4.0)?).with_activation(activation),
                &mut Rng::new(4),
            )?;
            let layer = ConvMonLip::<f64>::from_free(&free)?;
            let x = Rng::new(5).normals(layer.size());
            let mut y = vec![0.0; x.len()];
            layer.forward_cols(
                &x,
                &mut y,
                Bias::Shared(layer.own_bias()),
                &mut Buffers::default(),
                None,
            );
            let pair = Pair {
                lo: vec![0.0; x.len()],
                hi: x,
            };
            let (accurate, error) = layer.evaluate_accurately(&pair, layer.own_bias(), 0.0);
            let residual: Vec<f64> = (0..y.len())
                .map(|i| (accurate.hi[i] - y[i]) + accurate.lo[i])
                .collect();
            assert!(norm_up(&residual) < 1e-13 && norm_up(&residual) > 1e-20);
            // Smooth activations are those of f64.
            let limit = if activation.is_homogeneous() { 1e-22 } else { 1e-11 };
            assert!(error < limit, "{error}");
        }
        Ok(())
    }
}
