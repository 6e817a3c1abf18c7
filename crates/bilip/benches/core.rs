//! Times the core against the machine's own GEMM rate, measured in the same run.
//!
//! ```text
//! cargo bench -p bilip                                the table
//! cargo bench -p bilip -- --quick                     fewer repetitions, smaller batches
//! cargo bench -p bilip -- --save results/methods      also writes result.json, README.md and inverse.svg there
//! ```
//! Shapes are those of the paper's 20-dimensional experiment: n = 20, hidden layers 8×256. Times
//! are medians, with the 10th and 90th percentile; the accuracy reached stands beside every time.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use bilip::faer::linalg::matmul::matmul;
use bilip::faer::{Accum, Mat, Par};
use bilip::{
    BiLipNet, BiLipNetFree, BiLipschitz, Bounds, DavisYin, InverseOptions, Method, MonLip, MonLipFree,
    RandomLayer, Real, Rng, Status,
};
use serde_json::{Value, json};

const N: usize = 20;
const UNITS: [usize; 8] = [256; 8];

/// Median, 10th and 90th percentile in seconds.
#[derive(Clone, Copy)]
struct Times {
    median: f64,
    p10: f64,
    p90: f64,
}

fn time(repetitions: usize, mut work: impl FnMut()) -> Times {
    work();
    let mut seconds: Vec<f64> = (0..repetitions)
        .map(|_| {
            let clock = Instant::now();
            work();
            clock.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds[((seconds.len() - 1) as f64 * share).round() as usize];
    Times {
        median: at(0.5),
        p10: at(0.1),
        p90: at(0.9),
    }
}

fn layer(distortion: f64) -> MonLip<f64> {
    let bounds = Bounds::from_parts(None, None, Some(distortion)).expect("bounds");
    let free = MonLipFree::random(&RandomLayer::new(N, &UNITS, bounds), &mut Rng::new(3)).expect("layer");
    MonLip::from_free(&free).expect("layer")
}

/// The machine's GEMM rate in FLOP/s: a large square product on all cores.
fn gemm_rate<T: Real>(repetitions: usize) -> f64 {
    let n = 1536;
    let a = Mat::<T>::from_fn(n, n, |i, j| T::round_from(((i * 7 + j * 3) % 11) as f64 / 11.0));
    let b = Mat::<T>::from_fn(n, n, |i, j| T::round_from(((i * 5 + j * 2) % 13) as f64 / 13.0));
    let mut c = Mat::<T>::zeros(n, n);
    let times = time(repetitions, || {
        matmul(
            c.as_mut(),
            Accum::Replace,
            a.as_ref(),
            b.as_ref(),
            T::one(),
            Par::rayon(0),
        );
        black_box(&c);
    });
    2.0 * (n as f64).powi(3) / times.median
}

/// Multiply-adds of one row through one layer, times two.
fn row_flops() -> f64 {
    let v: usize = UNITS.windows(2).map(|w| w[0] * w[1]).sum();
    let s = 2 * N * UNITS.iter().sum::<usize>();
    2.0 * (v + s) as f64
}

fn forward<T: Real>(repetitions: usize) -> Value {
    let bounds = Bounds::new(0.5, 2.0).expect("bounds");
    let free = BiLipNetFree::random(&RandomLayer::new(N, &UNITS, bounds), 2, &mut Rng::new(4)).expect("net");
    let net = BiLipNet::<T>::from_free(&free).expect("net");
    let rows = 10_000;
    let x: Vec<T> = Rng::new(5)
        .normals(rows * N)
        .iter()
        .map(|v| T::round_from(*v))
        .collect();
    // Interleaved, so that both see the same state of the machine.
    let (mut shares, mut rates) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..3 {
        let rate = gemm_rate::<T>(repetitions);
        let times = time(repetitions, || {
            black_box(net.forward(&x).expect("forward"));
        });
        let flops = rows as f64 * (2.0 * row_flops() + 3.0 * 2.0 * (N * N) as f64);
        shares.push(flops / times.median / rate);
        rates.push(rate);
        last = Some((times, flops));
    }
    let (times, flops) = last.expect("three rounds");
    shares.sort_by(f64::total_cmp);
    rates.sort_by(f64::total_cmp);
    let mut evaluator = net.row_evaluator();
    let mut row: Vec<T> = x[..N].to_vec();
    let single = time(50 * repetitions, || {
        row.copy_from_slice(&x[..N]);
        evaluator.forward_in_place(&mut row).expect("row");
        black_box(&row);
    });
    let value = json!({
        "precision": T::PRECISION, "rows": rows, "median_ms": times.median * 1e3, "p10_ms": times.p10 * 1e3,
        "p90_ms": times.p90 * 1e3, "gflops": flops / times.median / 1e9, "gemm_gflops": rates[1] / 1e9,
        "gemm_share": shares[1], "single_row_us": single.median * 1e6,
    });
    println!(
        "forward {}: {rows} rows through K=2, 8x256 in {:.1} ms (p10 {:.1}, p90 {:.1}): {:.1} GFLOP/s, {:.0} % of GEMM at {:.1} GFLOP/s; one row {:.0} us",
        T::PRECISION,
        times.median * 1e3,
        times.p10 * 1e3,
        times.p90 * 1e3,
        flops / times.median / 1e9,
        100.0 * shares[1],
        rates[1] / 1e9,
        single.median * 1e6
    );
    value
}

fn verification(repetitions: usize) -> Value {
    let layer = layer(50.0);
    let times = time(repetitions, || assert!(black_box(layer.verify()).holds()));
    println!(
        "verification of an 8x256 layer: {:.0} ms (p10 {:.0}, p90 {:.0})",
        times.median * 1e3,
        times.p10 * 1e3,
        times.p90 * 1e3
    );
    json!({"median_ms": times.median * 1e3, "p10_ms": times.p10 * 1e3, "p90_ms": times.p90 * 1e3,
           "margin": layer.layer_certificate().margin()})
}

/// Time of a Davis–Yin iteration against the GEMMs it consists of, on the same blocks and threads.
fn davis_yin_iteration(rows: usize, repetitions: usize) -> Value {
    let layer = layer(1e6);
    let y = layer.forward(&Rng::new(6).normals(rows * N)).expect("y");
    let run = |iterations: usize| {
        let options = InverseOptions {
            max_iterations: Some(iterations),
            tolerance: 0.0,
            ..InverseOptions::with_method(Method::DavisYin(DavisYin::default()))
        };
        black_box(layer.inverse(&y, &options).expect("inverse"));
    };
    layer.inverse(&y[..N], &InverseOptions::default()).expect("norms");
    let (few, many) = (20, if rows == 1 { 1_020 } else { 120 });
    let products = products_of_an_iteration(&layer, rows);
    let mut ratios = Vec::new();
    let (mut step, mut gemm) = (0.0, 0.0);
    for _ in 0..repetitions.max(5) {
        let clock = Instant::now();
        run(few);
        let short = clock.elapsed().as_secs_f64();
        let clock = Instant::now();
        run(many);
        step = (clock.elapsed().as_secs_f64() - short) / (many - few) as f64;
        let clock = Instant::now();
        products(many - few);
        gemm = clock.elapsed().as_secs_f64() / (many - few) as f64;
        ratios.push(step / gemm);
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    println!(
        "Davis-Yin iteration, batch {rows}: {:.1} us, its products alone {:.1} us, ratio {ratio:.2} (median of {})",
        step * 1e6,
        gemm * 1e6,
        ratios.len()
    );
    json!({"batch": rows, "iteration_us": step * 1e6, "products_us": gemm * 1e6, "ratio": ratio})
}

/// The products of a Davis–Yin iteration and nothing else: `Sᵀz`, `S x` and every `V_k z`, in
/// blocks of 64 rows.
fn products_of_an_iteration(layer: &MonLip<f64>, rows: usize) -> impl Fn(usize) + '_ {
    let threads = std::thread::available_parallelism().map_or(1, |p| p.get());
    let count = rows.div_ceil(64).max(threads.min(rows));
    let count = if count > 1 {
        count.next_multiple_of(threads).min(rows)
    } else {
        1
    };
    let sizes: Vec<usize> = (0..count)
        .map(|i| (i + 1) * rows / count - i * rows / count)
        .collect();
    let m: usize = UNITS.iter().sum();
    move |iterations: usize| {
        std::thread::scope(|scope| {
            for t in 0..threads.min(count) {
                let mine: Vec<usize> = sizes.iter().copied().skip(t).step_by(threads).collect();
                scope.spawn(move || {
                    for c in mine {
                        let z = Mat::<f64>::from_fn(m, c, |i, j| ((i + j) % 17) as f64);
                        let mut x = Mat::<f64>::zeros(N, c);
                        let mut next = Mat::<f64>::zeros(UNITS[0], c);
                        for _ in 0..iterations {
                            matmul(
                                x.as_mut(),
                                Accum::Add,
                                layer.s().transpose(),
                                z.as_ref(),
                                1e-9,
                                Par::Seq,
                            );
                            for k in 0..UNITS.len() {
                                let s = layer.s().subrows(256 * k, 256);
                                matmul(next.as_mut(), Accum::Add, s, x.as_ref(), 1e-9, Par::Seq);
                                if k > 0 {
                                    let before = z.subrows(256 * (k - 1), 256);
                                    matmul(
                                        next.as_mut(),
                                        Accum::Add,
                                        layer.v()[k - 1].as_ref(),
                                        before,
                                        1e-9,
                                        Par::Seq,
                                    );
                                }
                            }
                        }
                        black_box((&x, &next));
                    }
                });
            }
        });
    }
}

struct InverseLine {
    distortion: f64,
    batch: usize,
    method: &'static str,
    times: Times,
    mean: f64,
    most: usize,
    converged: usize,
    bound: f64,
    error: f64,
}

/// Time and iterations to a certified error of 1e-8, every method, distortion and batch.
fn inverse_table(quick: bool) -> Vec<InverseLine> {
    let mut lines = Vec::new();
    for distortion in [5.0, 50.0, 1e3, 1e6] {
        let layer = layer(distortion);
        for batch in [1, if quick { 100 } else { 1_000 }] {
            let x = Rng::new(7).normals(batch * N);
            let y = layer.forward(&x).expect("y");
            for method in Method::all() {
                let fast = matches!(
                    method,
                    Method::Auto
                        | Method::Newton(_)
                        | Method::PeacemanRachford(_)
                        | Method::DouglasRachford(_)
                );
                let name = method.name();
                let mut options = InverseOptions::with_method(method);
                if !fast {
                    // Enough for those that get there in reasonable time; the others are reported
                    // as they stand.
                    options.max_iterations = Some(match (quick, batch, distortion) {
                        (true, _, _) => 500,
                        (_, 1, _) => 30_000,
                        (_, _, ..=10.0) => 5_000,
                        (_, _, ..=100.0) => 1_500,
                        _ => 500,
                    });
                }
                // One-time norms are part of no method.
                layer.inverse(&y[..N], &InverseOptions::default()).expect("norms");
                let mut found = None;
                let clock = Instant::now();
                let repetitions = match (fast, batch, quick) {
                    (_, _, true) => 1,
                    (true, 1, _) => 51,
                    (true, _, _) => 5,
                    (false, 1, _) => 3,
                    (false, _, _) => 1,
                };
                let times = if repetitions == 1 {
                    found = Some(layer.inverse(&y, &options).expect("inverse"));
                    let seconds = clock.elapsed().as_secs_f64();
                    Times {
                        median: seconds,
                        p10: seconds,
                        p90: seconds,
                    }
                } else {
                    time(repetitions, || {
                        found = Some(layer.inverse(&y, &options).expect("inverse"))
                    })
                };
                let found = found.expect("at least one run");
                let error = found
                    .x
                    .chunks(N)
                    .zip(x.chunks(N))
                    .map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt())
                    .fold(0.0, f64::max);
                let line = InverseLine {
                    distortion,
                    batch,
                    method: name,
                    times,
                    mean: found.rows.iter().map(|r| r.iterations as f64).sum::<f64>() / batch as f64,
                    most: found.max_iterations(),
                    converged: found
                        .rows
                        .iter()
                        .filter(|r| r.status == Status::Converged)
                        .count(),
                    bound: found.max_error_bound(),
                    error,
                };
                println!(
                    "tau {distortion:9} batch {batch:5} {name:7} {:11.2} ms  steps mean {:8.1} max {:6}  converged {:5}/{batch}  bound {:8.1e}  true error {:8.1e}",
                    line.times.median * 1e3,
                    line.mean,
                    line.most,
                    line.converged,
                    line.bound,
                    line.error
                );
                lines.push(line);
            }
        }
    }
    lines
}

/// Error against iteration for one row, every method.
fn traces(distortion: f64) -> Vec<(&'static str, Vec<f64>)> {
    let layer = layer(distortion);
    let y = layer.forward(&Rng::new(7).normals(N)).expect("y");
    Method::all()
        .into_iter()
        .filter(|m| *m != Method::Auto)
        .map(|method| {
            let name = method.name();
            let limit = if matches!(method, Method::Newton(_)) {
                100
            } else {
                2_000
            };
            let options = InverseOptions {
                trace: true,
                max_iterations: Some(limit),
                ..InverseOptions::with_method(method)
            };
            let found = layer.inverse(&y, &options).expect("inverse");
            (name, found.rows[0].trace.iter().map(|p| p.error).collect())
        })
        .collect()
}

const COLORS: [&str; 7] = [
    "#d62728", "#1f77b4", "#7f7f7f", "#9467bd", "#8c564b", "#2ca02c", "#ff7f0e",
];

/// A distortion, and for every method the error at each iteration.
type Panel = (f64, Vec<(&'static str, Vec<f64>)>);

/// Two panels, log-log: certified error against iteration.
fn picture(panels: &[Panel]) -> String {
    let (width, height, left, top) = (420.0, 330.0, 58.0, 34.0);
    let mut svg = String::new();
    let total = panels.len() as f64 * (width + left + 12.0) + 70.0;
    let _ = write!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>"#,
        height + top + 50.0
    );
    for (p, (distortion, curves)) in panels.iter().enumerate() {
        let x0 = left + p as f64 * (width + left + 12.0);
        let (low, high) = (-10.0, 6.0);
        let x = |iteration: f64| x0 + (iteration + 1.0).log10() / 3.4 * width;
        let y = |error: f64| top + (high - error.max(1e-10).log10().clamp(low, high)) / (high - low) * height;
        let _ = write!(
            svg,
            r##"<text x="{}" y="20" text-anchor="middle" font-size="14">n = 20, 8×256, τ = {distortion}</text>"##,
            x0 + width / 2.0
        );
        for decade in (-10..=6).step_by(2) {
            let at = y(10f64.powi(decade));
            let _ = write!(
                svg,
                r##"<line x1="{x0}" x2="{}" y1="{at}" y2="{at}" stroke="#ddd"/><text x="{}" y="{}" text-anchor="end">1e{decade}</text>"##,
                x0 + width,
                x0 - 6.0,
                at + 4.0
            );
        }
        for iteration in [0.0, 1.0, 10.0, 100.0, 1000.0, 2000.0] {
            let at = x(iteration);
            let _ = write!(
                svg,
                r##"<line x1="{at}" x2="{at}" y1="{top}" y2="{}" stroke="#ddd"/><text x="{at}" y="{}" text-anchor="middle">{iteration}</text>"##,
                top + height,
                top + height + 16.0
            );
        }
        let tolerance = y(1e-8);
        let _ = write!(
            svg,
            r##"<line x1="{x0}" x2="{}" y1="{tolerance}" y2="{tolerance}" stroke="black" stroke-dasharray="4 3"/>"##,
            x0 + width
        );
        let _ = write!(
            svg,
            r##"<text x="{}" y="{}" text-anchor="middle">iteration</text>"##,
            x0 + width / 2.0,
            top + height + 36.0
        );
        for (k, (name, errors)) in curves.iter().enumerate() {
            let points: Vec<String> = errors
                .iter()
                .enumerate()
                // Every point early on, then evenly in the logarithm.
                .filter(|(i, _)| *i < 64 || i % (i / 32).max(1) == 0)
                .map(|(i, e)| format!("{:.1},{:.1}", x(i as f64), y(*e)))
                .collect();
            let color = COLORS[k % COLORS.len()];
            let _ = write!(
                svg,
                r#"<polyline fill="none" stroke="{color}" stroke-width="1.8" points="{}"/>"#,
                points.join(" ")
            );
            if p + 1 == panels.len() {
                let at = top + 18.0 * k as f64 + 12.0;
                let edge = x0 + width + 10.0;
                let _ = write!(
                    svg,
                    r#"<line x1="{edge}" x2="{}" y1="{at}" y2="{at}" stroke="{color}" stroke-width="2.5"/><text x="{}" y="{}">{name}</text>"#,
                    edge + 16.0,
                    edge + 20.0,
                    at + 4.0
                );
            }
        }
    }
    let _ = write!(
        svg,
        r#"<text transform="translate(14 {}) rotate(-90)" text-anchor="middle">‖F(x) − y‖/μ</text></svg>"#,
        top + height / 2.0
    );
    svg
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines()
                .find(|l| l.starts_with("model name"))
                .map(|l| l.split(':').nth(1).unwrap_or("").trim().to_string())
        })
        .unwrap_or_else(|| "unknown CPU".into());
    let cores = std::thread::available_parallelism().map_or(1, |p| p.get());
    format!("{cpu}, {cores} cores")
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|a| a == "--quick");
    let save = arguments
        .iter()
        .position(|a| a == "--save")
        .and_then(|i| arguments.get(i + 1));
    let repetitions = if quick { 3 } else { 15 };
    println!("machine: {}", machine());
    let forward = [forward::<f64>(repetitions), forward::<f32>(repetitions)];
    let verification = verification(repetitions);
    let iteration: Vec<Value> = [1, 1_000]
        .iter()
        .map(|rows| davis_yin_iteration(*rows, repetitions))
        .collect();
    let lines = inverse_table(quick);
    let failed = lines.iter().any(|l| l.method == "auto" && l.converged != l.batch);
    println!(
        "auto {}",
        if failed {
            "FAILED on some row"
        } else {
            "converged on every row"
        }
    );

    if let Some(folder) = save {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(folder);
        std::fs::create_dir_all(&folder).expect("results folder");
        let table: Vec<Value> = lines
            .iter()
            .map(|l| {
                json!({"distortion": l.distortion, "batch": l.batch, "method": l.method, "median_ms": l.times.median * 1e3,
                       "p10_ms": l.times.p10 * 1e3, "p90_ms": l.times.p90 * 1e3, "iterations_mean": l.mean,
                       "iterations_max": l.most, "converged": l.converged, "max_error_bound": l.bound,
                       "max_true_error": l.error})
            })
            .collect();
        let command = "cargo bench -p bilip -- --save results/methods";
        let result = json!({"command": command, "machine": machine(), "n": N, "units": UNITS, "activation": "relu",
            "tolerance": 1e-8, "forward": forward, "verification": verification, "davis_yin_iteration": iteration,
            "inverse": table});
        std::fs::write(
            folder.join("result.json"),
            serde_json::to_string_pretty(&result).expect("json"),
        )
        .expect("result.json");
        std::fs::write(folder.join("README.md"), report(command, &result, &lines)).expect("README.md");
        std::fs::write(
            folder.join("inverse.svg"),
            picture(&[(5.0, traces(5.0)), (1e3, traces(1e3))]),
        )
        .expect("inverse.svg");
    }
    if failed {
        std::process::exit(1);
    }
}

fn report(command: &str, result: &Value, lines: &[InverseLine]) -> String {
    let mut text = String::new();
    let number = |v: &Value, digits: usize| format!("{:.digits$}", v.as_f64().unwrap_or(f64::NAN));
    let _ = writeln!(
        text,
        "# Forward, verification and inverse of the 20-dimensional network\n"
    );
    let _ = writeln!(
        text,
        "Made by `{command}` on {}. Medians; every bound is proved, rounding included.\n",
        result["machine"].as_str().unwrap_or("")
    );
    let _ = writeln!(text, "| | f64 | f32 |\n|---|---|---|");
    let f = &result["forward"];
    for (label, key, digits) in [
        ("10,000 rows through K=2, 8×256 (ms)", "median_ms", 1),
        ("GFLOP/s", "gflops", 1),
        ("the machine's GEMM, same run (GFLOP/s)", "gemm_gflops", 1),
        ("share of GEMM", "gemm_share", 2),
        ("one row (µs)", "single_row_us", 0),
    ] {
        let _ = writeln!(
            text,
            "| {label} | {} | {} |",
            number(&f[0][key], digits),
            number(&f[1][key], digits)
        );
    }
    let _ = writeln!(
        text,
        "\nVerification of an 8×256 layer: {} ms.\n",
        number(&result["verification"]["median_ms"], 0)
    );
    for i in result["davis_yin_iteration"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "A Davis–Yin iteration at batch {}: {} µs; its products alone {} µs; ratio {}.\n",
            i["batch"],
            number(&i["iteration_us"], 0),
            number(&i["products_us"], 0),
            number(&i["ratio"], 2)
        );
    }
    let _ = writeln!(
        text,
        "## Inverse of one layer, n = 20, 8×256, to a certified error of 1e-8\n\n![error against iteration](inverse.svg)\n"
    );
    let _ = writeln!(
        text,
        "Rows that did not arrive within the limit (30,000 steps at batch 1; at batch 1,000, 1,500 steps for τ = 50 and 500 beyond) are shown as they stand.\n"
    );
    let _ = writeln!(
        text,
        "| τ | batch | method | time (ms) | steps, mean | steps, max | arrived | largest bound | largest true error |\n|---|---|---|---|---|---|---|---|---|"
    );
    for l in lines {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {:.1} | {} | {} of {} | {:.1e} | {:.1e} |",
            l.distortion,
            l.batch,
            l.method,
            l.times.median * 1e3,
            l.mean,
            l.most,
            l.converged,
            l.batch,
            l.bound,
            l.error
        );
    }
    text
}
