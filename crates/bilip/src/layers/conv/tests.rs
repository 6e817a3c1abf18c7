use super::*;
use crate::base::random::Rng;
use crate::inverse::{InverseOptions, Method};
use crate::networks::map::BiLipschitz;

/// A layer with everything uneven.
fn layer(
    image: usize,
    channels: usize,
    units: &[usize],
    kernel: usize,
    seed: u64,
) -> (ConvFree, ConvMonLip<f64>) {
    let bounds = Bounds::new(0.2, 3.0).unwrap();
    let mut rng = Rng::new(seed);
    let free = ConvFree::random(
        &RandomConvLayer::new(channels, image, units, bounds).with_kernel(kernel),
        &mut rng,
    )
    .unwrap();
    let layer = ConvMonLip::from_free(&free).unwrap();
    (free, layer)
}

/// The circular convolution with kernels as a matrix on `[channels, image, image]`, from its
/// definition.
fn dense(kernels: &Kernels, image: usize) -> Mat<f64> {
    let (k, r) = (kernels.size as isize, (kernels.size as isize - 1) / 2);
    let pixels = image * image;
    let mut out = Mat::zeros(kernels.outputs * pixels, kernels.inputs * pixels);
    let wrap = |v: isize| v.rem_euclid(image as isize) as usize;
    for o in 0..kernels.outputs {
        for c in 0..kernels.inputs {
            for a in 0..k {
                for b in 0..k {
                    let value =
                        kernels.values[((o * kernels.inputs + c) as isize * k * k + a * k + b) as usize];
                    for p in 0..image as isize {
                        for q in 0..image as isize {
                            // y[p] = Σ_d K[d] x[p − d].
                            let from = wrap(p - (a - r)) * image + wrap(q - (b - r));
                            let to = p as usize * image + q as usize;
                            out[(o * pixels + to, c * pixels + from)] += value;
                        }
                    }
                }
            }
        }
    }
    out
}

/// The same layer from dense matrices of all pixels: the construction of the dense layer, with the
/// convolutions as free matrices.
fn by_brute_force(free: &ConvFree, x: &[f64]) -> Vec<f64> {
    let image = free.image;
    let pixels = image * image;
    let units: Vec<usize> = free.ab.iter().map(|k| k.inputs).collect();
    let transform =
        |kernels: &Kernels| crate::layers::cayley::cayley(dense(kernels, image).as_ref()).unwrap();
    let q = transform(&free.q);
    let j: Vec<Mat<f64>> = free.ab.iter().map(transform).collect();
    let (mu, gamma) = (free.bounds.mu(), free.bounds.gap());
    let x = faer::Col::from_fn(x.len(), |i| x[i]);
    let mut y = &x * faer::Scale(mu);
    for c in 0..free.q.inputs {
        for p in 0..pixels {
            y[c * pixels + p] += free.output_bias[c];
        }
    }
    let mut at = 0;
    let mut before: Option<faer::Col<f64>> = None;
    for (k, &m) in units.iter().enumerate() {
        let rows = m * pixels;
        let a_t = j[k].subrows(0, rows);
        let mut s = a_t.transpose() * q.subrows(at * pixels, rows);
        let mut v = faer::Col::<f64>::zeros(rows);
        if let Some(z) = &before {
            let below = units[k - 1] * pixels;
            let b = j[k].subrows(rows, below).transpose().to_owned();
            s -= &b * q.subrows(at * pixels - below, below);
            let weight = &b * j[k - 1].subrows(0, below) * faer::Scale(2.0);
            v = &weight * z;
        }
        v += &s * &x * faer::Scale((2.0 * gamma).sqrt());
        let z = faer::Col::from_fn(rows, |i| {
            free.activation.value(v[i] + free.hidden_bias[at + i / pixels])
        });
        y += s.transpose() * &z * faer::Scale((0.5 * gamma).sqrt());
        before = Some(z);
        at += m;
    }
    (0..y.nrows()).map(|i| y[i]).collect()
}

#[test]
fn the_layer_is_the_dense_one_with_convolutions_for_matrices() {
    for (image, channels, units, kernel) in [
        (4, 2, &[2, 3][..], 3),
        (5, 3, &[2, 2, 1], 3),
        (3, 1, &[2], 1),
        (2, 2, &[3, 2], 5),
        (1, 2, &[2, 2], 3),
        (6, 3, &[1, 1], 3),
    ] {
        let (free, layer) = layer(image, channels, units, kernel, 3);
        let x = Rng::new(9).normals(layer.dim());
        let expected = by_brute_force(&free, &x);
        let found = layer.forward(&x).unwrap();
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-10, "{image} {channels} {units:?}: {a} {b}");
        }
    }
}

#[test]
fn bounds_hold_between_images_and_the_certificate_says_so() {
    let mut rng = Rng::new(4);
    for (image, channels, units) in [(4, 3, &[4, 4][..]), (8, 2, &[2, 3, 2]), (3, 4, &[2, 2])] {
        let (_, layer) = layer(image, channels, units, 3, 7);
        let certificate = layer.verify();
        assert!(certificate.holds());
        assert_eq!(certificate.proved().bounds(), Some(layer.claim().bounds()));
        let n = layer.dim();
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        for scale in [1e-3, 1.0, 10.0] {
            let a = rng.normals(20 * n);
            let b: Vec<f64> = a
                .iter()
                .zip(rng.normals(20 * n))
                .map(|(a, d)| a + scale * d)
                .collect();
            let (fa, fb) = (layer.forward(&a).unwrap(), layer.forward(&b).unwrap());
            for r in 0..20 {
                let range = r * n..(r + 1) * n;
                let difference =
                    |u: &[f64], v: &[f64]| -> Vec<f64> { range.clone().map(|i| u[i] - v[i]).collect() };
                let (dx, dy) = (difference(&a, &b), difference(&fa, &fb));
                let slope = norm(&dy) / norm(&dx);
                assert!((0.2 - 1e-9..=3.0 + 1e-9).contains(&slope), "{slope}");
                let inner: f64 = dx.iter().zip(&dy).map(|(a, b)| a * b).sum();
                assert!(inner >= (0.2 - 1e-9) * norm(&dx).powi(2), "not monotone");
            }
        }
    }
}

#[test]
fn single_precision_is_certified_and_close() {
    let (free, double) = layer(6, 3, &[3, 2], 3, 11);
    let single = ConvMonLip::<f32>::from_free(&free).unwrap();
    assert!(single.verify().holds());
    let x = Rng::new(2).normals(double.dim());
    let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    let (a, b) = (double.forward(&x).unwrap(), single.forward(&narrow).unwrap());
    for (a, b) in a.iter().zip(&b) {
        assert!((a - f64::from(*b)).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn products_with_the_jacobian_are_differences_and_each_other_s_transpose() {
    let mut rng = Rng::new(5);
    for activation in [Activation::Relu, Activation::Tanh, Activation::Softplus] {
        let bounds = Bounds::new(0.3, 2.0).unwrap();
        let mut free = ConvFree::random(
            &RandomConvLayer::new(2, 4, &[3, 2], bounds).with_activation(activation),
            &mut rng,
        )
        .unwrap();
        free.log_psi = Some(rng.normals(5).iter().map(|v| 0.3 * v).collect());
        let layer = ConvMonLip::<f64>::from_free(&free).unwrap();
        let n = layer.dim();
        let (x, d, w) = (rng.normals(n), rng.normals(n), rng.normals(n));
        let moved = |h: f64| -> Vec<f64> { x.iter().zip(&d).map(|(x, d)| x + h * d).collect() };
        let h = 1e-6;
        let (up, down) = (
            layer.forward(&moved(h)).unwrap(),
            layer.forward(&moved(-h)).unwrap(),
        );
        let tangent = layer.jvp(&x, &d).unwrap();
        for i in 0..n {
            let slope = (up[i] - down[i]) / (2.0 * h);
            assert!(
                (tangent[i] - slope).abs() < 1e-6,
                "{activation}: {} {slope}",
                tangent[i]
            );
        }
        let cotangent = layer.vjp(&x, &w).unwrap();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert!((dot(&tangent, &w) - dot(&cotangent, &d)).abs() < 1e-10);
    }
}

#[test]
fn weights_that_miss_the_condition_are_found_out() {
    let (_, mut layer) = layer(4, 2, &[3, 2], 3, 13);
    let mut explicit = (*layer.explicit).clone();
    explicit.frequencies[5].s.re[(0, 0)] += 0.3;
    layer.explicit = Arc::new(explicit);
    let certificate = layer.verify();
    assert!(!certificate.holds());
    if let Some(b) = certificate.proved().bounds() {
        assert!(b.nu() > 3.0, "{b:?}");
    }
}

#[test]
fn images_come_back_with_a_certified_error() {
    let (_, layer) = layer(6, 3, &[4, 3, 2], 3, 17);
    let x = Rng::new(8).normals(3 * layer.dim());
    let y = layer.forward(&x).unwrap();
    for (method, tolerance) in [
        (Method::Auto, 1e-9),
        (Method::Newton(Default::default()), 1e-9),
        (Method::DavisYin(Default::default()), 1e-9),
        (Method::DouglasRachford(Default::default()), 1e-9),
        (Method::PeacemanRachford(Default::default()), 1e-9),
        (Method::ForwardStep(Default::default()), 1e-9),
        (Method::ForwardBackwardForward(Default::default()), 1e-9),
        // Below what a residual in f64 can show.
        (Method::Auto, 1e-13),
    ] {
        let options = InverseOptions {
            tolerance,
            ..InverseOptions::with_method(method)
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        assert!(inverse.converged(), "{:?}", inverse.rows);
        let n = layer.dim();
        for (r, report) in inverse.rows.iter().enumerate() {
            let range = r * n..(r + 1) * n;
            let error: f64 = range.map(|i| (inverse.x[i] - x[i]).powi(2)).sum::<f64>().sqrt();
            // y itself was rounded.
            assert!(
                error <= report.error_bound + 1e-12 && report.error_bound <= tolerance,
                "{error} {report:?}"
            );
        }
    }
    // What cannot be reached is said.
    let impossible = InverseOptions {
        tolerance: 0.0,
        ..Default::default()
    };
    let inverse = layer.inverse(&y, &impossible).unwrap();
    assert!(!inverse.converged() && inverse.max_error_bound() < 1e-8);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let mut rng = Rng::new(1);
    let bounds = Bounds::new(0.2, 3.0).unwrap();
    let random = |units: &[usize], kernel: usize, rng: &mut Rng| {
        ConvFree::random(
            &RandomConvLayer::new(2, 4, units, bounds)
                .with_kernel(kernel)
                .with_bias(1.0),
            rng,
        )
    };
    assert!(random(&[], 3, &mut rng).is_err());
    assert!(random(&[2, 0], 3, &mut rng).is_err());
    assert!(random(&[2], 2, &mut rng).is_err());
    let good = random(&[2, 2], 3, &mut rng).unwrap();
    let mut bad = good.clone();
    bad.hidden_bias.pop();
    assert!(ConvMonLip::<f64>::from_free(&bad).is_err());
    let mut bad = good.clone();
    bad.ab.swap(0, 1);
    assert!(ConvMonLip::<f64>::from_free(&bad).is_err());
    let mut bad = good.clone();
    bad.image = 0;
    assert!(ConvMonLip::<f64>::from_free(&bad).is_err());
    let mut bad = good.clone();
    bad.output_bias[0] = f64::NAN;
    assert!(ConvMonLip::<f64>::from_free(&bad).is_err());
    let mut bad = good.clone();
    bad.activation = Activation::Tanh;
    bad.log_psi = Some(vec![300.0; 4]);
    assert!(ConvMonLip::<f64>::from_free(&bad).is_err());
    let layer = ConvMonLip::<f64>::from_free(&good).unwrap();
    assert!(layer.forward(&[1.0; 31]).is_err());
    assert!(layer.forward(&[f64::NAN; 32]).is_err());
    assert!(layer.jvp(&[1.0; 32], &[1.0; 64]).is_err());
}
