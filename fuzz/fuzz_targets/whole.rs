//! The whole way of a model: load, certify, evaluate, invert, minimize, export. Nothing on it may hang, panic or answer
//! with a bound that its own residual contradicts.
#![no_main]

use std::collections::BTreeMap;

use bilip::{BiLipschitz, Inverse, InverseOptions, Minimum, Model, Network, Real, Status, Stored};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes) {
        let certificate = model.verify();
        assert_eq!(certificate, model.certificate());
        let _ = certificate.to_string();
        match &model.network {
            Stored::F32(network) => use_it(network),
            Stored::F64(network) => use_it(network),
        }
        if let Ok(graph) = model.to_onnx(&BTreeMap::new()) {
            assert!(!graph.bytes.is_empty() && graph.certificate.proved().bounds().is_some());
        }
        let again = model.to_bytes().expect("a loaded model can be written");
        Model::from_bytes(&again).expect("and read again");
    }
});

fn use_it<T: Real>(network: &Network<T>) {
    let n = network.dim();
    let x: Vec<T> = (0..3 * n).map(|k| T::round_from([0.5, -3.0, 1e30][k / n])).collect();
    let y: Vec<f64> = (0..3 * n).map(|k| [0.5, -3.0, f64::MAX][k / n]).collect();
    let options = InverseOptions::default();
    match network {
        Network::MonLip(layer) => {
            drop(layer.forward(&x));
            drop(layer.jacobian(&x));
            check(layer.inverse(&y, &options));
        }
        Network::BiLipNet(net) => {
            drop(net.forward(&x));
            drop(net.jacobian(&x));
            check(net.inverse(&y, &options));
        }
        Network::PlNet(f) => {
            drop(f.value(&x));
            drop(f.gradient(&x));
            drop(f.minimize(&options).map(check_minimum));
        }
        Network::PartialBiLipNet(net) => {
            let p = vec![0.5; 3 * net.parameters()];
            let single: Vec<T> = p.iter().map(|v| T::round_from(*v)).collect();
            drop(net.forward(&x, &single));
            check(net.inverse(&y, &p, &options));
        }
        Network::PartialPlNet(f) => {
            let p = vec![0.5; 3 * f.net().parameters()];
            let single: Vec<T> = p.iter().map(|v| T::round_from(*v)).collect();
            drop(f.value(&x, &single));
            for minimum in f.minimize(&p, &options).unwrap_or_default() {
                check_minimum(minimum);
            }
        }
        Network::Classifier(c) => drop(c.probabilities(&x)),
        _ => {}
    }
}

fn check(inverse: bilip::Result<Inverse>) {
    let Ok(inverse) = inverse else { return };
    for row in &inverse.rows {
        assert!(!row.error_bound.is_nan() && row.error_bound >= 0.0);
        assert!(row.status != Status::Converged || row.error_bound <= 1e-8);
    }
}

fn check_minimum(minimum: Minimum) {
    assert!(!minimum.distance_bound.is_nan() && !minimum.gap.is_nan());
    assert!(minimum.status != Status::Converged || minimum.distance_bound <= 1e-8);
}
