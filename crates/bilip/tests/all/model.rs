//! The model file: faithful, and unmoved by damage or malice.

use std::time::Instant;

use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, Classifier, Error, GpHead, Mlp, Model, MonLip,
    MonLipFree, Network, PartialBiLipNet, PartialPlNet, PlNet, PosteriorPrecision, RandomFeatures,
    RandomLayer, Real, Rng, Scaling, Stored,
};
use proptest::prelude::*;

/// One small model of every kind.
fn models<T: Real>(activation: Activation) -> Vec<Network<T>> {
    let mut rng = Rng::new(5);
    let bounds = Bounds::new(0.3, 3.0).unwrap();
    let mut layer = MonLipFree::random(
        &RandomLayer::new(3, &[4, 6, 5], bounds)
            .with_activation(activation)
            .with_bias(1.0),
        &mut rng,
    )
    .unwrap();
    layer.log_psi = Some(rng.normals(15));
    let net = || {
        let free = BiLipNetFree::random(
            &RandomLayer::new(2, &[3, 4], bounds)
                .with_activation(activation)
                .with_bias(1.0),
            2,
            &mut Rng::new(6),
        )
        .unwrap();
        BiLipNet::<T>::from_free(&free).unwrap()
    };
    let mut mlp = |outputs: usize| {
        let layers = vec![
            (rng.glorot(4, 3), rng.normals(4)),
            (rng.glorot(outputs, 4), rng.normals(outputs)),
        ];
        Mlp::new(layers).unwrap().convert::<T>()
    };
    let scaled = || {
        let scaling = |scale: [f64; 2], shift: [f64; 2]| {
            Scaling::new(
                scale.map(T::round_from).to_vec(),
                shift.map(T::round_from).to_vec(),
            )
            .unwrap()
        };
        let (input, output) = (scaling([0.5, 8.0], [1.0, -3.0]), scaling([2.0, 2.0], [0.0, 0.5]));
        net().with_scalings(Some(input), Some(output)).unwrap()
    };
    let mut partial = || {
        PartialBiLipNet::new(
            scaled(),
            (0..3).map(|_| mlp(2)).collect(),
            (0..2).map(|_| mlp(7)).collect(),
        )
        .unwrap()
    };
    let (first, second, third) = (partial(), partial(), partial());
    let classifier = {
        let mut rng = Rng::new(7);
        let features = RandomFeatures::draw(2, 6, 1.0, true, &mut rng).unwrap();
        let mut precision = PosteriorPrecision::new(6, 0.5).unwrap();
        precision.add(&rng.normals(4 * 6), &[0.1; 4]).unwrap();
        let head = GpHead::new(features, rng.matrix(6, 3, 1.0), rng.normals(3), &precision).unwrap();
        Classifier::new(scaled(), 1, head, 0.4).unwrap()
    };
    vec![
        Network::MonLip(MonLip::from_free(&layer).unwrap()),
        Network::PartialBiLipNet(first),
        Network::PartialPlNet(PartialPlNet::new(second, 0.1).unwrap()),
        Network::PartialPlNet(
            (PartialPlNet::new(third, 0.1).unwrap())
                .with_offset_network(mlp(1))
                .unwrap(),
        ),
        Network::BiLipNet(net()),
        Network::BiLipNet(scaled()),
        Network::PlNet(PlNet::new(net(), -1.0 / 3.0).unwrap()),
        Network::PlNet(
            PlNet::with_minimizer(scaled(), 2.0, vec![T::round_from(0.5), T::round_from(-0.1)]).unwrap(),
        ),
        Network::Classifier(classifier),
    ]
}

/// The network's value at a fixed point, all kinds alike.
fn value<T: Real>(network: &Network<T>) -> Vec<T> {
    let x: Vec<T> = (0..network.dim())
        .map(|i| T::round_from(0.3 + 0.7 * i as f64))
        .collect();
    let p: Vec<T> = [0.1, -0.4, 0.9].map(T::round_from).to_vec();
    match network {
        Network::MonLip(l) => l.forward(&x).unwrap(),
        Network::BiLipNet(g) => g.forward(&x).unwrap(),
        Network::PlNet(f) => f.value(&x).unwrap(),
        Network::PartialBiLipNet(g) => g.forward(&x, &p).unwrap(),
        Network::PartialPlNet(f) => f.value(&x, &p).unwrap(),
        // Numbers beyond f32 would hide a loss of digits in f64.
        Network::Classifier(c) => {
            let p = c.probabilities(&x).unwrap();
            p.iter()
                .flat_map(|v| [T::round_from(*v), T::round_from(*v * 1e9 - (*v * 1e9).floor())])
                .collect()
        }
        other => panic!("{}", other.kind_name()),
    }
}

fn small() -> Vec<u8> {
    Model::from(models::<f32>(Activation::Tanh).remove(0))
        .to_bytes()
        .unwrap()
}

#[test]
fn every_kind_and_precision_comes_back_bit_for_bit() {
    for activation in Activation::ALL {
        for network in models::<f64>(activation) {
            let mut model = Model::from(network.clone());
            model
                .provenance
                .insert("made by".into(), "a test, ½ of it in UTF-8".into());
            let again = Model::from_bytes(&model.to_bytes().unwrap()).unwrap();
            assert_eq!(again.provenance, model.provenance);
            assert_eq!(again.certificate(), model.certificate());
            assert_eq!(again.verify(), model.certificate());
            let Stored::F64(read) = again.network else {
                panic!("precision")
            };
            assert_eq!(value(&read), value(&network), "{}", network.kind_name());
        }
        for network in models::<f32>(activation) {
            let again = Model::from_bytes(&Model::from(network.clone()).to_bytes().unwrap()).unwrap();
            assert!(again.verify().holds());
            let Stored::F32(read) = again.network else {
                panic!("precision")
            };
            assert_eq!(value(&read), value(&network), "{}", network.kind_name());
        }
    }
}

#[test]
fn saving_replaces_the_file_at_once_or_leaves_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let [first, second] = [0, 3].map(|k| Model::from(models::<f64>(Activation::Relu).remove(k)));
    first.save(&path).unwrap();
    second.save(&path).unwrap();
    assert_eq!(Model::load_verified(&path).unwrap().dim(), 2);
    // Nothing else is left beside it.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let missing = folder.path().join("no such folder/model.safetensors");
    assert!(matches!(first.save(&missing), Err(Error::Io { .. })));
    assert!(matches!(Model::load(&missing), Err(Error::Io { .. })));
    assert!(matches!(
        Model::load(folder.path()),
        Err(Error::ModelFile { .. } | Error::Io { .. })
    ));
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let bytes = small();
    for length in 0..bytes.len() {
        assert!(
            Model::from_bytes(&bytes[..length]).is_err(),
            "{length} of {} bytes",
            bytes.len()
        );
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Model::from_bytes(&longer).is_err());
}

#[test]
fn every_single_bit_flip_is_an_error_or_a_model_that_tells_the_truth() {
    let bytes = small();
    let original = Model::from_bytes(&bytes).unwrap();
    let mut loaded = 0;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(model) = Model::from_bytes(&flipped) {
            loaded += 1;
            // What is proved is true of the weights as they are now; most flips in V or S are
            // noticed here.
            assert_eq!(model.verify(), model.certificate());
        }
    }
    // Flips in the numbers load, flips in the structure do not.
    assert!(loaded > 0 && loaded < bytes.len() * 8);
    assert!(original.verify().holds());
}

#[test]
fn a_flip_of_a_high_bit_in_the_weights_is_caught_by_verification() {
    let bytes = Model::from(models::<f64>(Activation::Relu).remove(3))
        .to_bytes()
        .unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let folder = tempfile::tempdir().unwrap();
    let mut caught = 0;
    for at in (8 + header + 7..bytes.len()).step_by(8) {
        let mut flipped = bytes.clone();
        // The lowest exponent bit: the number is doubled or halved.
        flipped[at - 1] ^= 0x10;
        let path = folder.path().join("flipped");
        std::fs::write(&path, &flipped).unwrap();
        if Model::load_verified(&path).is_err() {
            caught += 1;
        }
    }
    // Biases may change freely and halved weights may pass; the orthogonal and most of the monotone
    // weights may not.
    assert!(caught > 15, "{caught}");
}

#[test]
fn hostile_headers_are_errors_and_cost_nothing() {
    let clock = Instant::now();
    let header = |json: &str| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes
    };
    let meta = |text: &str| {
        header(&format!(
            r#"{{"__metadata__":{{"bilip":{}}}}}"#,
            serde_json::Value::String(text.into())
        ))
    };
    let good = small();
    let size = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let json = String::from_utf8(good[8..8 + size].to_vec()).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(json.contains(from), "{from} is not in {json}");
        let mut bytes = header(&json.replace(from, to));
        bytes.extend_from_slice(&good[8 + size..]);
        bytes
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("length beyond the end", u64::MAX.to_le_bytes().to_vec()),
        ("not JSON", header("hello")),
        ("no metadata", header("{}")),
        ("deeply nested", meta(&"[".repeat(100_000))),
        (
            "another version",
            edited(r#"format_version\":1"#, r#"format_version\":99"#),
        ),
        ("no version", edited("format_version", "versionformat_")),
        ("unknown kind", edited("mon_lip", "mon_lap")),
        ("kind of other shape", edited("mon_lip", "bi_lip_net")),
        ("refused activation", edited("tanh", "gelu")),
        ("nu below mu", edited(r#"\"nu\":3.0"#, r#"\"nu\":0.1"#)),
        ("mu zero", edited(r#"\"mu\":0.3"#, r#"\"mu\":0.0"#)),
        ("huge n", edited(r#"\"n\":3"#, r#"\"n\":18446744073709551615"#)),
        ("n zero", edited(r#"\"n\":3"#, r#"\"n\":0"#)),
        (
            "huge widths",
            edited(
                r#"\"units\":[4,6,5]"#,
                r#"\"units\":[18446744073709551615,18446744073709551615]"#,
            ),
        ),
        ("no widths", edited(r#"\"units\":[4,6,5]"#, r#"\"units\":[]"#)),
        (
            "zero width",
            edited(r#"\"units\":[4,6,5]"#, r#"\"units\":[4,0,5]"#),
        ),
        (
            "widths of other shape",
            edited(r#"\"units\":[4,6,5]"#, r#"\"units\":[4,5,6]"#),
        ),
        (
            "precision",
            edited(r#"precision\":\"f32"#, r#"precision\":\"f64"#),
        ),
        ("tensor renamed", edited("monotone.0.s", "monotone.0.t")),
        (
            "certificate of nothing",
            edited(r#"\"layers\":[{"#, r#"\"layers\":[],\"x\":[{"#),
        ),
        (
            "certificate of another kind",
            edited(r#"\"kind\":\"monlip"#, r#"\"kind\":\"orthogonal"#),
        ),
        (
            "certificate better than true",
            edited(r#"\"certified_mu\":0.3"#, r#"\"certified_mu\":-0.3"#),
        ),
    ];
    for (what, bytes) in cases {
        let error = Model::from_bytes(&bytes).map(|_| ()).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.len() < 400, "{what}: {error}");
        println!("{what}: {error}");
    }
    assert!(clock.elapsed().as_secs() < 5);
}

#[test]
fn a_forged_certificate_does_not_survive_verification() {
    let mut explicit = match models::<f64>(Activation::Relu).remove(0) {
        Network::MonLip(layer) => layer.to_explicit(),
        _ => unreachable!(),
    };
    let original = Model::from(Network::MonLip(MonLip::from_explicit(explicit.clone()).unwrap()));
    explicit.s[(0, 0)] += 0.5;
    let tampered = Model::from(Network::MonLip(MonLip::from_explicit(explicit).unwrap()));
    assert!(!tampered.certificate().holds());
    // The tampered weights under the original header.
    let (a, b) = (original.to_bytes().unwrap(), tampered.to_bytes().unwrap());
    let end = |bytes: &[u8]| 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let forged = [&a[..end(&a)], &b[end(&b)..]].concat();
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), forged).unwrap();
    let read = Model::load(path.path()).unwrap();
    assert!(!read.certificate().holds());
    let stored = serde_json::to_value(read.stored_certificate().unwrap()).unwrap();
    assert_eq!(stored["holds"], true, "the file's own claim is kept, as a claim");
    assert!(matches!(
        Model::load_verified(path.path()),
        Err(Error::ClaimNotProved { .. })
    ));
}

#[test]
fn bounds_come_from_the_proof_never_from_the_file() {
    let bytes = small();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json = String::from_utf8(bytes[8..8 + size].to_vec()).unwrap();
    // Both certified bounds are narrowed: consistent with the claim, but not true.
    let json = json.replace(r#"\"certified_mu\":0.3"#, r#"\"certified_mu\":2.5"#);
    let mut edited = (json.len() as u64).to_le_bytes().to_vec();
    edited.extend_from_slice(json.as_bytes());
    edited.extend_from_slice(&bytes[8 + size..]);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), edited).unwrap();
    for model in [
        Model::load(path.path()).unwrap(),
        Model::load_verified(path.path()).unwrap(),
    ] {
        assert_eq!(model.certificate().proved().mu(), 0.3);
    }
}

#[test]
fn seeds_and_former_findings_of_the_fuzzer_are_read_and_verified() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/load");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let loaded = Model::load(&path);
        if path.file_name().unwrap().to_string_lossy().starts_with("seed-") {
            assert!(loaded.unwrap().verify().holds(), "{}", path.display());
            seeds += 1;
        } else if let Ok(model) = loaded {
            model.verify();
        }
    }
    // One of every kind and precision.
    assert!(seeds >= 22, "{seeds}");
}

#[cfg(target_os = "linux")]
#[test]
fn files_that_are_too_large_or_endless_are_refused() {
    assert!(Model::load("/dev/zero").is_err());
    let file = tempfile::NamedTempFile::new().unwrap();
    // Sparse: takes no room on the disk.
    file.as_file().set_len(bilip::MAX_FILE_SIZE + 1).unwrap();
    let error = Model::load(file.path()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes_written_over_at_random_never_panic(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = small();
        for (index, byte) in at {
            let k = index.index(bytes.len());
            bytes[k] = byte;
        }
        if let Ok(model) = Model::from_bytes(&bytes) {
            model.verify();
        }
    }
}
