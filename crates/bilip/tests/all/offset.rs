//! Partial PL networks whose minimum has another value for every p.

use bilip::{
    Activation, BiLipNet, BiLipNetFree, Bounds, BoxOptions, InverseOptions, Mlp, Model, Network,
    PartialBiLipNet, PartialPlNet, RandomLayer, Real, Rng, Status,
};

fn mlp<T: Real>(inputs: usize, outputs: usize, rng: &mut Rng) -> Mlp<T> {
    Mlp::new(vec![
        (rng.glorot(6, inputs), rng.normals(6)),
        (rng.glorot(outputs, 6), rng.normals(outputs)),
    ])
    .unwrap()
    .convert()
}

/// The network without and with its offset.
fn pair<T: Real>(seed: u64) -> [PartialPlNet<T>; 2] {
    let mut rng = Rng::new(seed);
    let layer =
        RandomLayer::new(2, &[8, 8], Bounds::new(0.2, 4.0).unwrap()).with_activation(Activation::Tanh);
    let net = BiLipNet::from_free(&BiLipNetFree::random(&layer, 2, &mut rng).unwrap()).unwrap();
    let orthogonal = (0..3).map(|_| mlp(3, 2, &mut rng)).collect();
    let hidden = (0..2).map(|_| mlp(3, 16, &mut rng)).collect();
    let net = PartialBiLipNet::new(net, orthogonal, hidden).unwrap();
    let plain = PartialPlNet::new(net, -0.5).unwrap();
    let with = plain.clone().with_offset_network(mlp(3, 1, &mut rng)).unwrap();
    [plain, with]
}

/// `c(p)` by hand.
fn offset<T: Real>(f: &PartialPlNet<T>, p: &[f64]) -> f64 {
    let layers = f.offset_network().unwrap().layers();
    let mut h = p.to_vec();
    for (k, (weight, bias)) in layers.iter().enumerate() {
        h = (0..weight.nrows())
            .map(|i| {
                let sum: f64 = (0..weight.ncols()).map(|j| weight[(i, j)].as_f64() * h[j]).sum();
                let v = sum + bias[i].as_f64();
                if k + 1 < layers.len() { v.max(0.0) } else { v }
            })
            .collect();
    }
    h[0]
}

#[test]
fn an_offset_is_added_and_changes_nothing_else() {
    let [plain, with] = pair::<f64>(1);
    assert_eq!(with.certificate(), plain.certificate());
    assert!(with.verify().holds());
    let mut rng = Rng::new(2);
    let (x, p) = (rng.normals(5 * 2), rng.normals(5 * 3));
    let (a, b) = (plain.value(&x, &p).unwrap(), with.value(&x, &p).unwrap());
    for (k, (a, b)) in a.iter().zip(&b).enumerate() {
        let expected = a + offset(&with, &p[3 * k..3 * k + 3]);
        assert!((b - expected).abs() < 1e-13, "{b} {expected}");
    }
    let gradient = with.gradient(&x, &p).unwrap();
    assert_eq!(gradient, plain.gradient(&x, &p).unwrap());
    for k in 0..x.len() {
        let at = |h: f64| {
            let mut moved = x.clone();
            moved[k] += h;
            with.value(&moved, &p).unwrap()[k / 2]
        };
        let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!(
            (gradient[k] - difference).abs() < 1e-7,
            "{} {difference}",
            gradient[k]
        );
    }
}

#[test]
fn minima_have_the_value_of_their_parameters() {
    fn run<T: Real>(seed: u64) {
        let [plain, with] = pair::<T>(seed);
        let p = Rng::new(seed + 9).normals(4 * 3);
        let options = InverseOptions::default();
        let limits = [(3.0, 4.0), (-1.0, 1.0)];
        let boxed = with.minimize_in(&p, &limits, &BoxOptions::default()).unwrap();
        let minima = with.minimize(&p, &options).unwrap();
        for (k, (minimum, before)) in minima
            .iter()
            .zip(plain.minimize(&p, &options).unwrap())
            .enumerate()
        {
            assert_eq!(minimum.status, Status::Converged);
            assert_eq!((&minimum.x, minimum.gap), (&before.x, before.gap));
            let c = offset(&with, &p[3 * k..3 * k + 3]) - 0.5;
            assert!(
                (minimum.value - c).abs() <= minimum.gap + 1e-12,
                "{minimum:?} {c}"
            );
            assert!(boxed[k].lower >= c - 1e-9 && boxed[k].gap <= 1e-6 * boxed[k].spread);
            let x: Vec<T> = boxed[k].x.iter().map(|v| T::round_from(*v)).collect();
            let row: Vec<T> = p[3 * k..3 * k + 3].iter().map(|v| T::round_from(*v)).collect();
            let value = with.value(&x, &row).unwrap()[0].as_f64();
            let slack = 1e4 * T::UNIT_ROUNDOFF * (1.0 + value.abs());
            assert!((value - boxed[k].value).abs() <= slack, "{value} {:?}", boxed[k]);
        }
    }
    for seed in 0..3 {
        run::<f64>(seed);
        run::<f32>(seed);
    }
}

#[test]
fn offset_networks_that_do_not_fit_are_errors() {
    let [plain, _] = pair::<f64>(3);
    let mut rng = Rng::new(4);
    for (inputs, outputs) in [(2, 1), (3, 2)] {
        let error = plain
            .clone()
            .with_offset_network(mlp(inputs, outputs, &mut rng))
            .unwrap_err();
        assert!(error.to_string().contains("offset network"), "{error}");
    }
}

#[test]
fn files_with_an_offset_have_version_3_and_others_do_not() {
    let [plain, with] = pair::<f32>(5);
    let text = |f: &PartialPlNet<f32>| {
        let bytes = Model::from(Network::PartialPlNet(f.clone())).to_bytes().unwrap();
        let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let json = String::from_utf8(bytes[8..8 + size].to_vec()).unwrap();
        (json, bytes[8 + size..].to_vec())
    };
    let (before, _) = text(&plain);
    assert!(before.contains(r#"format_version\":1"#) && !before.contains("offset_network"));
    let (json, tensors) = text(&with);
    assert!(json.contains(r#"format_version\":3"#));
    let read = |json: &str| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.extend_from_slice(&tensors);
        Model::from_bytes(&bytes)
    };
    assert!(read(&json).is_ok());
    for (from, to) in [
        (r#"format_version\":3"#, r#"format_version\":1"#),
        (r#"format_version\":3"#, r#"format_version\":2"#),
        (r#"offset_network\":[6,1]"#, r#"offset_network\":[6,2]"#),
        (r#"offset_network\":[6,1]"#, r#"offset_network\":[]"#),
        (r#"offset_network\":[6,1]"#, r#"offset_network\":[1]"#),
        (r#"offset_network\":[6,1]"#, r#"offset_nothing\":[6,1]"#),
        (
            r#"offset_network\":[6,1]"#,
            r#"offset_network\":[18446744073709551615,1]"#,
        ),
        ("partial_pl_net", "partial_bi_lip_net"),
        ("offset.0.weight", "offset.9.weight"),
    ] {
        assert!(json.contains(from), "{from}: {json}");
        let error = read(&json.replace(from, to)).map(|_| ()).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.len() < 400, "{from}: {error}");
    }
}
