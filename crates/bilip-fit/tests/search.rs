//! Searches at small budgets: what they find, what they say of it, and that they are reproducible.

use bilip::Rng;
use bilip_fit::{Answer, Fit, FitSettings, ModelKind, Table, fit};

/// Rows of a function of inputs that are uniform in [−1, 1].
fn table(rows: usize, n: usize, noise: f64, f: impl Fn(&[f64]) -> f64) -> Table {
    let mut rng = Rng::new(5);
    let names = (0..n).map(|k| format!("x{k}")).chain(["y".to_string()]).collect();
    let mut values = Vec::new();
    for _ in 0..rows {
        let x: Vec<f64> = (0..n).map(|_| 2.0 * rng.uniform() - 1.0).collect();
        let y = f(&x) + noise * rng.normal();
        values.extend(x.into_iter().chain([y]));
    }
    Table::new(Some(names), n + 1, values).unwrap()
}

fn settings(budget: f64) -> FitSettings {
    FitSettings {
        budget,
        hidden: Some(vec![16, 16]),
        ..FitSettings::new(ModelKind::PlNet, &["y"])
    }
}

fn answer(fit: &Fit) -> &Answer {
    fit.answer
        .as_ref()
        .expect("a search for a minimum gives an answer")
}

#[test]
fn a_quadratic_function_is_found_exactly_and_stored_with_a_proof() {
    let f = |x: &[f64]| 3.0 + (x[0] - 0.3).powi(2) + 4.0 * (x[1] + 0.2 + 0.5 * x[0]).powi(2);
    let fit = fit(&table(200, 2, 0.0, f), &settings(0.01)).unwrap();
    assert!(fit.model.certificate().holds());
    let found = answer(&fit);
    assert!(found.holds_up(), "{:?}", found.doubts);
    assert!(
        (found.x[0].1 - 0.3).abs() < 1e-5 && (found.x[1].1 + 0.35).abs() < 1e-5,
        "{:?}",
        found.x
    );
    assert!((found.value - 3.0).abs() < 1e-6);
    assert_eq!(fit.chosen.as_ref().unwrap().tau, None);
}

#[test]
fn a_curved_valley_is_answered_better_than_by_the_best_row() {
    let f = |x: &[f64]| (x[0] - 0.2).powi(2) + 5.0 * (x[1] - x[0].powi(2)).powi(2);
    let fit = fit(&table(400, 2, 0.02, f), &settings(0.1)).unwrap();
    let found = answer(&fit);
    assert!(found.holds_up(), "{:?}", found.doubts);
    let x: Vec<f64> = found.x.iter().map(|v| v.1).collect();
    assert!(f(&x) < 0.01, "{x:?}: {}", f(&x));
    assert!(
        found.interval.0 < 0.0 && found.interval.1 > 0.0,
        "{:?}",
        found.interval
    );
}

#[test]
fn several_minima_and_minima_at_the_edge_are_said() {
    let wells = |x: &[f64]| (4.0 * x[0].powi(2) - 1.0).powi(2) + x[1].powi(2);
    let two = fit(&table(500, 2, 0.0, wells), &settings(0.1)).unwrap();
    assert!(!answer(&two).single_minimum && !answer(&two).holds_up());
    let slope = |x: &[f64]| (1.5 * x[0]).exp() + x[1];
    let edge = fit(&table(300, 2, 0.02, slope), &settings(0.1)).unwrap();
    assert!(!answer(&edge).inside_data && !answer(&edge).holds_up());
}

#[test]
fn few_rows_and_bounds_given_by_hand_are_searched_as_far_as_they_can_be() {
    let f = |x: &[f64]| (x[0] - 0.2).powi(2) + x[1].powi(4);
    for (rows, validation) in [(10, 0.1), (10, 0.9), (21, 0.0), (25, 0.1)] {
        let settings = FitSettings {
            validation,
            ..settings(0.002)
        };
        let fit = fit(&table(rows, 2, 0.0, f), &settings).unwrap();
        assert_eq!(fit.warnings.len(), usize::from(rows == 10), "{:?}", fit.warnings);
        assert!(fit.model.certificate().holds());
    }
    let given = FitSettings {
        mu: Some(0.2),
        nu: Some(4.0),
        ..settings(0.002)
    };
    let fit = fit(&table(100, 2, 0.0, f), &given).unwrap();
    assert_eq!(fit.chosen.as_ref().unwrap().tau, Some(20.0));
    assert!(fit.model.certificate().holds());
}

#[test]
fn the_number_of_threads_and_an_interruption_change_nothing() {
    let f = |x: &[f64]| (x[0] - 0.2).powi(4) + x[1].powi(2) * (1.0 + 0.5 * x[0]);
    let table = table(150, 2, 0.01, f);
    let with = |threads: usize, settings: &FitSettings| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| fit(&table, settings).unwrap())
            .model
            .to_bytes()
            .unwrap()
    };
    let plain = settings(0.02);
    let once = with(1, &plain);
    assert!(once == with(3, &plain));
    // Runs that are done are not done again: with those of a whole search, another folder's worth.
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("checkpoints");
    let stored = FitSettings {
        checkpoints: Some((folder.clone(), "test".into())),
        ..plain
    };
    assert!(once == with(2, &stored));
    let mut runs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    runs.sort();
    assert!(runs.len() > 10);
    for path in runs
        .iter()
        .filter(|p| p.file_name().is_some_and(|n| n != "run"))
        .step_by(3)
    {
        std::fs::remove_file(path).unwrap();
    }
    let resumed = FitSettings {
        resume: true,
        ..stored
    };
    assert!(once == with(2, &resumed));
}

#[test]
fn a_monotone_layer_may_decrease_and_says_when_a_map_does_neither() {
    let map = |f: fn(f64, f64) -> (f64, f64)| {
        let mut rng = Rng::new(6);
        let mut values = Vec::new();
        for _ in 0..150 {
            let (a, b) = (2.0 * rng.uniform() - 1.0, 2.0 * rng.uniform() - 1.0);
            let (u, v) = f(a, b);
            values.extend([a, b, u, v]);
        }
        Table::new(Some(["a", "b", "u", "v"].map(String::from).to_vec()), 4, values).unwrap()
    };
    let settings = FitSettings {
        budget: 0.1,
        hidden: Some(vec![16, 16]),
        ..FitSettings::new(ModelKind::MonLip, &["u", "v"])
    };
    let decreasing = map(|a, b| (7.0 - 2.0 * a - 0.3 * b.powi(3), 1.0 - b - 0.2 * a));
    let found = fit(&decreasing, &settings).unwrap();
    assert!(found.doubts.is_empty() && found.model.certificate().holds());
    let x = [0.2, -0.4];
    let y = found.model.evaluate(&x, &[]).unwrap();
    assert!((y[0] - 6.6192).abs() < 0.1 && (y[1] - 1.36).abs() < 0.1, "{y:?}");
    let exchanged = fit(&map(|a, b| (b, a)), &settings).unwrap();
    assert!(exchanged.doubts[0].contains("not monotone"));
}
