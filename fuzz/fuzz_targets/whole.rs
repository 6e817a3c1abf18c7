//! The whole way of a model: load, certify, evaluate, invert, minimize, export. Nothing on it may
//! hang, panic or answer with a bound that its own residual contradicts.
#![no_main]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bilip::{Inverse, InverseOptions, Minimum, Model, Rng, Status};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

/// Files that were models and went the whole way.
static MODELS: AtomicU64 = AtomicU64::new(0);

// Bytes changed at random seldom make a model. Three times of four a number among the weights or in
// the header is changed instead, to something that is hard on arithmetic.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut rng = Rng::new(u64::from(seed));
    let length = data.get(..size.min(8)).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let header = match length {
        Some(length) if length < size as u64 - 8 && !seed.is_multiple_of(4) => 8 + length as usize,
        _ => return fuzzer_mutate(data, size, max_size),
    };
    let pick = |rng: &mut Rng, count: usize| ((rng.uniform() * count as f64) as usize).min(count - 1);
    if seed % 16 == 1 {
        // A digit of a number in the header.
        let digits: Vec<usize> = (8..header).filter(|k| data[*k].is_ascii_digit()).collect();
        if !digits.is_empty() {
            let at = digits[pick(&mut rng, digits.len())];
            data[at] = b'0' + pick(&mut rng, 10) as u8;
        }
        return size;
    }
    for _ in 0..1 + pick(&mut rng, 4) {
        let single = rng.uniform() < 0.5;
        let width = if single { 4 } else { 8 };
        let count = (size - header) / width;
        if count == 0 {
            return fuzzer_mutate(data, size, max_size);
        }
        let at = header + width * pick(&mut rng, count);
        let old = match single {
            true => f64::from(f32::from_le_bytes(data[at..at + 4].try_into().unwrap_or_default())),
            false => f64::from_le_bytes(data[at..at + 8].try_into().unwrap_or_default()),
        };
        let power = 10f64.powf(600.0 * rng.uniform() - 300.0);
        let new = [
            0.0,
            old * (1.0 + 1e-3 * rng.normal()),
            old * 1.01,
            -old,
            old.next_up(),
            rng.normal(),
            power,
            old * power,
            f64::MAX,
            f64::MIN_POSITIVE / 8.0,
            0.5,
        ][pick(&mut rng, 11)];
        match single {
            true => data[at..at + 4].copy_from_slice(&(new as f32).to_le_bytes()),
            false => data[at..at + 8].copy_from_slice(&new.to_le_bytes()),
        }
    }
    size
});

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes) {
        let count = MODELS.fetch_add(1, Ordering::Relaxed) + 1;
        if count % 10_000 == 0 {
            eprintln!("{count} models");
        }
        let certificate = model.verify();
        assert_eq!(certificate, model.certificate());
        let _ = certificate.to_string();
        use_it(&model);
        if let Ok(graph) = model.to_onnx(&BTreeMap::new()) {
            assert!(!graph.bytes.is_empty() && graph.certificate.proved().bounds().is_some());
        }
        let again = model.to_bytes().expect("a loaded model can be written");
        Model::from_bytes(&again).expect("and read again");
    }
});

fn use_it(model: &Model) {
    let n = model.dim();
    let x: Vec<f64> = (0..3 * n).map(|k| [0.5, -3.0, 1e30][k / n]).collect();
    let y: Vec<f64> = (0..3 * n).map(|k| [0.5, -3.0, f64::MAX][k / n]).collect();
    let p = vec![0.5; 3 * model.parameters()];
    let options = InverseOptions::default();
    drop(model.evaluate(&x, &p));
    drop(model.vjp(&x, &p, &vec![1.0; 3 * model.outputs()]));
    if model.is_invertible() {
        check(model.invert(&y, &p, &options));
    }
    if model.is_potential() {
        for minimum in model.minimize(&p, &options).unwrap_or_default() {
            check_minimum(minimum);
        }
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
