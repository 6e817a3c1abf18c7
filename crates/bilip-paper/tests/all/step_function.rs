//! The paper's first experiment, as a test that training works: a step function under bounds (0.1,
//! 10).

use bilip::{BiLipschitz, Bounds, Rng};
use bilip_burn::{BoundsMode, MonLipConfig, Schedule, TrainConfig, train};
use bilip_paper::data;
use burn::backend::{Autodiff, Flex};

type B = Autodiff<Flex>;

/// Trains as published and returns the frozen layer's loss on the 500-point grid and its measured
/// slopes.
fn run(seed: u64) -> (f64, f64, f64) {
    let bounds = Bounds::new(0.1, 10.0).unwrap();
    let config = MonLipConfig {
        seed,
        ..MonLipConfig::new(1, vec![32; 8], BoundsMode::Fixed(bounds))
    };
    let model = config.init::<B>(&Default::default()).unwrap();
    let table = data::step(1_000, &mut Rng::new(1_000 + seed)).unwrap();
    let settings = TrainConfig {
        epochs: 200,
        batch: 100,
        schedule: Schedule::one_cycle(1e-2, (0.25, 0.7, 10.0, 100.0)),
        schedule_steps: Some(2_200),
        seed,
        ..Default::default()
    };
    let trained = train::<B, _>(model, &table, None, &settings).unwrap();
    assert_eq!(trained.history.len(), 200);
    let frozen = trained.model.freeze::<f64>().unwrap();
    assert!(frozen.verify().holds());
    let x: Vec<f64> = (0..500).map(|k| -2.0 + 4.0 * k as f64 / 499.0).collect();
    let y = frozen.forward(&x).unwrap();
    let loss = x
        .iter()
        .zip(&y)
        .map(|(x, y)| 0.5 * (y - 2f64.copysign(*x)).powi(2))
        .sum::<f64>()
        / 500.0;
    let slopes: Vec<f64> = y.windows(2).map(|w| (w[1] - w[0]) / (4.0 / 499.0)).collect();
    let (low, high) = slopes
        .iter()
        .fold((f64::MAX, 0.0f64), |(l, h), s| (l.min(*s), h.max(*s)));
    (loss, low, high)
}

#[test]
fn a_step_function_is_learned_to_the_edge_of_the_bounds() {
    let clock = std::time::Instant::now();
    let seeds = 5;
    let results: Vec<_> = (0..seeds).map(run).collect();
    println!("{:.2} s a run", clock.elapsed().as_secs_f64() / seeds as f64);
    for (loss, low, high) in &results {
        println!("loss {loss:.4}, slopes {low:.3} .. {high:.3}");
        // The bounds are proved; the best possible loss under them is 0.0677.
        assert!(*low >= 0.1 * (1.0 - 1e-9) && *high <= 10.0 * (1.0 + 1e-9));
        assert!(
            *low < 0.15 && *high > 9.5,
            "the bounds are not used: {low} .. {high}"
        );
    }
    let mean = results.iter().map(|r| r.0).sum::<f64>() / results.len() as f64;
    println!("mean loss {mean:.4}");
    assert!(mean <= 0.0695, "{mean}");
}
