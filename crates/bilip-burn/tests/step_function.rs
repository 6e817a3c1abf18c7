//! The paper's first experiment, as a test that training works: a step function under bounds (0.1, 10).

use bilip::{BiLipschitz, Bounds, Rng};
use bilip_burn::data::{shuffled, step};
use bilip_burn::{Adam, BoundsMode, MonLip, MonLipConfig, Schedule};
use burn::backend::{Autodiff, Flex};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData};

type B = Autodiff<Flex>;

fn tensor(values: &[f64]) -> Tensor<B, 2> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    let rows = values.len();
    Tensor::from_data(TensorData::new(values, [rows, 1]), &Default::default())
}

/// Trains as published and returns the frozen layer's loss on the 500-point grid and its measured slopes.
fn train(seed: u64) -> (f64, f64, f64) {
    let bounds = Bounds::new(0.1, 10.0).unwrap();
    let config = MonLipConfig {
        seed,
        ..MonLipConfig::new(1, &[32; 8], BoundsMode::Fixed(bounds))
    };
    let mut model = config.init::<B>(&Default::default()).unwrap();
    let mut optimizer = Adam::default().init::<B, MonLip<B>>();
    let mut rng = Rng::new(1_000 + seed);
    let table = step(1_000, &mut rng).unwrap();
    let schedule = Schedule::one_cycle(1e-2, (0.25, 0.7, 10.0, 100.0));
    let mut count = 0;
    for _epoch in 0..200 {
        for batch in shuffled(1_000, &mut rng).chunks(100) {
            let batch = table.select(batch);
            let error = model.forward(tensor(batch.inputs())) - tensor(batch.targets());
            let loss = (error.clone() * error).mean().mul_scalar(0.5);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(schedule.rate(count, 2_200), model, gradients);
            count += 1;
        }
    }
    let frozen = model.freeze::<f64>().unwrap();
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
    let results: Vec<_> = (0..2).map(train).collect();
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
    assert!(mean <= 0.071, "{mean}");
}
