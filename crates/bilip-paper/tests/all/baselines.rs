//! Every baseline trains, and keeps what it claims.

use bilip::{Bounds, Rng};
use bilip_burn::{BoundsMode, Loss, MlpConfig, Predict, Quadratic, Schedule, TrainConfig, train};
use bilip_paper::baselines::{IcnnConfig, Normalization, ResidualConfig, ResidualNet};
use bilip_paper::data;
use burn::backend::{Autodiff, Flex};
use burn::module::AutodiffModule;
use burn::tensor::{DType, Tensor, TensorData};

type B = Autodiff<Flex>;

fn settings() -> TrainConfig {
    TrainConfig {
        epochs: 15,
        batch: 50,
        schedule: Schedule::one_cycle(5e-3, (0.25, 0.7, 10.0, 100.0)),
        loss: Loss::HalfMse,
        ..Default::default()
    }
}

/// Trains on the Rosenbrock function and checks that the loss fell to a share of what it was.
fn trained<M>(model: M, share: f64) -> M::InnerModule
where
    M: AutodiffModule<B> + Predict<B>,
    M::InnerModule: Predict<Flex>,
{
    let table = data::on_rectangle(data::rosenbrock, 300, &mut Rng::new(1)).unwrap();
    let run = train::<B, _>(model, &table, None, &settings()).unwrap();
    let (first, last) = (run.history[0].train_loss, run.history[14].train_loss);
    assert!(last < share * first, "{first} to {last}");
    run.model.valid()
}

fn points(rng: &mut Rng, rows: usize) -> Vec<f64> {
    (0..2 * rows).map(|_| 4.0 * rng.uniform() - 2.0).collect()
}

fn predict<M: Predict<Flex>>(model: &M, x: &[f64]) -> Vec<f64> {
    let device = Default::default();
    let data = TensorData::new(x.to_vec(), [x.len() / 2, 2]).convert_dtype(DType::F32);
    let x = Tensor::<Flex, 2>::from_data(data, (&device, DType::F32));
    model.predict(x, None).to_data().iter::<f64>().collect()
}

/// The smallest and the largest quotient `‖ΔG‖/‖Δx‖` seen on pairs near and far.
fn quotients(model: &ResidualNet<Flex>) -> (f64, f64) {
    let mut rng = Rng::new(4);
    let (mut low, mut high) = (f64::INFINITY, 0.0f64);
    for scale in [4.0, 0.3] {
        let a = points(&mut rng, 2_000);
        let b: Vec<f64> = a.iter().map(|v| v + scale * (rng.uniform() - 0.5)).collect();
        let (fa, fb) = (predict(model, &a), predict(model, &b));
        for k in 0..2_000 {
            let distance = |u: &[f64], v: &[f64]| (u[2 * k] - v[2 * k]).hypot(u[2 * k + 1] - v[2 * k + 1]);
            let between = distance(&a, &b);
            if between > 0.02 {
                let quotient = distance(&fa, &fb) / between;
                low = low.min(quotient);
                high = high.max(quotient);
            }
        }
    }
    (low, high)
}

#[test]
fn residual_baselines_train_and_keep_their_bounds() {
    let fixed = BoundsMode::Fixed(Bounds::new(0.1, 6.0).unwrap());
    let device = Default::default();
    for bounds in [fixed, BoundsMode::Distortion(40.0)] {
        let resnet = ResidualConfig::i_resnet(2, &[32, 32], 3, bounds);
        let densenet = ResidualConfig::i_densenet(2, &[16, 16, 16], 3, bounds);
        for config in [
            resnet.clone(),
            densenet.clone(),
            resnet.published(),
            densenet.published(),
        ] {
            let name = format!(
                "{:?} {:?} {:?}",
                config.branch, config.normalization, config.bounds
            );
            let model = trained(Quadratic::new(config.init::<B>(&device).unwrap()), 0.5);
            let net = model.net();
            let claimed = net.bounds().unwrap();
            if bounds == fixed {
                assert!((claimed.mu() - 0.1).abs() < 1e-12 && (claimed.nu() - 6.0).abs() < 1e-12);
            } else {
                assert!(
                    (claimed.distortion() / 40.0 - 1.0).abs() < 1e-9,
                    "{name}: {claimed:?}"
                );
                assert!((claimed.nu() - 8.0).abs() > 1e-3, "{name}: ν was not learned");
            }
            let certified = net.certified_bounds().unwrap();
            let (low, high) = quotients(net);
            println!("{name}: claimed {claimed}, certified {certified}, measured {low:.4} .. {high:.4}");
            // Two per cent: rounding of f32 on short pairs.
            assert!(
                low >= 0.98 * certified.mu() && high <= 1.02 * certified.nu(),
                "{name}"
            );
            assert!(
                low >= 0.98 * claimed.mu() && high <= 1.02 * claimed.nu(),
                "{name}"
            );
            match config.normalization {
                // The power iteration sees the norm from below, but closely.
                Normalization::Spectral => assert!(
                    certified.nu() <= 1.02 * claimed.nu() && certified.mu() >= 0.9 * claimed.mu(),
                    "{name}"
                ),
                // A Frobenius norm leaves most of the room unused: that is the defect of the
                // published variant.
                Normalization::Frobenius => assert!(
                    certified.nu() < 0.9 * claimed.nu() && certified.mu() > 1.1 * claimed.mu(),
                    "{name}"
                ),
            }
        }
    }
}

#[test]
fn a_convex_network_trains_and_is_convex() {
    let device = Default::default();
    let model = trained(
        IcnnConfig::new(2, vec![24, 24, 24])
            .with_seed(3)
            .init::<B>(&device)
            .unwrap(),
        0.8,
    );
    let mut rng = Rng::new(9);
    let (a, b) = (points(&mut rng, 3_000), points(&mut rng, 3_000));
    let middle: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (a + b) / 2.0).collect();
    let (fa, fb, fm) = (predict(&model, &a), predict(&model, &b), predict(&model, &middle));
    let mut bent = 0;
    for k in 0..3_000 {
        let chord = (fa[k] + fb[k]) / 2.0;
        assert!(
            fm[k] <= chord + 1e-5 * (1.0 + chord.abs()),
            "{} above {chord}",
            fm[k]
        );
        bent += usize::from(fm[k] < chord - 1e-3);
    }
    assert!(bent > 1_000, "convex, but hardly curved");
}

#[test]
fn a_perceptron_trains_under_the_potential() {
    let device = Default::default();
    let net = MlpConfig::new(2, vec![32, 32, 2])
        .with_seed(1)
        .init::<B>(&device)
        .unwrap();
    trained(Quadratic::new(net), 0.5);
}

#[test]
fn impossible_sizes_are_errors() {
    let device = Default::default();
    let bounds = BoundsMode::Distortion(2.0);
    for (n, hidden, depth) in [
        (0, vec![4], 1),
        (2, vec![], 1),
        (2, vec![4, 0], 1),
        (2, vec![4], 0),
    ] {
        let config = ResidualConfig::i_resnet(n, &hidden, depth, bounds);
        assert!(config.init::<B>(&device).is_err());
    }
    assert!(
        ResidualConfig::i_resnet(2, &[4], 1, BoundsMode::Distortion(1.0))
            .init::<B>(&device)
            .is_err()
    );
    assert!(IcnnConfig::new(2, vec![]).init::<B>(&device).is_err());
    assert!(MlpConfig::new(0, vec![3]).init::<B>(&device).is_err());
}
