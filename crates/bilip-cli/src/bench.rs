//! `bench`: times beside the machine's own limit.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use bilip::faer::linalg::matmul::matmul;
use bilip::faer::{Accum, Mat, Par};
use bilip::{BiLipschitz, Bounds, InverseOptions, Rng};
use bilip_burn::{
    Adam, BiLipNetConfig, BoundsMode, ConvFeatures, ConvFeaturesConfig, Device, GpConfig, GpNet,
    MonLipConfig, OnDevice, PlNet, Predict,
};
use burn::backend::Flex;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use serde_json::json;

use crate::Outcome;
use crate::args::{self, BenchConfig, BenchWhat};
use crate::text::print;

struct Shape {
    name: &'static str,
    n: usize,
    units: Vec<usize>,
    blocks: usize,
    batch: usize,
}

fn shape(config: BenchConfig) -> Shape {
    let (name, n, units, blocks, batch) = match config {
        BenchConfig::Step => ("step", 1, vec![32; 8], 1, 100),
        BenchConfig::Rosenbrock => ("rosenbrock", 2, vec![128; 4], 2, 100),
        BenchConfig::Rosenbrock20 => ("rosenbrock20", 20, vec![256; 8], 2, 200),
        BenchConfig::Wide => ("wide", 64, vec![1024; 8], 2, 1024),
        // Of its own kind; only the batch is taken from here.
        BenchConfig::Cifar10 => ("cifar10", 3 * 32 * 32, Vec::new(), 3, 256),
    };
    Shape {
        name,
        n,
        units,
        blocks,
        batch,
    }
}

impl Shape {
    /// Operations of a forward pass of the batch through the explicit layers.
    fn forward_flops(&self) -> f64 {
        let (n, rows) = (self.n as f64, self.batch as f64);
        let mut total = 0.0;
        for (k, &m) in self.units.iter().enumerate() {
            let before = if k == 0 { 0.0 } else { self.units[k - 1] as f64 };
            total += 2.0 * rows * (before * m as f64 + 2.0 * m as f64 * n);
        }
        total * self.blocks as f64 + (self.blocks + 1) as f64 * 2.0 * rows * n * n
    }

    /// Operations of a training step: transforms forward and backward, weights, and the batch three
    /// times.
    fn train_flops(&self) -> f64 {
        let n = self.n as f64;
        let mut total = 0.0;
        for (k, &m) in self.units.iter().enumerate() {
            let (m, b) = (m as f64, if k == 0 { 0.0 } else { self.units[k - 1] as f64 });
            total += 2.0 * b * m * m + 2.0 * m * m * m + 2.0 * b * m * m;
            total += 4.0 * (m + b) * m * m + 2.0 * b * m * m;
            total += 6.0 * b * b * m + 6.0 * (m + b) * m * n;
        }
        total * self.blocks as f64 + 3.0 * self.forward_flops()
    }

    fn model<B: Backend>(&self, device: &B::Device) -> Result<PlNet<B>> {
        let bounds = BoundsMode::Fixed(Bounds::new(0.1, 10.0)?);
        let layer = MonLipConfig::new(self.n, self.units.clone(), bounds);
        Ok(PlNet::new(
            BiLipNetConfig::new(self.blocks, layer).init::<B>(device)?,
        ))
    }
}

/// The rate of a large product on all cores, in GFLOP/s.
fn gemm_rate<T: bilip::Real>() -> f64 {
    let n = 1536;
    let a = Mat::<T>::from_fn(n, n, |i, j| T::round_from(((i * 7 + j * 3) % 11) as f64 / 11.0));
    let mut c = Mat::<T>::zeros(n, n);
    let mut times: Vec<f64> = (0..7)
        .map(|_| {
            let clock = Instant::now();
            matmul(
                c.as_mut(),
                Accum::Replace,
                a.as_ref(),
                a.as_ref(),
                T::one(),
                Par::rayon(0),
            );
            black_box(&c);
            clock.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    2.0 * (n as f64).powi(3) / times[3] / 1e9
}

/// Times of single runs, in ms, sorted.
fn measure(seconds: f64, mut work: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    for _ in 0..3 {
        work()?;
    }
    let (clock, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || (clock.elapsed().as_secs_f64() < seconds && times.len() < 100_000) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Training steps, each waited for.
struct Steps<'a> {
    shape: &'a Shape,
    x: &'a [f64],
    seconds: f64,
}

impl OnDevice for Steps<'_> {
    /// Times of the steps, and the median of the part that the host needs to issue them.
    type Output = Result<(Vec<f64>, f64)>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Self::Output {
        let (batch, n) = (self.shape.batch, self.shape.n);
        let mut optimizer = Adam::default().init::<B, PlNet<B>>();
        let narrow: Vec<f32> = self.x.iter().map(|v| *v as f32).collect();
        let x = Tensor::<B, 2>::from_data(TensorData::new(narrow, [batch, n]), device);
        let y = Tensor::<B, 1>::from_data(TensorData::new(vec![1.0f32; batch], [batch]), device);
        let mut held = Some(self.shape.model::<B>(device)?);
        let mut issued = Vec::new();
        let times = measure(self.seconds, || {
            let clock = Instant::now();
            let Some(current) = held.take() else {
                bail!("the model was lost")
            };
            let error = current.forward(x.clone()) - y.clone();
            let loss = (error.clone() * error).mean().mul_scalar(0.5);
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            held = Some(optimizer.step(1e-3, current, gradients));
            issued.push(clock.elapsed().as_secs_f64() * 1e3);
            B::sync(device).map_err(|e| anyhow!("{e:?}"))?;
            Ok(())
        })?;
        issued.sort_by(f64::total_cmp);
        Ok((times, issued[issued.len() / 2]))
    }
}

/// Channels and image sides of the image network's blocks.
fn image_blocks() -> [(f64, f64); 3] {
    let first = 16.0 * IMAGE_WIDTH as f64;
    [(first, 32.0), (2.0 * first, 16.0), (4.0 * first, 8.0)]
}

/// The width of the paper's image network.
const IMAGE_WIDTH: usize = 10;

/// Operations that a step of the image network cannot do without: at every frequency the inverse of
/// Q's complex matrix and the two products of its backward pass, and the batch through S and its
/// adjoint, three times each; and the plain convolutions. Fast Fourier transforms would be less
/// than a per cent of it.
fn image_flops(batch: f64) -> f64 {
    let mut total = 0.0;
    let mut before = 16.0;
    for (c, s) in image_blocks() {
        let frequencies = s * s / 2.0 + 2.0;
        // A complex multiplication and addition is eight operations.
        total += 8.0 * frequencies * (3.0 * c.powi(3) + 3.0 * 2.0 * c * c * batch);
        total += 3.0 * 2.0 * batch * s * s * 9.0 * before * c;
        before = c;
    }
    total
}

/// Training steps of the image network, each waited for.
struct ImageSteps<'a> {
    x: &'a [f64],
    batch: usize,
    seconds: f64,
}

impl OnDevice for ImageSteps<'_> {
    type Output = Result<(Vec<f64>, f64)>;

    fn run<B: AutodiffBackend>(self, device: &B::Device) -> Self::Output {
        let features = ConvFeaturesConfig::of_branch_bound(0.65, IMAGE_WIDTH)?;
        let head = GpConfig::new(features.outputs, 10)
            .with_orthogonal(true)
            .with_normalize(true);
        let mut held = Some(GpNet::new(features.init::<B>(device)?, head.init::<B>(device)?));
        let momentum = MomentumConfig::new().with_momentum(0.9).with_nesterov(true);
        let mut optimizer = SgdConfig::new()
            .with_momentum(Some(momentum))
            .init::<B, GpNet<B, ConvFeatures<B>>>();
        let narrow: Vec<f32> = self.x.iter().map(|v| *v as f32).collect();
        let x = Tensor::<B, 2>::from_data(TensorData::new(narrow, [self.batch, 3 * 32 * 32]), device);
        let classes: Vec<i32> = (0..self.batch as i32).map(|k| k % 10).collect();
        let classes = Tensor::<B, 2, Int>::from_data(TensorData::new(classes, [self.batch, 1]), device);
        let mut issued = Vec::new();
        let times = measure(self.seconds, || {
            let clock = Instant::now();
            let Some(current) = held.take() else {
                bail!("the model was lost")
            };
            let logits = current.predict(x.clone(), None);
            let mut loss = log_softmax(logits, 1).gather(1, classes.clone()).mean().neg();
            if let Some(penalty) = current.penalty() {
                loss = loss + penalty;
            }
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            held = Some(optimizer.step(1e-3, current, gradients).settle());
            issued.push(clock.elapsed().as_secs_f64() * 1e3);
            B::sync(device).map_err(|e| anyhow!("{e:?}"))?;
            Ok(())
        })?;
        issued.sort_by(f64::total_cmp);
        Ok((times, issued[issued.len() / 2]))
    }
}

pub fn run(args: &args::Bench) -> Result<Outcome> {
    ensure!(
        args.device == Device::Cpu || args.what == BenchWhat::Train,
        "--device {}: only training runs there; `forward` and `inverse` are of the CPU",
        args.device
    );
    ensure!(
        args.config != BenchConfig::Cifar10 || args.what == BenchWhat::Train,
        "--config cifar10: only training is timed"
    );
    ensure!(
        args.seconds > 0.0 && args.seconds <= 3600.0,
        "--seconds {}: between 0 and 3600",
        args.seconds
    );
    let shape = shape(args.config);
    let mut rng = Rng::new(1);
    let x = rng.normals(shape.batch * shape.n);
    let mut issued = None;
    let (times, flops, rate) = match args.what {
        BenchWhat::Train => {
            let images = args.config == BenchConfig::Cifar10;
            let (times, host) = match images {
                true => args.device.run(ImageSteps {
                    x: &x,
                    batch: shape.batch,
                    seconds: args.seconds,
                })??,
                false => args.device.run(Steps {
                    shape: &shape,
                    x: &x,
                    seconds: args.seconds,
                })??,
            };
            issued = (args.device != Device::Cpu).then_some(host);
            // What a GPU's limit is has no measure here.
            let rate = (args.device == Device::Cpu).then(gemm_rate::<f32>);
            let flops = match images {
                true => image_flops(shape.batch as f64),
                false => shape.train_flops(),
            };
            (times, Some(flops), rate)
        }
        BenchWhat::Forward => {
            let net = shape.model::<Flex>(&Default::default())?.net().freeze::<f32>()?;
            let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
            let times = measure(args.seconds, || {
                black_box(net.forward(&narrow)?);
                Ok(())
            })?;
            (times, Some(shape.forward_flops()), Some(gemm_rate::<f32>()))
        }
        BenchWhat::Inverse => {
            let net = shape.model::<Flex>(&Default::default())?.net().freeze::<f64>()?;
            let y = net.forward(&x)?;
            let options = InverseOptions::default();
            let mut unfinished = 0;
            let times = measure(args.seconds, || {
                let inverse = net.inverse(&y, &options)?;
                unfinished += inverse
                    .rows
                    .iter()
                    .filter(|r| r.status != bilip::Status::Converged)
                    .count();
                black_box(inverse);
                Ok(())
            })?;
            if unfinished > 0 {
                eprintln!("{unfinished} rows did not reach the tolerance");
                return Ok(Outcome::NotMet);
            }
            // Its work depends on the iterations; only the time is reported.
            (times, None, Some(gemm_rate::<f64>()))
        }
    };
    let at = |q: f64| times[((times.len() - 1) as f64 * q).round() as usize];
    let (median, low, high) = (at(0.5), at(0.1), at(0.9));
    let gflops = flops.map(|f| f / median / 1e6);
    if args.json {
        let report = json!({
            "config": shape.name,
            "what": format!("{:?}", args.what).to_lowercase(),
            "device": args.device.to_string(),
            "median_ms": median,
            "p10_ms": low,
            "p90_ms": high,
            "issued_ms": issued,
            "runs": times.len(),
            "gflops": gflops,
            "gemm_gflops": rate,
            "gemm_share": gflops.zip(rate).map(|(g, r)| g / r),
        });
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        return Ok(Outcome::Done);
    }
    let mut text = format!(
        "{} {}: median {median:.3} ms (p10 {low:.3}, p90 {high:.3}, {} runs)",
        format!("{:?}", args.what).to_lowercase(),
        shape.name,
        times.len()
    );
    match (gflops, rate) {
        (Some(g), Some(r)) => text += &format!(", {g:.1} GFLOP/s of GEMM's {r:.1} ({:.0} %)", 100.0 * g / r),
        (Some(g), None) => text += &format!(", {g:.1} GFLOP/s"),
        _ => {}
    }
    if let Some(ms) = issued {
        text += &format!(", issued by the host in {ms:.3} ms");
    }
    print(&(text + "\n"))?;
    Ok(Outcome::Done)
}
