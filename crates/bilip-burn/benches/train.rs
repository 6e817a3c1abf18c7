//! Times a training step (forward, backward, Adam) at the paper's shapes, beside the machine's GEMM
//! rate.
//!
//! ```text
//! cargo bench -p bilip-burn                       step, rosenbrock, rosenbrock20
//! cargo bench -p bilip-burn -- wide               or any of the names
//! cargo bench -p bilip-burn -- scaling            how a step grows in width, depth, n and batch
//! ```

use std::hint::black_box;
use std::time::Instant;

use bilip::faer::linalg::matmul::matmul;
use bilip::faer::{Accum, Mat, Par};
use bilip::{Bounds, Rng};
use bilip_burn::{Adam, BiLipNetConfig, BoundsMode, MonLipConfig, PlNet};
use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData};

type B = Autodiff<Flex>;

/// Name, n, hidden widths, blocks, batch: the shapes timed in JAX beside it.
fn shape(name: &str) -> Option<Shape> {
    Some(match name {
        "step" => (1, vec![32; 8], 1, 100),
        "rosenbrock" => (2, vec![128; 4], 2, 100),
        "rosenbrock20" => (20, vec![256; 8], 2, 200),
        "wide" => (64, vec![1024; 8], 2, 1024),
        _ => return None,
    })
}

/// Floating-point operations of a step: transforms forward and backward, weights, and the batch
/// three times.
fn flops(n: usize, units: &[usize], blocks: usize, batch: usize) -> f64 {
    let mut total = 0.0;
    for (k, &m) in units.iter().enumerate() {
        let before = if k == 0 { 0 } else { units[k - 1] };
        let (m, b, n, rows) = (m as f64, before as f64, n as f64, batch as f64);
        // Z, inverse, J; and back: JᵀJ̄, ·Xᵀ, H(W̄+W̄ᵀ).
        total += 2.0 * b * m * m + 2.0 * m * m * m + 2.0 * b * m * m;
        total += 2.0 * (m + b) * m * m + 2.0 * (m + b) * m * m + 2.0 * b * m * m;
        // V and both of its cotangents; S likewise.
        total += 3.0 * 2.0 * b * b * m + 3.0 * 2.0 * (m + b) * m * n;
        // The batch: forward, δ, weight gradients.
        total += 3.0 * 2.0 * rows * (b * m + 2.0 * m * n);
    }
    total * blocks as f64
}

fn gemm_rate() -> f64 {
    let n = 1536;
    let a = Mat::<f32>::from_fn(n, n, |i, j| ((i * 7 + j * 3) % 11) as f32 / 11.0);
    let mut c = Mat::<f32>::zeros(n, n);
    let mut times: Vec<f64> = (0..7)
        .map(|_| {
            let clock = Instant::now();
            matmul(
                c.as_mut(),
                Accum::Replace,
                a.as_ref(),
                a.as_ref(),
                1.0,
                Par::rayon(0),
            );
            black_box(&c);
            clock.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    2.0 * (n as f64).powi(3) / times[3]
}

/// A shape: n, hidden widths, blocks, batch.
type Shape = (usize, Vec<usize>, usize, usize);

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let names: Vec<&str> = match arguments.is_empty() {
        true => vec!["step", "rosenbrock", "rosenbrock20"],
        false => arguments.iter().map(|s| s.as_str()).collect(),
    };
    for name in names {
        if name == "scaling" {
            let base = |n, width, depth, batch| -> Shape { (n, vec![width; depth], 2, batch) };
            let shapes = [32, 64, 128, 256, 512]
                .map(|width| base(20, width, 4, 200))
                .into_iter();
            let shapes = shapes.chain([1, 2, 4, 8, 16].map(|depth| base(20, 128, depth, 200)));
            let shapes = shapes.chain([1, 8, 64, 256].map(|n| base(n, 128, 4, 200)));
            for shape in shapes.chain([10, 100, 1_000, 4_000].map(|batch| base(20, 128, 4, batch))) {
                let label = format!(
                    "n {} width {} depth {} batch {}",
                    shape.0,
                    shape.1[0],
                    shape.1.len(),
                    shape.3
                );
                measure(&label, shape, 15);
            }
            continue;
        }
        let Some(shape) = shape(name) else {
            eprintln!("{name}: choose among step, rosenbrock, rosenbrock20, wide, scaling");
            std::process::exit(2);
        };
        measure(name, shape, if name == "wide" { 12 } else { 60 });
    }
}

fn measure(name: &str, (n, units, blocks, batch): Shape, repetitions: usize) {
    let device = Default::default();
    let bounds = BoundsMode::Fixed(Bounds::new(0.5, 2.0).expect("bounds"));
    let net = BiLipNetConfig::new(blocks, MonLipConfig::new(n, units.clone(), bounds))
        .init::<B>(&device)
        .expect("net");
    let mut model = PlNet::new(net);
    let parameters = model.num_params();
    let mut optimizer = Adam::default().init::<B, PlNet<B>>();
    let mut rng = Rng::new(1);
    let values: Vec<f32> = (0..batch * n)
        .map(|_| (4.0 * rng.uniform() - 2.0) as f32)
        .collect();
    let target: Vec<f32> = values.chunks(n).map(|x| x.iter().map(|v| v * v).sum()).collect();
    let x = Tensor::<B, 2>::from_data(TensorData::new(values, [batch, n]), &device);
    let y = Tensor::<B, 1>::from_data(TensorData::new(target, [batch]), &device);
    let mut times = Vec::new();
    let mut loss_value = 0.0;
    let rate = gemm_rate();
    for step in 0..repetitions + 3 {
        let clock = Instant::now();
        let difference = model.forward(x.clone()) - y.clone();
        let loss = (difference.clone() * difference).mean().mul_scalar(0.5);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        if step >= 3 {
            times.push(clock.elapsed().as_secs_f64());
        }
        loss_value = loss.into_scalar();
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize] * 1e3;
    let work = flops(n, &units, blocks, batch);
    println!(
        "{name}: {parameters} parameters, median {:.3} ms (p10 {:.3}, p90 {:.3}), {:.1} GFLOP/s of GEMM's {:.1}, limit {:.2} ms, loss {loss_value:.4}",
        at(0.5),
        at(0.1),
        at(0.9),
        work / at(0.5) / 1e6,
        rate / 1e9,
        work / rate * 1e3
    );
}
