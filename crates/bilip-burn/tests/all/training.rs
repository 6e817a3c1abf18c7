//! The training loop: resumption after any interruption, damaged checkpoints, early stopping, bad
//! settings.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bilip::{Bounds, Rng};
use bilip_burn::{
    Adam, BiLipNetConfig, BoundsMode, Columns, Dataset, Epoch, Error, Loss, MonLipConfig, OptimizerKind,
    OrthogonalKind, PartialConfig, PartialPlNet, PlNet, Schedule, TrainConfig, Trained, time_spent, train,
};
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

type B = Autodiff<Flex>;

/// Long enough to be killed ten times on the way.
const EPOCHS: usize = 500;

/// The Rosenbrock function `(x−a)²/200 + ½(y−bx²)²` on [−2, 2]×[−1, 3], with a and b as the
/// parameters.
fn moving_surface(rows: usize, seed: u64) -> Dataset {
    let mut rng = Rng::new(seed);
    let (mut x, mut p, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let (u, v) = (4.0 * rng.uniform() - 2.0, 4.0 * rng.uniform() - 1.0);
        let (a, b) = (2.0 * rng.uniform() - 1.0, 2.0 * rng.uniform() - 1.0);
        x.extend([u, v]);
        p.extend([a, b]);
        y.push((u - a).powi(2) / 200.0 + 0.5 * (v - b * u * u).powi(2));
    }
    let columns = Columns {
        parameters: 2,
        ..Columns::new(2, 1)
    };
    Dataset::with_parameters(columns, x, p, y).unwrap()
}

/// The same with a = b = 1 and no parameters.
fn surface(rows: usize, seed: u64) -> Dataset {
    let x = moving_surface(rows, seed).inputs().to_vec();
    let value = |x: &[f64]| (x[0] - 1.0).powi(2) / 200.0 + 0.5 * (x[1] - x[0] * x[0]).powi(2);
    let y = x.chunks(2).map(value).collect();
    Dataset::new(x, 2, y, 1).unwrap()
}

/// Two classes: inside and outside of the unit circle.
fn classes(rows: usize, seed: u64) -> Dataset {
    let x = Rng::new(seed).normals(2 * rows);
    let class = |x: &[f64]| f64::from(x[0].hypot(x[1]) > 1.0);
    let y = x.chunks(2).map(class).collect();
    Dataset::new(x, 2, y, 1).unwrap()
}

fn model(seed: u64) -> PlNet<B> {
    let layer = MonLipConfig {
        seed,
        ..MonLipConfig::new(2, vec![12, 12], BoundsMode::Distortion(30.0))
    };
    PlNet::new(
        BiLipNetConfig::new(2, layer)
            .init::<B>(&Default::default())
            .unwrap(),
    )
}

fn settings(folder: Option<&Path>) -> TrainConfig {
    TrainConfig {
        epochs: EPOCHS,
        batch: 32,
        schedule: Schedule::one_cycle(5e-3, (0.2, 0.5, 10.0, 100.0)),
        checkpoints: folder.map(|f| f.to_owned()),
        checkpoint_every: 1,
        ..Default::default()
    }
}

fn run(folder: Option<&Path>) -> Trained<PlNet<B>> {
    let table = surface(200, 1);
    let held_out = surface(50, 2);
    train::<B, _>(model(3), &table, Some(&held_out), &settings(folder)).unwrap()
}

/// Every parameter's bits.
fn bits(model: &PlNet<B>) -> Vec<u32> {
    struct Collect(Vec<u32>);
    impl ModuleVisitor<B> for Collect {
        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<B, D>>) {
            self.0
                .extend(parameter.val().to_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut all = Collect(Vec::new());
    model.visit(&mut all);
    all.0
}

/// Not a test of its own: what the child process of the next one runs.
#[test]
fn child() {
    if let Ok(folder) = std::env::var("BILIP_TEST_CHILD") {
        let folder = Path::new(&folder);
        let text: Vec<String> = bits(&run(Some(folder)).model)
            .iter()
            .map(|b| b.to_string())
            .collect();
        std::fs::write(folder.join("result"), text.join(" ")).unwrap();
    }
}

#[test]
fn a_run_killed_ten_times_ends_where_the_uninterrupted_one_ends() {
    let expected = bits(&run(None).model);
    let folder = tempfile::tempdir().unwrap();
    let spawn = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "training::child", "--nocapture"])
            .env("BILIP_TEST_CHILD", folder.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut rng = Rng::new(std::process::id().into());
    let mut interrupted = 0;
    for _ in 0..10 {
        let mut child = spawn();
        std::thread::sleep(Duration::from_millis(20 + (60.0 * rng.uniform()) as u64));
        // SIGKILL: no chance to tidy up.
        interrupted += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(spawn().wait().unwrap().success());
    let text = std::fs::read_to_string(folder.path().join("result")).unwrap();
    let found: Vec<u32> = text.split(' ').map(|b| b.parse().unwrap()).collect();
    assert!(found == expected, "the weights differ");
    println!("{interrupted} of 10 kills met a running child");
    assert!(interrupted >= 5, "the runs ended before they could be killed");
    // Two checkpoints are kept; what a kill left unfinished is not mistaken for one.
    let kept = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|e| {
            e.as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".safetensors")
        })
        .count();
    assert_eq!(kept, 2);
}

#[test]
fn a_damaged_checkpoint_costs_one_interval_and_a_warning() {
    let expected = bits(&run(None).model);
    for damage in ["flip", "cut", "empty"] {
        let folder = tempfile::tempdir().unwrap();
        let mut short = settings(Some(folder.path()));
        short.epochs = 20;
        // The schedule is that of the whole run.
        short.schedule_steps = Some(EPOCHS * 200usize.div_ceil(32));
        let table = surface(200, 1);
        let held_out = surface(50, 2);
        train::<B, _>(model(3), &table, Some(&held_out), &short).unwrap();
        let newest = folder.path().join("epoch-000000020.safetensors");
        let mut bytes = std::fs::read(&newest).unwrap();
        match damage {
            "flip" => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            "cut" => bytes.truncate(bytes.len() - 7),
            _ => bytes.clear(),
        }
        std::fs::write(&newest, bytes).unwrap();
        let spent = time_spent(folder.path()).unwrap();
        let resumed = run(Some(folder.path()));
        // The time before the interruption counts.
        assert!(spent > 0.0 && time_spent(folder.path()).unwrap() > spent);
        assert_eq!(resumed.resumed_from, Some(19), "{damage}");
        assert_eq!(resumed.warnings.len(), 1);
        assert!(
            resumed.warnings[0].contains("falling back"),
            "{}",
            resumed.warnings[0]
        );
        assert_eq!(resumed.history.len(), EPOCHS);
        assert!(bits(&resumed.model) == expected, "{damage}: the weights differ");
    }
}

#[test]
fn learned_bounds_keep_their_distortion_and_the_fit_improves() {
    let trained = run(None);
    let (first, last) = (&trained.history[0], &trained.history[EPOCHS - 1]);
    assert!(
        last.train_loss < 0.2 * first.train_loss,
        "{} {}",
        first.train_loss,
        last.train_loss
    );
    assert!(last.validation_loss.unwrap() < first.validation_loss.unwrap());
    for epoch in &trained.history {
        assert!((epoch.bounds.unwrap().distortion() / 30.0 - 1.0).abs() < 1e-5);
    }
    assert_ne!(first.bounds, last.bounds);
    let frozen = trained.model.freeze::<f64>().unwrap();
    assert!(frozen.verify().holds());
    assert_eq!(trained.history.len(), EPOCHS);
}

#[test]
fn every_optimizer_schedule_and_loss_trains() {
    let table = classes(200, 4);
    let bounds = BoundsMode::Learned(Bounds::new(0.3, 3.0).unwrap());
    for (optimizer, schedule) in [
        (
            OptimizerKind::Adam(Adam {
                decay: 1e-3,
                ..Default::default()
            }),
            Schedule::Cosine {
                rate: 1e-2,
                last: 0.0,
            },
        ),
        (
            OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
            Schedule::Steps {
                warm: 0.0,
                rate: 3e-2,
                at: vec![0.5],
                factor: 0.2,
            },
        ),
        (
            OptimizerKind::Sgd {
                momentum: 0.0,
                nesterov: false,
            },
            Schedule::Constant { rate: 5e-2 },
        ),
    ] {
        // Logits of two classes: a bi-Lipschitz map of the plane.
        let net = BiLipNetConfig::new(1, MonLipConfig::new(2, vec![16, 16], bounds))
            .init::<B>(&Default::default())
            .unwrap();
        let config = TrainConfig {
            epochs: 20,
            batch: 50,
            loss: Loss::CrossEntropy,
            optimizer,
            schedule,
            clip: Some(1.0),
            ..Default::default()
        };
        let trained = train::<B, _>(net, &table, None, &config).unwrap();
        assert!(
            trained.history[19].train_loss < 0.8 * trained.history[0].train_loss,
            "{optimizer:?}"
        );
    }
}

#[test]
fn partial_networks_train_and_freeze() {
    let config = PartialConfig {
        net: BiLipNetConfig::new(
            1,
            MonLipConfig::new(2, vec![16, 16], BoundsMode::Fixed(Bounds::new(0.1, 8.0).unwrap())),
        ),
        parameters: 2,
        orthogonal_bias: vec![8],
        hidden_bias: vec![8, 8],
    };
    let model = PartialPlNet::new(config.init::<B>(&Default::default()).unwrap());
    let table = moving_surface(300, 5);
    let settings = TrainConfig {
        epochs: 40,
        batch: 50,
        schedule: Schedule::Constant { rate: 5e-3 },
        ..Default::default()
    };
    let trained = train::<B, _>(model, &table, None, &settings).unwrap();
    assert!(trained.history[39].train_loss < 0.5 * trained.history[0].train_loss);
    let frozen = trained.model.freeze::<f64>().unwrap();
    let minima = frozen
        .minimize(&[0.5, 0.5, -0.5, 0.25], &Default::default())
        .unwrap();
    assert!(minima.iter().all(|m| m.distance_bound <= 1e-8));

    // With an offset of its own for every p: at first the same function.
    let plain = PartialPlNet::new(config.init::<B>(&Default::default()).unwrap());
    let before = plain.freeze::<f64>().unwrap();
    let model = plain.with_offset_network(&[8], 3).unwrap();
    let (x, p) = ([0.3, -0.2], [0.5, 0.25]);
    let start = model.freeze::<f64>().unwrap();
    assert_eq!(start.value(&x, &p).unwrap(), before.value(&x, &p).unwrap());
    let trained = train::<B, _>(model, &table, None, &settings).unwrap();
    assert!(trained.history[39].train_loss < 0.5 * trained.history[0].train_loss);
    let frozen = trained.model.freeze::<f64>().unwrap();
    assert!(frozen.verify().holds());
    let minima = frozen
        .minimize(&[0.5, 0.5, -0.5, 0.25], &Default::default())
        .unwrap();
    assert!(minima.iter().all(|m| m.distance_bound <= 1e-8));
    assert_ne!(minima[0].value, minima[1].value);
}

#[test]
fn patience_stops_a_run_that_no_longer_improves() {
    let table = surface(64, 1);
    let config = TrainConfig {
        epochs: 500,
        batch: 64,
        // So small that nothing changes in f32 after a while.
        schedule: Schedule::Steps {
            warm: 0.0,
            rate: 1e-3,
            at: vec![0.01],
            factor: 1e-12,
        },
        patience: Some(3),
        ..Default::default()
    };
    let trained = train::<B, _>(model(1), &table, Some(&table), &config).unwrap();
    assert!(
        trained.stopped_early && trained.history.len() < 50,
        "{}",
        trained.history.len()
    );
}

#[test]
fn bad_settings_and_divergence_are_errors_that_say_so() {
    let table = surface(64, 1);
    let good = || TrainConfig {
        epochs: 5,
        ..Default::default()
    };
    let wrong = Dataset::new(vec![0.5; 30], 3, vec![1.0; 10], 1).unwrap();
    let attempt =
        |config: TrainConfig, table: &Dataset| train::<B, _>(model(1), table, None, &config).map(|_| ());
    for config in [
        TrainConfig { epochs: 0, ..good() },
        TrainConfig { batch: 0, ..good() },
        TrainConfig {
            checkpoint_every: 0,
            ..good()
        },
        TrainConfig {
            clip: Some(-1.0),
            ..good()
        },
        TrainConfig {
            patience: Some(3),
            ..good()
        },
        TrainConfig {
            schedule: Schedule::Constant { rate: 0.0 },
            ..good()
        },
        TrainConfig {
            checkpoints: Some("/dev/null/nowhere".into()),
            ..good()
        },
    ] {
        assert!(attempt(config, &table).is_err());
    }
    assert!(attempt(good(), &wrong).is_err());
    let wild = TrainConfig {
        epochs: 50,
        schedule: Schedule::Constant { rate: 1e30 },
        ..good()
    };
    match attempt(wild, &table) {
        Err(Error::Diverged { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(
        MonLipConfig::new(0, vec![4], BoundsMode::Distortion(2.0))
            .init::<Flex>(&Default::default())
            .is_err()
    );
    assert!(
        MonLipConfig::new(2, vec![4, 0], BoundsMode::Distortion(2.0))
            .init::<Flex>(&Default::default())
            .is_err()
    );
    assert!(
        MonLipConfig::new(2, vec![4], BoundsMode::Distortion(1.0))
            .init::<Flex>(&Default::default())
            .is_err()
    );
}

#[test]
fn a_known_minimizer_stays_where_it_is() {
    let device = Default::default();
    let config = BiLipNetConfig {
        orthogonal: OrthogonalKind::Householder(2),
        ..BiLipNetConfig::new(
            2,
            MonLipConfig::new(2, vec![12, 12], BoundsMode::Distortion(30.0)),
        )
    };
    let x0 = vec![1.0, 1.0];
    let model = PlNet::with_minimizer(config.init::<B>(&device).unwrap(), x0.clone()).unwrap();
    let table = surface(200, 1);
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("run.json");
    let settings = TrainConfig {
        epochs: 10,
        metrics: Some(metrics.clone()),
        ..settings(None)
    };
    let run = train::<B, _>(model, &table, None, &settings).unwrap();
    assert!(run.history[9].train_loss < run.history[0].train_loss);
    let frozen = run.model.freeze::<f64>().unwrap();
    assert!(frozen.verify().holds());
    let minimum = frozen.minimize(&Default::default()).unwrap();
    assert_eq!(minimum.x, x0);
    // The frozen network is the module, Householder layers and shift included.
    let x = [0.3, -0.7, 1.0, 1.0];
    let module = run
        .model
        .forward(Tensor::from_data([[0.3, -0.7], [1.0, 1.0]], &device));
    let module: Vec<f64> = module.to_data().iter::<f64>().collect();
    for (a, b) in frozen.value(&x).unwrap().iter().zip(&module) {
        assert!((a - b).abs() < 1e-5 * (1.0 + a.abs()), "{a} against {b}");
    }
    // The figures of all epochs are on disk, as JSON by the file's name.
    let written: Vec<Epoch> = serde_json::from_slice(&std::fs::read(metrics).unwrap()).unwrap();
    assert_eq!(written, run.history);
    let wrong = BiLipNetConfig::new(1, MonLipConfig::new(2, vec![4], BoundsMode::Distortion(2.0)));
    assert!(PlNet::with_minimizer(wrong.init::<B>(&device).unwrap(), vec![1.0]).is_err());
}

#[test]
fn metrics_are_a_table_and_a_place_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let table = surface(50, 1);
    let with = |path: std::path::PathBuf| TrainConfig {
        epochs: 3,
        metrics: Some(path),
        ..settings(None)
    };
    let path = folder.path().join("run.csv");
    let run = train::<B, _>(model(1), &table, None, &with(path.clone())).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows[0], "epoch,train_loss,validation_loss,rate,mu,nu");
    assert_eq!(rows.len(), 4);
    for (row, epoch) in rows[1..].iter().zip(&run.history) {
        let start = format!("{},{},,{},", epoch.epoch, epoch.train_loss, epoch.rate);
        assert!(row.starts_with(&start), "{row} {start}");
    }
    let nowhere = folder.path().join("no such folder").join("run.csv");
    let error = train::<B, _>(model(1), &table, None, &with(nowhere)).unwrap_err();
    assert!(error.to_string().contains("no such folder"), "{error}");
}
