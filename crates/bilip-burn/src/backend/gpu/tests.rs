//! The GPU against the CPU, for whichever backend is built in; skipped, with a message, where there
//! is no such device.

use std::sync::Arc;

use bilip::{Activation, Rng};
use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};

use crate::spec::{AdamStep, Layout, Transposed};

#[cfg(feature = "cuda")]
type Gpu = burn::backend::Cuda;
#[cfg(not(feature = "cuda"))]
type Gpu = burn::backend::Wgpu;

fn available() -> bool {
    let device = if cfg!(feature = "cuda") {
        crate::Device::Cuda(0)
    } else {
        crate::Device::Wgpu
    };
    let found = device.check();
    if let Err(reason) = &found {
        eprintln!("skipped: {reason}");
    }
    found.is_ok()
}

fn tensor<B: Backend, const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<B, D> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), (&Default::default(), DType::F32))
}

fn numbers<B: Backend, const D: usize>(t: Tensor<B, D>) -> Vec<f64> {
    t.to_data().iter::<f64>().collect()
}

/// The value and the gradients of x, φ, bounds and bias of one layer.
fn layer<B: AutodiffBackend>(layout: &Arc<Layout>, rows: usize, bias_rows: usize) -> [Vec<f64>; 5] {
    let mut rng = Rng::new(5);
    let x = tensor::<B, 2>(&rng.normals(rows * layout.n), [rows, layout.n]).require_grad();
    let mut phi = rng.normals(layout.len);
    phi[layout.gain_q] = 1.4;
    phi[layout.gain_ab.clone()].fill(1.8);
    let phi = tensor::<B, 1>(&phi, [layout.len]).require_grad();
    let bounds = tensor::<B, 1>(&[0.3, 2.0], [2]).require_grad();
    let m = layout.hidden();
    let bias = tensor::<B, 2>(&rng.normals(bias_rows * m), [bias_rows, m]).require_grad();
    let weight = tensor::<B, 2>(&rng.normals(rows * layout.n), [rows, layout.n]);
    let y = crate::ops::monlip(x.clone(), phi.clone(), bounds.clone(), bias.clone(), layout);
    let gradients = (y.clone() * weight).sum().backward();
    [
        numbers(y),
        numbers(x.grad(&gradients).unwrap()),
        numbers(phi.grad(&gradients).unwrap()),
        numbers(bounds.grad(&gradients).unwrap()),
        numbers(bias.grad(&gradients).unwrap()),
    ]
}

#[track_caller]
fn close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let scale = theirs.iter().fold(1e-3, |s: f64, v| s.max(v.abs()));
    let worst = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| {
            if a.is_finite() {
                (a - b).abs()
            } else {
                f64::INFINITY
            }
        })
        .fold(0.0, f64::max);
    println!("{what}: {:.1e} of {tolerance:.0e}", worst / scale);
    assert!(worst <= tolerance * scale, "{what}: {worst:.2e} of {scale:.2e}");
}

#[test]
fn a_layer_is_the_same_as_on_the_cpu() {
    if !available() {
        return;
    }
    let shapes: [(usize, &[usize], bool, usize); 7] = [
        (3, &[5, 4, 6], false, 6),
        (1, &[32, 32], false, 100),
        (2, &[30, 20], true, 7),
        (20, &[100, 64, 130], false, 70),
        (70, &[40, 40], false, 3),
        (5, &[7], false, 130),
        // Too wide for the layers to go through one launch.
        (3, &[70, 520], false, 4),
    ];
    for (case, activation) in Activation::ALL.into_iter().enumerate() {
        for (n, units, general, rows) in shapes {
            if units.contains(&520) && !matches!(activation, Activation::Relu | Activation::Tanh) {
                continue;
            }
            let layout = Arc::new(Layout::new(n, units, activation, general));
            let bias_rows = if case % 2 == 0 { 1 } else { rows };
            let gpu = layer::<Autodiff<Gpu>>(&layout, rows, bias_rows);
            let cpu = layer::<Autodiff<Flex>>(&layout, rows, bias_rows);
            for (what, (gpu, cpu)) in ["y", "x", "phi", "bounds", "bias"]
                .iter()
                .zip(gpu.iter().zip(&cpu))
            {
                close(&format!("{activation} {units:?} {what}"), gpu, cpu, 2e-5);
            }
        }
    }
}

#[test]
fn transforms_are_the_same_as_on_the_cpu_and_orthogonal() {
    if !available() {
        return;
    }
    fn transform<B: AutodiffBackend>(n: usize, gain: f64) -> [Vec<f64>; 3] {
        let mut rng = Rng::new(9);
        let free = tensor::<B, 2>(&rng.normals(n * n), [n, n]).require_grad();
        let weight = tensor::<B, 2>(&rng.normals(n * n), [n, n]);
        let gain = tensor::<B, 1>(&[gain], [1]).require_grad();
        let j = crate::ops::cayley(free.clone(), gain.clone());
        let gradients = (j.clone() * weight).sum().backward();
        [
            numbers(j),
            numbers(free.grad(&gradients).unwrap()),
            numbers(gain.grad(&gradients).unwrap()),
        ]
    }
    for (n, gain) in [(1, 1.0), (5, 0.0), (20, 4.0), (32, 30.0), (64, 8.0), (200, 15.0)] {
        let (gpu, cpu) = (
            transform::<Autodiff<Gpu>>(n, gain),
            transform::<Autodiff<Flex>>(n, gain),
        );
        for (what, (gpu, cpu)) in ["J", "free", "gain"].iter().zip(gpu.iter().zip(&cpu)) {
            close(&format!("{n} {what}"), gpu, cpu, 1e-4);
        }
        for i in 0..n {
            for k in 0..n {
                let dot: f64 = (0..n).map(|r| gpu[0][r * n + i] * gpu[0][r * n + k]).sum();
                let expected = if i == k { 1.0 } else { 0.0 };
                assert!((dot - expected).abs() < 1e-5, "{n}: {dot} at {i}, {k}");
            }
        }
    }
}

#[test]
fn a_step_of_adam_is_the_same_as_on_the_cpu() {
    if !available() {
        return;
    }
    fn step<B: Backend>() -> Vec<f64> {
        let mut rng = Rng::new(3);
        let mut tensors = [0; 4].map(|_| tensor::<B, 2>(&rng.normals(700), [7, 100]));
        tensors[3] = tensors[3].clone().abs();
        let step = AdamStep {
            rate: 0.1,
            beta: (0.9, 0.999),
            epsilon: 1e-8,
            decay: 0.01,
            time: 3,
        };
        crate::ops::adam_step(tensors, step).map(numbers).concat()
    }
    close("Adam", &step::<Gpu>(), &step::<Flex>(), 1e-6);
}

/// Rows uniform on [−2, 2]ⁿ, and a value that the parameters, if there are any, move.
fn surface(n: usize, p: usize, rows: usize) -> crate::Dataset {
    let mut rng = Rng::new(1);
    let (mut x, mut q, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut draw = |count: usize| -> Vec<f64> { (0..count).map(|_| 4.0 * rng.uniform() - 2.0).collect() };
        let (a, b) = (draw(n), draw(p));
        let shift = b.first().copied().unwrap_or(1.0);
        y.push(
            (0..n - 1)
                .map(|k| (a[k + 1] - a[k] * a[k]).powi(2) + (a[k] - shift).powi(2))
                .sum(),
        );
        x.extend(a);
        q.extend(b);
    }
    let columns = crate::Columns {
        parameters: p,
        ..crate::Columns::new(n, 1)
    };
    crate::Dataset::with_parameters(columns, x, q, y).unwrap()
}

#[test]
fn a_hundred_steps_of_training_go_as_on_the_cpu() {
    use crate::{BiLipNetConfig, BoundsMode, MonLipConfig, PlNet, Predict, TrainConfig, train};
    use burn::module::AutodiffModule;
    if !available() {
        return;
    }
    fn run<B: AutodiffBackend>() -> (Vec<f64>, Vec<f64>) {
        let table = surface(2, 0, 1_000);
        let layer = MonLipConfig::new(2, vec![64, 64], BoundsMode::Distortion(20.0));
        let model = PlNet::new(
            BiLipNetConfig::new(2, layer)
                .init::<B>(&Default::default())
                .unwrap(),
        );
        let settings = TrainConfig {
            epochs: 10,
            batch: 100,
            ..TrainConfig::default()
        };
        let trained = train::<B, _>(model, &table, None, &settings).unwrap();
        let x = tensor::<B::InnerBackend, 2>(&table.inputs()[..200], [100, 2]);
        (
            trained.history.iter().map(|e| e.train_loss).collect(),
            numbers(trained.model.valid().predict(x, None)),
        )
    }
    let ((gpu, predicted), (cpu, expected)) = (run::<Autodiff<Gpu>>(), run::<Autodiff<Flex>>());
    for (epoch, (a, b)) in gpu.iter().zip(&cpu).enumerate() {
        assert!(
            (a - b).abs() <= 1e-4 * b.abs(),
            "epoch {}: {a} against {b}",
            epoch + 1
        );
    }
    close("predictions after 100 steps", &predicted, &expected, 1e-3);
}

#[test]
fn products_keep_single_precision_transposed_or_not() {
    if !available() {
        return;
    }
    fn products<B: AutodiffBackend>() -> [Vec<f64>; 3] {
        let mut rng = Rng::new(11);
        let a = tensor::<B, 2>(&rng.normals(70 * 130), [70, 130]).require_grad();
        let b = tensor::<B, 2>(&rng.normals(90 * 130), [90, 130]).require_grad();
        let c = crate::ops::matmul(a.clone(), b.clone().transpose());
        let gradients = (c.clone() * c.clone()).sum().backward();
        [
            numbers(c),
            numbers(a.grad(&gradients).unwrap()),
            numbers(b.grad(&gradients).unwrap()),
        ]
    }
    let (gpu, cpu) = (products::<Autodiff<Gpu>>(), products::<Autodiff<Flex>>());
    for (what, (gpu, cpu)) in ["c", "a", "b"].iter().zip(gpu.iter().zip(&cpu)) {
        // Tensor cores would be off by 1e-3.
        close(what, gpu, cpu, 1e-6);
    }
}

#[test]
fn rough_products_are_right_in_every_order() {
    use crate::ops::rough;
    if !available() {
        return;
    }
    fn products<B: AutodiffBackend>(
        order: Transposed,
        [count, m, k, n]: [usize; 4],
        values: &[Vec<f64>; 2],
    ) -> [Vec<f64>; 3] {
        let (left, right) = match order {
            Transposed::Neither => ([count, m, k], [count, k, n]),
            Transposed::Left => ([count, k, m], [count, k, n]),
            Transposed::Right => ([count, m, k], [count, n, k]),
        };
        let a = tensor::<B, 3>(&values[0], left).require_grad();
        let b = tensor::<B, 3>(&values[1], right).require_grad();
        let c = rough(a.clone(), b.clone(), order);
        let gradients = (c.clone() * c.clone()).sum().backward();
        [
            numbers(c),
            numbers(a.grad(&gradients).unwrap()),
            numbers(b.grad(&gradients).unwrap()),
        ]
    }
    // The last one is large enough for the fastest of them.
    for shape in [[5, 33, 20, 256], [1, 70, 130, 90], [1, 1_100, 1_030, 2_052]] {
        let [count, m, k, n] = shape;
        let mut rng = Rng::new(12);
        let values = [rng.normals(count * m * k), rng.normals(count * k * n)];
        for order in [Transposed::Neither, Transposed::Left, Transposed::Right] {
            let gpu = products::<Autodiff<Gpu>>(order, shape, &values);
            let cpu = products::<Autodiff<Flex>>(order, shape, &values);
            for (what, (gpu, cpu)) in ["c", "a", "b"].iter().zip(gpu.iter().zip(&cpu)) {
                close(&format!("{what} of {order:?} {shape:?}"), gpu, cpu, 2e-3);
            }
        }
    }
}

#[test]
fn partial_networks_and_perceptrons_go_as_on_the_cpu() {
    use crate::{
        BiLipNetConfig, BoundsMode, MlpConfig, MonLipConfig, PartialConfig, PartialPlNet, Quadratic,
        TrainConfig, train,
    };
    if !available() {
        return;
    }
    let settings = TrainConfig {
        epochs: 3,
        batch: 50,
        ..TrainConfig::default()
    };
    fn partial<B: AutodiffBackend>(settings: &TrainConfig) -> Vec<f64> {
        let table = surface(2, 2, 200);
        let layer = MonLipConfig::new(2, vec![20, 20], BoundsMode::Distortion(20.0));
        let config = PartialConfig::new(BiLipNetConfig::new(2, layer), 2, vec![8], vec![8, 16]);
        let model = PartialPlNet::new(config.init::<B>(&Default::default()).unwrap());
        let trained = train::<B, _>(model, &table, None, settings).unwrap();
        trained.history.iter().map(|e| e.train_loss).collect()
    }
    fn perceptron<B: AutodiffBackend>(settings: &TrainConfig) -> Vec<f64> {
        let table = surface(3, 0, 200);
        let config = MlpConfig::new(3, vec![16, 16, 3]);
        let model = Quadratic::new(config.init::<B>(&Default::default()).unwrap());
        let trained = train::<B, _>(model, &table, None, settings).unwrap();
        trained.history.iter().map(|e| e.train_loss).collect()
    }
    let (gpu, cpu) = (
        partial::<Autodiff<Gpu>>(&settings),
        partial::<Autodiff<Flex>>(&settings),
    );
    close("partial", &gpu, &cpu, 1e-4);
    let (gpu, cpu) = (
        perceptron::<Autodiff<Gpu>>(&settings),
        perceptron::<Autodiff<Flex>>(&settings),
    );
    close("perceptron", &gpu, &cpu, 1e-4);
}

#[test]
fn image_layers_go_as_on_the_cpu() {
    use crate::{ConvFeaturesConfig, ConvMonLipConfig};
    if !available() {
        return;
    }
    /// The value, and the gradient of x, one image after the other.
    fn layer<B: AutodiffBackend>(
        channels: usize,
        image: usize,
        units: &[usize],
        activation: Activation,
    ) -> [Vec<f64>; 2] {
        let bounds = bilip::Bounds::new(0.2, 3.0).unwrap();
        let config =
            ConvMonLipConfig::new(channels, image, units.to_vec(), bounds).with_activation(activation);
        let layer = config.init::<B>(&Default::default()).unwrap();
        let shape = [16, channels, image, image];
        let count = shape.iter().product();
        let mut rng = Rng::new(4);
        let x = tensor::<B, 4>(&rng.normals(count), shape).require_grad();
        let weight = tensor::<B, 4>(&rng.normals(count), shape);
        let y = layer.forward(x.clone());
        let gradients = (y.clone() * weight).sum().backward();
        [numbers(y), numbers(x.grad(&gradients).unwrap())]
    }
    // Images go through tensor cores, where there are any.
    for (channels, image, units) in [(3, 6, &[2, 2][..]), (40, 4, &[10, 10, 20]), (5, 3, &[1, 2])] {
        let gpu = layer::<Autodiff<Gpu>>(channels, image, units, Activation::Identity);
        let cpu = layer::<Autodiff<Flex>>(channels, image, units, Activation::Identity);
        close("linear image layer", &gpu[0], &cpu[0], 3e-3);
        close("its gradient of images", &gpu[1], &cpu[1], 3e-3);
        let gpu = layer::<Autodiff<Gpu>>(channels, image, units, Activation::Relu);
        let cpu = layer::<Autodiff<Flex>>(channels, image, units, Activation::Relu);
        close("image layer", &gpu[0], &cpu[0], 3e-3);
        // A hidden unit may be so close to zero that their rounding decides on its slope, which is
        // a matter of an image here and there.
        let scale = cpu[1].iter().fold(0.0, |s: f64, v| s.max(v.abs()));
        let mut worst: Vec<f64> = (gpu[1].chunks(channels * image * image))
            .zip(cpu[1].chunks(channels * image * image))
            .map(|(gpu, cpu)| {
                let worst = gpu.iter().zip(cpu).map(|(a, b)| (a - b).abs());
                worst.fold(0.0, f64::max) / scale
            })
            .collect();
        worst.sort_by(f64::total_cmp);
        println!("gradients of images, one by one: {worst:.4?}");
        assert!(worst[worst.len() / 4] <= 3e-3, "{worst:?}");
    }
    fn losses<B: AutodiffBackend>() -> Vec<f64> {
        use crate::{Augment, Dataset, GpConfig, GpNet, Loss, OptimizerKind, Schedule, TrainConfig, train};
        let mut rng = Rng::new(1);
        // Every class has a color of its own.
        let mut images = rng.normals(40 * 3 * 64);
        for (k, image) in images.chunks_mut(3 * 64).enumerate() {
            image[k % 3 * 64..(k % 3 + 1) * 64]
                .iter_mut()
                .for_each(|v| *v += 1.0);
        }
        let classes = (0..40).map(|k| f64::from(k % 3)).collect();
        let table = Dataset::new(images, 3 * 64, classes, 1).unwrap();
        let config = ConvFeaturesConfig {
            size: 8,
            outputs: 8,
            ..ConvFeaturesConfig::of_branch_bound(0.65, 1).unwrap()
        };
        let head = GpConfig {
            features: 32,
            length_scale: 3.0,
            normalize: true,
            ..GpConfig::new(8, 3)
        };
        let device = Default::default();
        let net = GpNet::new(
            config.init::<B>(&device).unwrap(),
            head.init::<B>(&device).unwrap(),
        );
        let settings = TrainConfig {
            epochs: 6,
            batch: 20,
            loss: Loss::CrossEntropy,
            optimizer: OptimizerKind::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
            schedule: Schedule::Constant { rate: 0.05 },
            augment: Some(Augment {
                channels: 3,
                size: 8,
                pad: 1,
            }),
            ..TrainConfig::default()
        };
        let trained = train::<B, _>(net, &table, None, &settings).unwrap();
        trained.history.iter().map(|e| e.train_loss).collect()
    }
    close(
        "losses of an image network",
        &losses::<Autodiff<Gpu>>(),
        &losses::<Autodiff<Flex>>(),
        2e-2,
    );
}
