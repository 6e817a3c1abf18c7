//! Derivatives against central differences and against each other; f32 against f64; single rows
//! without allocation.

use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, InverseOptions, PlNet, RandomLayer, Rng,
    local_lipschitz, measured_slopes,
};

fn net(activation: Activation, n: usize, seed: u64) -> BiLipNet<f64> {
    let bounds = Bounds::new(0.2, 5.0).unwrap();
    let free = BiLipNetFree::random(
        &RandomLayer::new(n, &[7, 11, 5], bounds)
            .with_activation(activation)
            .with_bias(0.7),
        2,
        &mut Rng::new(seed),
    )
    .unwrap();
    BiLipNet::from_free(&free).unwrap()
}

#[test]
fn products_and_jacobian_match_central_differences() {
    for (k, activation) in Activation::ALL.into_iter().enumerate() {
        let n = 4;
        let g = net(activation, n, 40 + k as u64);
        let mut rng = Rng::new(7);
        let (x, dx, w) = (rng.normals(n * 3), rng.normals(n * 3), rng.normals(n * 3));
        let (jvp, vjp, jacobian) = (
            g.jvp(&x, &dx).unwrap(),
            g.vjp(&x, &w).unwrap(),
            g.jacobian(&x).unwrap(),
        );
        // Kinks are hit with probability of the order of h, smooth curvature leaves h²: 1e-6 suits
        // both.
        let h = 1e-6;
        let shifted = |s: f64| -> Vec<f64> { x.iter().zip(&dx).map(|(x, d)| x + s * d).collect() };
        let (plus, minus) = (g.forward(&shifted(h)).unwrap(), g.forward(&shifted(-h)).unwrap());
        for i in 0..x.len() {
            let difference = (plus[i] - minus[i]) / (2.0 * h);
            assert!(
                (difference - jvp[i]).abs() < 1e-7 * (1.0 + jvp[i].abs()),
                "{activation}: {difference} {}",
                jvp[i]
            );
        }
        for r in 0..3 {
            for i in 0..n {
                let row: f64 = (0..n)
                    .map(|j| jacobian[(r * n + i) * n + j] * dx[r * n + j])
                    .sum();
                assert!((row - jvp[r * n + i]).abs() < 1e-12 * (1.0 + row.abs()));
                let column: f64 = (0..n).map(|j| jacobian[(r * n + j) * n + i] * w[r * n + j]).sum();
                assert!((column - vjp[r * n + i]).abs() < 1e-12 * (1.0 + column.abs()));
            }
        }
    }
}

#[test]
fn gradient_of_a_pl_network_matches_central_differences_and_vanishes_at_the_minimum() {
    let f = PlNet::new(net(Activation::Softplus, 3, 50), 0.5).unwrap();
    let x = Rng::new(8).normals(3);
    let gradient = f.gradient(&x).unwrap();
    for i in 0..3 {
        let mut at = [x.clone(), x.clone()];
        at[0][i] += 1e-6;
        at[1][i] -= 1e-6;
        let difference = (f.value(&at[0]).unwrap()[0] - f.value(&at[1]).unwrap()[0]) / 2e-6;
        assert!((difference - gradient[i]).abs() < 1e-7 * (1.0 + difference.abs()));
    }
    let minimum = f.minimize(&InverseOptions::default()).unwrap();
    assert!(f.gradient(&minimum.x).unwrap().iter().all(|g| g.abs() < 1e-7));
}

#[test]
fn a_known_minimizer_is_the_minimum() {
    let known = vec![1.0, -2.0, 0.5];
    let f = PlNet::with_minimizer(net(Activation::Relu, 3, 51), -1.0, known.clone()).unwrap();
    let minimum = f.minimize(&InverseOptions::default()).unwrap();
    assert_eq!(
        (minimum.x, minimum.value, minimum.gap),
        (known.clone(), -1.0, 0.0)
    );
    assert!((f.value(&known).unwrap()[0] + 1.0).abs() < 1e-15);
    assert!(f.value(&[0.0, 0.0, 0.0]).unwrap()[0] > -1.0);
}

#[test]
fn the_inverse_differentiates_like_the_inverse() {
    for activation in [Activation::Tanh, Activation::Relu] {
        let n = 4;
        let g = net(activation, n, 60);
        let mut rng = Rng::new(9);
        let (y, w) = (rng.normals(n * 2), rng.normals(n * 2));
        let options = InverseOptions {
            tolerance: 1e-13,
            ..Default::default()
        };
        let x = g.inverse(&y, &options).unwrap().x;
        let vjp = g.inverse_vjp(&x, &w).unwrap();
        for i in 0..y.len() {
            let mut at = [y.clone(), y.clone()];
            at[0][i] += 1e-5;
            at[1][i] -= 1e-5;
            let [plus, minus] = at.map(|y| g.inverse(&y, &options).unwrap().x);
            let difference: f64 = (0..y.len()).map(|j| w[j] * (plus[j] - minus[j]) / 2e-5).sum();
            assert!(
                (difference - vjp[i]).abs() < 1e-6 * (1.0 + difference.abs()),
                "{activation}: {difference} {}",
                vjp[i]
            );
        }
    }
}

#[test]
fn single_precision_agrees_with_double_to_its_own_rounding() {
    let bounds = Bounds::new(0.2, 5.0).unwrap();
    let free = BiLipNetFree::random(
        &RandomLayer::new(6, &[20, 20], bounds)
            .with_activation(Activation::Elu)
            .with_bias(0.7),
        2,
        &mut Rng::new(70),
    )
    .unwrap();
    let (single, double) = (
        BiLipNet::<f32>::from_free(&free).unwrap(),
        BiLipNet::<f64>::from_free(&free).unwrap(),
    );
    let x = Rng::new(71).normals(6 * 300);
    let x32: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    let (a, b) = (single.forward(&x32).unwrap(), double.forward(&x).unwrap());
    let scale = b.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (a, b) in a.iter().zip(&b) {
        assert!((f64::from(*a) - b).abs() < 1e-5 * scale);
    }
}

#[test]
fn batches_of_any_size_agree_with_single_rows() {
    let g = net(Activation::Relu, 5, 80);
    let x = Rng::new(81).normals(5 * 300);
    let batch = g.forward(&x).unwrap();
    let mut evaluator = g.row_evaluator();
    for (row, expected) in x.chunks(5).zip(batch.chunks(5)) {
        let mut at = row.to_vec();
        evaluator.forward_in_place(&mut at).unwrap();
        for (a, b) in at.iter().zip(expected) {
            assert!((a - b).abs() < 1e-13 * (1.0 + b.abs()));
        }
    }
    assert!(evaluator.forward_in_place(&mut [0.0; 4]).is_err());
    assert!(evaluator.forward_in_place(&mut [f64::NAN; 5]).is_err());
    assert!(g.forward(&[]).unwrap().is_empty());
    assert!(g.forward(&[1.0; 7]).is_err());
    assert!(g.forward(&[f64::INFINITY; 5]).is_err());
    assert!(g.jvp(&[1.0; 5], &[1.0; 10]).is_err());
    // Finite but out of range: an error, not an infinity.
    assert!(g.forward(&[1e308; 5]).is_err());
}

#[test]
fn estimates_lie_inside_the_bounds() {
    let g = net(Activation::Relu, 3, 90);
    let mut rng = Rng::new(91);
    let (x, other) = (rng.normals(3 * 500), rng.normals(3 * 500));
    let slopes = measured_slopes(&g, &x, &other).unwrap().unwrap();
    let local = local_lipschitz(&g, &x, 30).unwrap().unwrap();
    for estimate in [slopes, local] {
        assert!(
            estimate.smallest >= g.bounds().mu() && estimate.largest <= g.bounds().nu(),
            "{estimate}"
        );
        assert_eq!(estimate.samples, 500);
    }
    // The local slope is the largest one of all directions, so it is not below the sampled ones by
    // much.
    assert!(local.largest >= 0.9 * slopes.largest);
    assert!(measured_slopes(&g, &x, &x).unwrap().is_none());
}
