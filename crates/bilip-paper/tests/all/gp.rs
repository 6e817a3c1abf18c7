//! Gaussian processes at the end of trained feature maps.

use bilip::{BiLipschitz, Bounds, Rng, metrics};
use bilip_burn::{
    Accumulation, BiLipNetConfig, BoundsMode, Dataset, GpConfig, GpNet, Loss, MonLipConfig, Predict,
    Schedule, TrainConfig, train,
};
use bilip_paper::baselines::SngpConfig;
use bilip_paper::data;
use burn::backend::{Autodiff, Flex};
use burn::module::AutodiffModule;
use burn::tensor::{Tensor, TensorData};

type B = Autodiff<Flex>;

fn settings(loss: Loss, epochs: usize) -> TrainConfig {
    TrainConfig {
        epochs,
        batch: 64,
        loss,
        schedule: Schedule::one_cycle(3e-3, (0.25, 0.7, 10.0, 100.0)),
        ..TrainConfig::default()
    }
}

fn classes(table: &Dataset) -> Vec<usize> {
    table.targets().iter().map(|v| *v as usize).collect()
}

#[test]
fn a_classifier_knows_its_data_and_what_lies_outside() {
    let device = Default::default();
    let table = data::moons(300, &mut Rng::new(1)).unwrap();
    let bounds = Bounds::new(0.729, 1.331).unwrap();
    let layer = MonLipConfig::new(16, vec![16, 16], BoundsMode::Fixed(bounds));
    let net = BiLipNetConfig::new(1, layer).init::<B>(&device).unwrap();
    for (orthogonal, normalize) in [(false, false), (true, false), (false, true)] {
        let head = GpConfig {
            features: 128,
            orthogonal,
            normalize,
            ..GpConfig::new(16, 2)
        };
        let model = GpNet::new(net.clone(), head.init(&device).unwrap())
            .with_random_lift(2, 16, 3, &device)
            .unwrap();
        let trained = train::<B, _>(model, &table, None, &settings(Loss::CrossEntropy, 40)).unwrap();
        let model = trained.model.valid();
        let head = model
            .posterior(&table, Loss::CrossEntropy, 1.0, Accumulation::Exact, &device)
            .unwrap();

        // The frozen head says what the module says.
        let x = &table.inputs()[..40];
        let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
        let rows = Tensor::<Flex, 2>::from_data(TensorData::new(narrow, [20, 2]), &device);
        let logits: Vec<f64> = model.predict(rows, None).to_data().iter::<f64>().collect();
        let (mean, _) = head.predict(&model.hidden_rows(x, 2, &device)).unwrap();
        for (a, b) in logits.iter().zip(&mean) {
            assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "{a} against {b}");
        }

        let certificate = trained.model.net().freeze::<f64>().unwrap().verify();
        assert!(certificate.holds());
        let inside = model.hidden_rows(table.inputs(), 2, &device);
        let p = head.probabilities(&inside, std::f64::consts::PI / 8.0).unwrap();
        assert!(metrics::accuracy(&p, &classes(&table)).unwrap() > 0.97);
        if normalize {
            // Normalized rows forget how far away they were.
            continue;
        }
        let outside = data::moons_outliers(200, &mut Rng::new(2));
        let (_, known) = head.predict(&inside).unwrap();
        let (_, unknown) = head.predict(&model.hidden_rows(&outside, 2, &device)).unwrap();
        assert!(metrics::auroc(&known, &unknown).unwrap() > 0.95);
    }
}

#[test]
fn the_posterior_of_a_regression_is_exact_and_a_moving_average_comes_close() {
    let device = Default::default();
    let table = data::rosenbrock_n(2, 512, &mut Rng::new(1)).unwrap();
    let layer = MonLipConfig::new(2, vec![8], BoundsMode::Fixed(Bounds::new(0.5, 2.0).unwrap()));
    let net = BiLipNetConfig::new(1, layer).init::<B>(&device).unwrap();
    let head = GpConfig {
        features: 32,
        ..GpConfig::new(2, 1)
    };
    let model = GpNet::new(net, head.init::<B>(&device).unwrap());
    let trained = train::<B, _>(model, &table, None, &settings(Loss::HalfMse, 3)).unwrap();
    let model = trained.model.valid();
    let posterior = |accumulation| model.posterior(&table, Loss::HalfMse, 0.1, accumulation, &device);
    let exact = posterior(Accumulation::Exact).unwrap();
    // The same by the closed form, on what the head sees.
    let h = model.hidden_rows(table.inputs(), 2, &device);
    let closed = bilip::GpHead::regression(exact.features().clone(), &h, table.targets(), 0.1).unwrap();
    let points = &h[..60];
    let (a, b) = (
        exact.predict(points).unwrap().1,
        closed.predict(points).unwrap().1,
    );
    let average = posterior(Accumulation::Momentum {
        momentum: 0.9,
        batch: 32,
    })
    .unwrap();
    let c = average.predict(points).unwrap().1;
    for ((a, b), c) in a.iter().zip(&b).zip(&c) {
        assert!((a - b).abs() <= 1e-8, "{a} against {b}");
        assert!((c / a).ln().abs() < 1.0, "{c} against {a}");
    }
    for momentum in [-0.1, 1.0, f64::NAN] {
        assert!(posterior(Accumulation::Momentum { momentum, batch: 32 }).is_err());
    }
    assert!(
        model
            .posterior(&table, Loss::HalfMse, 0.0, Accumulation::Exact, &device)
            .is_err()
    );
}

#[test]
fn sngp_trains_within_the_bounds_that_are_proved_for_it() {
    let device = Default::default();
    let table = data::moons(300, &mut Rng::new(1)).unwrap();
    let net = SngpConfig::new(16, 3, 0.5).init::<B>(&device).unwrap();
    let head = GpConfig {
        features: 128,
        ..GpConfig::new(16, 2)
    };
    let model = GpNet::new(net, head.init(&device).unwrap())
        .with_random_lift(2, 16, 3, &device)
        .unwrap();
    let trained = train::<B, _>(model, &table, None, &settings(Loss::CrossEntropy, 40)).unwrap();
    let (claimed, certified) = (
        trained.model.net().bounds().unwrap(),
        trained.model.net().certified_bounds().unwrap(),
    );
    assert!((claimed.mu() - 0.125).abs() < 1e-12 && (claimed.nu() - 3.375).abs() < 1e-12);
    // The power iteration lags behind the weights by a little.
    assert!(certified.nu() < 1.1 * claimed.nu() && certified.mu() > 0.8 * claimed.mu());
    let model = trained.model.valid();
    let x = table.inputs();
    let h: Vec<f64> = {
        let lift = model.lift().unwrap();
        x.chunks_exact(2)
            .flat_map(|p| {
                (0..16)
                    .map(|j| p[0] * lift[(0, j)] + p[1] * lift[(1, j)])
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let y = model.mapped_rows(&h, 16, &device);
    for i in (0..598).step_by(2) {
        let distance = |v: &[f64]| -> f64 {
            (0..16)
                .map(|j| (v[i / 2 * 16 + j] - v[(i / 2 + 1) * 16 + j]).powi(2))
                .sum::<f64>()
                .sqrt()
        };
        let slope = distance(&y) / distance(&h);
        assert!(
            slope >= certified.mu() * 0.999 && slope <= certified.nu() * 1.001,
            "{slope}"
        );
    }
    for (c, dropout) in [(0.0, 0.1), (1.0, 0.1), (0.5, 1.0), (0.5, -0.1)] {
        let config = SngpConfig::new(4, 1, c).with_dropout(dropout);
        assert!(config.init::<B>(&device).is_err());
    }
    assert!(SngpConfig::new(4, 0, 0.5).init::<B>(&device).is_err());
}
