//! Changes of variables: exact in the bounds, invisible everywhere else.

use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, InverseOptions, Method, Mlp, MonLip, MonLipFree,
    PartialBiLipNet, PartialPlNet, PlNet, RandomLayer, Real, Rng, Scaling, Status,
};

const SCALE: [f64; 3] = [0.0078125, 4.0, 1.0];
const SHIFT: [f64; 3] = [-3.0, 100.0, 0.25];

fn free(seed: u64) -> BiLipNetFree {
    let bounds = Bounds::new(0.1, 7.0).unwrap();
    let mut rng = Rng::new(seed);
    BiLipNetFree::random(&RandomLayer::new(3, &[9, 12], bounds), 2, &mut rng).unwrap()
}

fn input<T: Real>() -> Scaling<T> {
    Scaling::new(
        SCALE.map(T::round_from).to_vec(),
        SHIFT.map(T::round_from).to_vec(),
    )
    .unwrap()
}

fn output<T: Real>() -> Scaling<T> {
    Scaling::new(vec![T::round_from(32.0); 3], vec![T::zero(); 3]).unwrap()
}

fn scaled<T: Real>(seed: u64) -> BiLipNet<T> {
    BiLipNet::from_free(&free(seed))
        .unwrap()
        .with_scalings(Some(input()), Some(output()))
        .unwrap()
}

#[test]
fn a_reflected_output_changes_its_sign_and_no_bound() {
    let plain = BiLipNet::<f32>::from_free(&free(9)).unwrap();
    let net = plain.clone().with_reflected_output(1).unwrap();
    assert!(net.verify().holds());
    assert_eq!(net.claim(), plain.claim());
    assert_eq!(net.bounds(), plain.bounds());
    let x: Vec<f32> = Rng::new(4).normals(30).iter().map(|v| *v as f32).collect();
    let (a, b) = (plain.forward(&x).unwrap(), net.forward(&x).unwrap());
    for (k, (a, b)) in a.iter().zip(&b).enumerate() {
        assert_eq!(*b, if k % 3 == 1 { -a } else { *a });
    }
    assert!(plain.with_reflected_output(3).is_err());
}

#[test]
fn a_scaled_network_is_the_composition_and_its_bounds_are_the_exact_product() {
    let (plain, net) = (BiLipNet::<f64>::from_free(&free(1)).unwrap(), scaled::<f64>(1));
    let claim = net.claim();
    // Powers of two: no rounding at all.
    assert_eq!(
        (claim.mu(), claim.nu()),
        (0.1 * 0.0078125 * 32.0, 7.0 * 4.0 * 32.0)
    );
    assert!(net.certificate().holds() && net.verify().holds());
    assert_eq!(net.bounds().bounds(), Some(claim.bounds()));
    assert!(BiLipNet::<f32>::verify(&scaled(1)).holds());
    let mut rng = Rng::new(2);
    let x: Vec<f64> = rng.normals(30).iter().map(|v| 20.0 * v).collect();
    let inner: Vec<f64> = x
        .iter()
        .enumerate()
        .map(|(k, v)| SCALE[k % 3] * v + SHIFT[k % 3])
        .collect();
    let expected: Vec<f64> = plain.forward(&inner).unwrap().iter().map(|v| 32.0 * v).collect();
    assert_eq!(net.forward(&x).unwrap(), expected);
    // Derivatives against differences.
    let d = rng.normals(30);
    let h = 1e-6;
    let moved = |s: f64| -> Vec<f64> { x.iter().zip(&d).map(|(x, d)| x + s * d).collect() };
    let (a, b) = (net.forward(&moved(h)).unwrap(), net.forward(&moved(-h)).unwrap());
    let jvp = net.jvp(&x, &d).unwrap();
    for k in 0..30 {
        let difference = (a[k] - b[k]) / (2.0 * h);
        assert!((jvp[k] - difference).abs() < 1e-5 * (1.0 + difference.abs()));
    }
    let w = rng.normals(30);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (left, right) = (dot(&w, &jvp), dot(&net.vjp(&x, &w).unwrap(), &d));
    assert!((left - right).abs() < 1e-10 * left.abs());
}

#[test]
fn inverses_of_scaled_networks_are_within_their_certified_error() {
    let net = scaled::<f64>(3);
    let mut rng = Rng::new(4);
    let x: Vec<f64> = rng.normals(60).iter().map(|v| 10.0 * v).collect();
    let y = net.forward(&x).unwrap();
    for method in ["auto", "dys", "drs"] {
        let options = InverseOptions {
            method: method.parse::<Method>().unwrap(),
            tolerance: 1e-8,
            max_iterations: Some(200_000),
            ..Default::default()
        };
        let inverse = net.inverse(&y, &options).unwrap();
        for (k, row) in inverse.rows.iter().enumerate() {
            assert_eq!(row.status, Status::Converged, "{method}");
            let error = (0..3)
                .map(|i| (inverse.x[3 * k + i] - x[3 * k + i]).powi(2))
                .sum::<f64>()
                .sqrt();
            // y itself was rounded, by a part in 1e16 of numbers around 1e4 that come back 1/μ
            // times as large.
            assert!(row.error_bound <= 1e-8);
            assert!(error <= row.error_bound + 1e-9, "{method}: {error}");
        }
    }
    let (value, error) = net.forward_with_error(&x).unwrap();
    for (k, bound) in error.iter().enumerate() {
        let size = value[3 * k..3 * k + 3].iter().fold(0.0f64, |a, v| a.max(v.abs()));
        assert!(*bound > 0.0 && *bound < 1e-10 * (1.0 + size));
    }
}

#[test]
fn minima_of_scaled_networks_are_in_the_user_s_variables() {
    let f = PlNet::new(scaled::<f64>(5), -2.0).unwrap();
    assert!(f.certificate().pl_constant().unwrap() >= (0.1f64 * 0.25).powi(2) * (1.0 - 1e-12));
    let minimum = f.minimize(&InverseOptions::default()).unwrap();
    assert_eq!(minimum.status, Status::Converged);
    let value = f.value(&minimum.x).unwrap()[0];
    assert!((value + 2.0).abs() < 1e-10, "{value}");
    // The gradient vanishes there, and the constant bounds how fast it grows away from it.
    let x: Vec<f64> = minimum.x.iter().map(|v| v + 3.0).collect();
    let gradient = f.gradient(&x).unwrap();
    let half: f64 = gradient.iter().map(|g| 0.5 * g * g).sum();
    let gap = f.value(&x).unwrap()[0] - minimum.value;
    assert!(half >= f.certificate().pl_constant().unwrap() * gap);
}

#[test]
fn partial_networks_keep_their_change_of_variables() {
    let mut rng = Rng::new(6);
    let mut mlp = |outputs: usize| Mlp::new(vec![(rng.glorot(outputs, 2), rng.normals(outputs))]).unwrap();
    let (orthogonal, hidden): (Vec<_>, Vec<_>) = (
        (0..3).map(|_| mlp(3)).collect(),
        (0..2).map(|_| mlp(21)).collect(),
    );
    let net = PartialBiLipNet::new(scaled::<f64>(7), orthogonal, hidden).unwrap();
    let p = [0.4, -1.0];
    let x = [3.0, -20.0, 0.5];
    let at = net.at(&p).unwrap();
    assert_eq!(at.forward(&x).unwrap(), net.forward(&x, &p).unwrap());
    let y = at.forward(&x).unwrap();
    let inverse = net.inverse(&y, &p, &InverseOptions::default()).unwrap();
    assert!(inverse.rows[0].error_bound < 1e-8);
    for (a, b) in inverse.x.iter().zip(&x) {
        assert!((a - b).abs() < 1e-8);
    }
    let f = PartialPlNet::new(net, 1.0).unwrap();
    let minimum = &f.minimize(&p, &InverseOptions::default()).unwrap()[0];
    assert!((f.value(&minimum.x, &p).unwrap()[0] - 1.0).abs() < 1e-10);
}

#[test]
fn a_monotone_layer_in_other_variables_is_the_same_layer() {
    for activation in Activation::ALL {
        let mut rng = Rng::new(8);
        let bounds = Bounds::new(0.2, 3.0).unwrap();
        let mut free = MonLipFree::random(
            &RandomLayer::new(2, &[6, 5], bounds)
                .with_activation(activation)
                .with_bias(0.7),
            &mut rng,
        )
        .unwrap();
        free.hidden_bias = rng.normals(11);
        free.output_bias = rng.normals(2);
        let plain = MonLip::<f64>::from_free(&free).unwrap();
        let (mx, sx, my, sy) = ([300.0, -2.0], 16.0, [5.0, 0.125], 0.25);
        let moved = free.in_variables((&mx, sx), (&my, sy)).unwrap();
        assert_eq!(moved.bounds, Bounds::new(0.2 / 64.0, 3.0 / 64.0).unwrap());
        let layer = MonLip::<f64>::from_free(&moved).unwrap();
        assert!(layer.verify().holds());
        let x: Vec<f64> = rng
            .normals(20)
            .iter()
            .enumerate()
            .map(|(k, v)| mx[k % 2] + sx * v)
            .collect();
        let inner: Vec<f64> = x.iter().enumerate().map(|(k, v)| (v - mx[k % 2]) / sx).collect();
        let expected = plain.forward(&inner).unwrap();
        for (k, (a, b)) in layer.forward(&x).unwrap().iter().zip(&expected).enumerate() {
            let b = sy * b + my[k % 2];
            assert!(
                (a - b).abs() < 1e-10 * (1.0 + b.abs()),
                "{activation}: {a} against {b}"
            );
        }
    }
}

#[test]
fn scalings_that_are_not_are_errors() {
    for scale in [0.0, -2.0, 3.0, 0.1, f64::NAN, f64::INFINITY, 5e-324] {
        assert!(Scaling::new(vec![scale], vec![0.0]).is_err(), "{scale}");
    }
    assert!(Scaling::new(vec![1.0], vec![f64::NAN]).is_err());
    assert!(Scaling::<f64>::new(vec![], vec![]).is_err());
    assert!(Scaling::new(vec![1.0], vec![]).is_err());
    assert!(Scaling::new(vec![2f64.powi(600)], vec![0.0]).is_err());
    let net = || BiLipNet::<f64>::from_free(&free(1)).unwrap();
    let two = Scaling::new(vec![1.0; 2], vec![0.0; 2]).unwrap();
    assert!(net().with_scalings(Some(two), None).is_err());
    assert!(scaled::<f64>(1).with_scalings(Some(input()), None).is_err());
    assert_eq!(Scaling::<f64>::nearest_power_of_two(1.3), 1.0);
    assert_eq!(Scaling::<f64>::nearest_power_of_two(1.5), 2.0);
}

#[test]
fn columns_of_very_different_units_cost_the_proof_nothing() {
    let scale = |v: [f64; 3], s: [f64; 3]| Scaling::new(v.to_vec(), s.to_vec()).unwrap();
    let net = BiLipNet::<f64>::from_free(&free(9))
        .unwrap()
        .with_scalings(
            Some(scale([2f64.powi(-20), 1.0, 2f64.powi(6)], [0.3, -300.0, 0.0])),
            Some(scale([2f64.powi(17), 2f64.powi(-9), 1.0], [1e5, 0.01, 0.0])),
        )
        .unwrap();
    let mut rng = Rng::new(10);
    let x: Vec<f64> = (0..20)
        .flat_map(|_| [1e6 * rng.normal(), 300.0 + rng.normal(), 0.01 * rng.normal()])
        .collect();
    let y = net.forward(&x).unwrap();
    // One part in 1e14 of the largest column.
    let options = InverseOptions {
        tolerance: 1e-7,
        ..Default::default()
    };
    let inverse = net.inverse(&y, &options).unwrap();
    for (k, row) in inverse.rows.iter().enumerate() {
        assert_eq!(row.status, Status::Converged, "{row:?}");
        let error = (0..3)
            .map(|i| (inverse.x[3 * k + i] - x[3 * k + i]).powi(2))
            .sum::<f64>()
            .sqrt();
        // y was rounded too: 1e-16 of 1e5, through 2⁻¹⁷, 1/μ and 2²⁰.
        assert!(error <= row.error_bound + 1e-8, "{error} {row:?}");
        let residual = {
            let back = net.forward(&inverse.x[3 * k..3 * k + 3]).unwrap();
            (0..3)
                .map(|i| (back[i] - y[3 * k + i]).powi(2))
                .sum::<f64>()
                .sqrt()
        };
        assert!(residual <= 2.0 * row.residual_bound, "{residual} {row:?}");
    }
}
