//! Exact arithmetic: what is proved and printed, checked without a rounding anywhere.

use bilip::faer::Mat;
use bilip::{
    BiLipNet, BiLipNetFree, BiLipschitz, Bounds, Certificate, LayerRef, Network, PlNet, RandomLayer, Real,
    Rng, at_least, at_most,
};
use num_bigint::BigInt;
use num_rational::BigRational;

/// A double as the rational number that it is.
pub fn dyadic(value: f64) -> BigRational {
    BigRational::from_float(value).expect("a finite number")
}

/// A decimal as it is printed.
pub fn decimal(text: &str) -> BigRational {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: BigInt = format!("{whole}{part}").parse().expect("digits");
    let exponent: i32 = exponent.parse::<i32>().expect("an exponent") - part.len() as i32;
    let power = BigRational::from(BigInt::from(10)).pow(exponent);
    BigRational::from(digits) * power
}

/// Whether a symmetric matrix of rationals is positive semidefinite: elimination without a
/// rounding.
fn is_positive(mut a: Vec<Vec<BigRational>>) -> bool {
    let zero = BigRational::from(BigInt::from(0));
    let n = a.len();
    for k in 0..n {
        if a[k][k] < zero || (a[k][k] == zero && (k + 1..n).any(|j| a[k][j] != zero)) {
            return false;
        }
        if a[k][k] == zero {
            continue;
        }
        for i in k + 1..n {
            let factor = &a[i][k] / &a[k][k];
            for j in k + 1..n {
                let change = &factor * &a[k][j];
                a[i][j] -= change;
            }
        }
    }
    true
}

/// `A − shift·I ⪰ 0`.
fn least_eigenvalue_is_at_least(a: &[Vec<BigRational>], shift: &BigRational) -> bool {
    let mut shifted = a.to_vec();
    for (i, row) in shifted.iter_mut().enumerate() {
        row[i] -= shift;
    }
    is_positive(shifted)
}

/// The condition matrix of a monotone layer.
fn condition(v: &[Mat<f64>], s: &Mat<f64>) -> Vec<Vec<BigRational>> {
    let (m, n) = s.shape();
    let zero = BigRational::from(BigInt::from(0));
    let one = BigRational::from(BigInt::from(1));
    let mut a = vec![vec![zero; m + n]; m + n];
    for (i, row) in a.iter_mut().enumerate() {
        row[i] = one.clone();
    }
    let mut at = 0;
    for v in v {
        for i in 0..v.nrows() {
            for j in 0..v.ncols() {
                let value = dyadic(-v[(i, j)]) / BigInt::from(2);
                a[at + v.ncols() + i][at + j] = value.clone();
                a[at + j][at + v.ncols() + i] = value;
            }
        }
        at += v.ncols();
    }
    for i in 0..m {
        for j in 0..n {
            a[i][m + j] = dyadic(s[(i, j)]);
            a[m + j][i] = dyadic(s[(i, j)]);
        }
    }
    a
}

/// `PᵀP − I`, or its negative.
fn defect(p: &Mat<f64>, sign: i32) -> Vec<Vec<BigRational>> {
    let n = p.nrows();
    let entry = |i: usize, j: usize| {
        let mut sum = BigRational::from(BigInt::from(-i32::from(i == j)));
        for k in 0..n {
            sum += dyadic(p[(k, i)]) * dyadic(p[(k, j)]);
        }
        sum * BigInt::from(sign)
    };
    (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect()
}

fn wide<T: Real>(m: bilip::faer::MatRef<'_, T>) -> Mat<f64> {
    Mat::from_fn(m.nrows(), m.ncols(), |i, j| m[(i, j)].as_f64())
}

/// The number behind a sign in a line, if there is one.
fn behind<'a>(line: &'a str, sign: &str) -> Option<&'a str> {
    let rest = &line[line.find(sign)? + sign.len()..];
    let end = rest.find([',', ' ', ':', '\n']).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Checks every inequality in the text of a certificate against the stored weights. Returns how
/// many there were.
fn check_lines<T: Real, M: BiLipschitz<T>>(net: &M, certificate: &Certificate) -> usize {
    let text = certificate.to_string();
    let layers = net.layers();
    let mut checked = 0;
    // Squares of the layers' bounds, from the weights: (μ², ν²) at best (1 − d, 1 + d) of an
    // orthogonal layer.
    let one = || BigRational::from(BigInt::from(1));
    let (mut mu2, mut nu2) = (one(), one());
    for (k, layer) in layers.iter().enumerate() {
        let line = text
            .lines()
            .find(|l| l.trim_start().starts_with(&format!("layer {k}:")))
            .unwrap();
        match layer {
            LayerRef::Orthogonal(l) => {
                let bound = decimal(behind(line, "<= ").unwrap());
                let p = wide(l.matrix());
                for sign in [1, -1] {
                    assert!(
                        least_eigenvalue_is_at_least(&defect(&p, sign), &-&bound),
                        "{line}"
                    );
                }
                mu2 *= one() - &bound;
                nu2 *= one() + &bound;
            }
            LayerRef::MonLip(l) => {
                let v: Vec<_> = l.v().iter().map(|v| wide(v.as_ref())).collect();
                let a = condition(&v, &wide(l.s()));
                if let Some(bound) = behind(line, ">= ") {
                    assert!(least_eigenvalue_is_at_least(&a, &decimal(bound)), "{line}");
                } else {
                    // What has to be added to the hidden units to repair it.
                    let bound = decimal(behind(line, "<= ").unwrap());
                    let mut repaired = a;
                    for (i, row) in repaired.iter_mut().enumerate().take(l.hidden()) {
                        row[i] += &bound;
                    }
                    assert!(is_positive(repaired), "{line}");
                }
                mu2 *= dyadic(l.design().mu()) * dyadic(l.design().mu());
                nu2 *= dyadic(l.design().nu()) * dyadic(l.design().nu());
            }
            _ => continue,
        }
        checked += 1;
    }
    if !certificate.layers().iter().all(|l| l.holds()) {
        return checked;
    }
    let square = |text: &str| decimal(text) * decimal(text);
    let claimed = text.lines().next().unwrap();
    if certificate.holds() {
        let proved = certificate.proved();
        let (mu, nu) = (behind(claimed, "mu >= "), behind(claimed, "nu <= "));
        assert!(decimal(mu.unwrap()) <= dyadic(proved.mu()), "{claimed}");
        assert!(decimal(nu.unwrap()) >= dyadic(proved.nu()), "{claimed}");
        checked += 2;
    }
    let line = text.lines().find(|l| l.contains("weights: mu >= ")).unwrap();
    let (mu, nu) = (behind(line, "mu >= ").unwrap(), behind(line, "nu <= ").unwrap());
    // The layers' printed numbers are rounded more than those that went into the product: as much
    // slack.
    let slack = |x: BigRational| x * (one() + dyadic(1e-6));
    assert!(square(mu) <= slack(mu2), "{line}");
    assert!(slack(square(nu)) >= nu2, "{line}");
    let proved = certificate.proved();
    assert!(
        decimal(mu) <= dyadic(proved.mu()) && decimal(nu) >= dyadic(proved.nu()),
        "{line}"
    );
    let tau = behind(line, "distortion <= ").unwrap();
    assert!(
        decimal(tau) * dyadic(proved.mu()) >= dyadic(proved.nu()),
        "{line}"
    );
    if let Some(line) = text.lines().find(|l| l.contains("constant >= ")) {
        let pl = decimal(behind(line, "constant >= ").unwrap());
        assert!(pl <= dyadic(proved.mu()) * dyadic(proved.mu()), "{line}");
        checked += 1;
    }
    checked + 3
}

#[test]
fn every_printed_inequality_is_true_in_exact_arithmetic() {
    let mut checked = 0;
    let mut rng = Rng::new(40);
    for case in 0..40 {
        let n = 1 + case % 3;
        let tau = [1.0001, 2.0, 50.0, 1e6][case % 4];
        let hidden = [&[3, 2][..], &[4], &[2, 3, 2]][case % 3];
        let bounds = Bounds::from_parts(None, Some(1.0 + rng.uniform()), Some(tau)).unwrap();
        let free =
            BiLipNetFree::random(&RandomLayer::new(n, hidden, bounds).with_bias(0.7), 1, &mut rng).unwrap();
        match case % 2 {
            0 => {
                let net = BiLipNet::<f64>::from_free(&free).unwrap();
                let f = PlNet::new(net, 0.0).unwrap();
                checked += check_lines(f.net(), &f.verify());
            }
            _ => {
                let Ok(net) = BiLipNet::<f32>::from_free(&free) else {
                    // μ and ν are too close for single precision.
                    continue;
                };
                checked += check_lines(&net, &net.verify());
            }
        }
        // Weights that miss the condition.
        let layer = bilip::MonLip::<f64>::from_free(&free.monotone[0]).unwrap();
        let mut explicit = layer.to_explicit();
        explicit.s *= bilip::faer::Scale(1.0 + 0.02 * rng.uniform());
        if let Ok(layer) = bilip::MonLip::from_explicit(explicit) {
            let certificate = Network::MonLip(layer.clone()).verify();
            checked += check_lines(&layer, &certificate);
        }
    }
    assert!(checked > 250, "{checked}");
}

#[test]
fn decimals_are_on_the_safe_side_in_exact_arithmetic() {
    let mut rng = Rng::new(41);
    for _ in 0..3_000 {
        let bits = (rng.uniform() * 2f64.powi(63)) as u64 ^ (rng.uniform() * 2f64.powi(60)) as u64;
        let value = f64::from_bits(bits);
        if !value.is_finite() {
            continue;
        }
        for value in [value, -value, rng.normal()] {
            for digits in [1, 2, 5, 17, 20] {
                let (up, down) = (
                    decimal(&at_most(value, digits)),
                    decimal(&at_least(value, digits)),
                );
                let exact = dyadic(value);
                assert!(down <= exact && exact <= up, "{value:e} to {digits} digits");
                // And no further than a unit of the last digit.
                let apart = (&up - &down) * BigInt::from(10).pow(digits as u32 - 1);
                let size = if exact < BigRational::from(BigInt::from(0)) {
                    -exact
                } else {
                    exact
                };
                assert!(apart <= size, "{value:e} to {digits} digits");
            }
        }
    }
}
