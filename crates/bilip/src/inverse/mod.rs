//! The inverse of a network, every answer with a certified error.
//!
//! With `‖G(x) − G(x')‖ ≥ μ‖x − x'‖` proved, any candidate x̂ satisfies `‖x̂ − G⁻¹(y)‖ ≤ ‖G(x̂) −
//! y‖/μ`. That is the stopping test of every method here and the bound in every answer, with the
//! rounding error of `G(x̂)` itself added (see the module `rounding`), so that it is a bound and
//! not a measurement.
//!
//! A network is inverted layer by layer from the output; the bound is that of the whole network.

mod auto;
mod davis_yin;
mod drive;
mod first_order;
mod forward;
mod krylov;
mod newton;
mod options;
mod path;
mod report;
mod resolvent;
mod state;

pub use davis_yin::DavisYin;
pub use first_order::{InverseMethod, Iteration, LayerProblem};
pub use forward::{ForwardBackward, ForwardBackwardForward, ForwardStep};
pub use newton::Newton;
pub use options::{InverseOptions, Method};
pub use report::{Inverse, RowReport, Status, TracePoint};
pub use resolvent::{DouglasRachford, PeacemanRachford};

use auto::solve_layer;
use state::{Goal, RowState};

use crate::base::error::{Result, check_batch, check_rows};
use crate::base::parallel;
use crate::base::real::UNIT_ROUNDOFF;
use crate::base::rounding::{SAFETY, norm_up};
use crate::certify::{Proved, out_of_range};
use crate::layers::bias::{Bias, RowBiases};
use crate::layers::channels::ChannelOrthogonal;
use crate::layers::layer::{Direction, Layer};
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;
use crate::layers::stack::{LayerRef, Stack, Workspace};

/// Rows a block of a first-order method holds.
///
/// A block re-reads the weights once an iteration, so larger blocks spare memory traffic until
/// their state (24 bytes a hidden unit and row) leaves the cache.
const BLOCK_ROWS: usize = 64;

/// Inverts every row of `y`.
///
/// Changes of variables at the ends are undone one by one: the proof is then that of the network
/// between them, and columns of very different units cost it nothing.
pub(crate) fn invert(stack: &Stack<'_, f64>, y: &[f64], options: &InverseOptions) -> Result<Inverse> {
    let n = stack.n;
    let rows = check_batch("y", y, n)?;
    options.check(rows, n)?;
    stack.prepare();
    for layer in &stack.layers {
        layer.certificate().need_positive()?;
    }
    if Proved::product(stack.layers.iter().map(|l| l.bounds()))
        .bounds()
        .is_none()
    {
        return Err(out_of_range());
    }
    let (input, inner, output) = without_scalings(stack);
    if (input.is_none() && output.is_none()) || inner.layers.is_empty() {
        return Ok(invert_network(stack, y, options));
    }
    // y' = (y − b)/d, rounded once: an error of at most u‖y'‖.
    let undo = |s: Option<&Scaling<f64>>, values: &[f64]| -> Vec<f64> {
        match s {
            None => values.to_vec(),
            Some(s) => (values.iter().enumerate())
                .map(|(k, v)| (v - s.shift()[k % n]) / s.scale()[k % n])
                .collect(),
        }
    };
    let target = undo(output, y);
    let spread = |s: Option<&Scaling<f64>>| {
        s.map_or((1.0, 1.0), |s| (s.proof().proved().mu(), s.proof().proved().nu()))
    };
    let ((input_low, input_high), (_, output_high)) = (spread(input), spread(output));
    let bounds = Proved::product(inner.layers.iter().map(|l| l.bounds()));
    let inner_options = InverseOptions {
        // A little less than the tolerance leaves room for the roundings of the changes of
        // variables.
        tolerance: 0.9 * options.tolerance * input_low,
        start: options.start.as_ref().map(|x| {
            let s = input.map(|s| (s.scale(), s.shift()));
            (x.iter().enumerate())
                .map(|(k, v)| s.map_or(*v, |(d, b)| d[k % n] * v + b[k % n]))
                .collect()
        }),
        ..options.clone()
    };
    let mut inverse = invert_network(&inner, &target, &inner_options);
    inverse.x = undo(input, &inverse.x);
    const U: f64 = UNIT_ROUNDOFF;
    let or_infinite = |bound: f64| if bound.is_nan() { f64::INFINITY } else { bound };
    for (k, row) in inverse.rows.iter_mut().enumerate() {
        let range = k * n..(k + 1) * n;
        if row.status == Status::OutOfRange || inverse.x[range.clone()].iter().any(|v| !v.is_finite()) {
            *row = RowReport {
                iterations: row.iterations,
                trace: std::mem::take(&mut row.trace),
                ..RowReport::out_of_range()
            };
            inverse.x[range].fill(f64::NAN);
            continue;
        }
        let moved = 1.01 * U * norm_up(&target[range.clone()]);
        let rounded = 1.01 * U * norm_up(&inverse.x[range]);
        row.residual *= output_high;
        row.residual_bound = or_infinite(
            (row.residual_bound + moved + bounds.nu() * input_high * rounded) * output_high * SAFETY,
        );
        row.error_bound =
            or_infinite(((row.error_bound + moved / bounds.mu()) / input_low + rounded) * SAFETY);
        for point in &mut row.trace {
            point.error /= input_low;
        }
        row.status = match row.status {
            _ if row.error_bound <= options.tolerance => Status::Converged,
            Status::Converged => Status::PrecisionLimit,
            other => other,
        };
    }
    Ok(inverse)
}

/// The changes of variables at the ends of a stack, and the network between them.
fn without_scalings<'a>(
    stack: &Stack<'a, f64>,
) -> (Option<&'a Scaling<f64>>, Stack<'a, f64>, Option<&'a Scaling<f64>>) {
    let scaling = |layer: Option<&LayerRef<'a, f64>>| match layer {
        Some(LayerRef::Scaling(s)) => Some(*s),
        _ => None,
    };
    let input = scaling(stack.layers.first());
    let output = scaling(stack.layers.last()).filter(|_| stack.layers.len() > 1);
    let range = usize::from(input.is_some())..stack.layers.len() - usize::from(output.is_some());
    let biases = stack.biases.as_ref().map(|b| RowBiases {
        layers: b.layers[range.clone()].to_vec(),
        errors: b.errors[range.clone()].to_vec(),
    });
    (input, Stack::new(stack.layers[range].to_vec(), biases), output)
}

/// Inverts every row of `y` through all layers.
fn invert_network(stack: &Stack<'_, f64>, y: &[f64], options: &InverseOptions) -> Inverse {
    let n = stack.n;
    let rows = y.len() / n;
    let bounds = Proved::product(stack.layers.iter().map(|l| l.bounds()));
    let block = match &options.method {
        // A Newton block is worked through in sub-blocks of Jacobians; it only has to feed the
        // threads.
        Method::Auto | Method::Newton(_) => BLOCK_ROWS.min(rows.div_ceil(4 * parallel::threads()).max(1)),
        _ => BLOCK_ROWS,
    };
    let parts = parallel::map_chunks(rows, block, |range| {
        let slice = range.start * n..range.end * n;
        let start = options.start.as_ref().map(|x| &x[slice.clone()]);
        invert_block(&stack.rows(range), &y[slice], start, bounds, options)
    });
    let mut x = Vec::with_capacity(y.len());
    let mut reports = Vec::with_capacity(rows);
    for (row, y) in parts.into_iter().flatten().zip(y.chunks_exact(n)) {
        // A solver that met infinities has nothing to say: its last point is no better than any
        // other.
        if row.x.iter().chain(y).any(|v| !v.is_finite()) || row.report.error_bound.is_infinite() {
            x.extend(std::iter::repeat_n(f64::NAN, n));
            reports.push(RowReport {
                iterations: row.report.iterations,
                trace: row.report.trace,
                ..RowReport::out_of_range()
            });
            continue;
        }
        x.extend_from_slice(&row.x);
        let mut report = row.report;
        // The error bound is the residual, with its rounding, over μ.
        report.residual_bound = (report.error_bound * bounds.mu() * (1.0 + 1e-15)).next_up();
        reports.push(report);
    }
    Inverse { x, rows: reports }
}

fn invert_block(
    stack: &Stack<'_, f64>,
    y: &[f64],
    start: Option<&[f64]>,
    bounds: Proved,
    options: &InverseOptions,
) -> Vec<RowState> {
    let n = stack.n;
    let rows = y.len() / n;
    if let [layer] = stack.layers[..]
        && let Some(layer) = layer.monotone()
    {
        // A single layer's certificate is the whole certificate.
        let goal = Goal {
            mu: bounds.mu(),
            tolerance: options.tolerance,
            limit: options.limit(),
            trace: options.trace,
            layer: 0,
        };
        return solve_layer(layer, stack, y, start, goal, options);
    }
    let starts = start.map(|start| layer_inputs(stack, start));
    let mut target = y.to_vec();
    let mut iterations = vec![0; rows];
    let mut traces: Vec<Vec<TracePoint>> = vec![Vec::new(); rows];
    let mut statuses = vec![Status::Converged; rows];
    let monotone = stack
        .layers
        .iter()
        .filter(|l| l.monotone().is_some())
        .count()
        .max(1);
    // Residual ρ_k at layer k reaches the output enlarged by the later ν's at most: share the
    // tolerance out so that the whole network's ‖G(x̂) − y‖/μ meets it.
    let mut later_nu = 1.0;
    for (k, layer) in stack.layers.iter().enumerate().rev() {
        match layer {
            LayerRef::Orthogonal(l) => {
                let bias = stack.bias(k);
                for j in 0..rows {
                    invert_orthogonal(l, &mut target[j * n..(j + 1) * n], bias.column(j));
                }
            }
            LayerRef::Scaling(l) => {
                let bias = stack.bias(k);
                for j in 0..rows {
                    let row = &mut target[j * n..(j + 1) * n];
                    for (i, (value, shift)) in row.iter_mut().zip(bias.column(j)).enumerate() {
                        *value = (*value - shift) / l.scale()[i];
                    }
                }
            }
            LayerRef::ChannelOrthogonal(l) => invert_channels(l, &mut target, stack.bias(k)),
            LayerRef::MonLip(_) | LayerRef::ConvMonLip(_) => {
                let Some(monotone_layer) = layer.monotone() else {
                    continue;
                };
                let single = single_layer(stack, k);
                let mu = layer.bounds().mu();
                let tolerance = 0.5 * options.tolerance * bounds.mu() / (monotone as f64 * later_nu) / mu;
                let goal = Goal {
                    mu,
                    tolerance,
                    limit: options.limit(),
                    trace: options.trace,
                    layer: k,
                };
                let start = starts.as_ref().map(|s| s[k].as_slice());
                let solved = solve_layer(monotone_layer, &single, &target, start, goal, options);
                for (j, row) in solved.into_iter().enumerate() {
                    target[j * n..(j + 1) * n].copy_from_slice(&row.x);
                    iterations[j] += row.report.iterations;
                    statuses[j] = worse(statuses[j], row.report.status);
                    traces[j].extend(row.report.trace);
                }
            }
        }
        later_nu *= layer.bounds().nu();
    }

    // The whole network's bound, with Newton steps on the whole network where the method is
    // Newton's and rounding in the layers left something to do.
    let goal = Goal {
        mu: bounds.mu(),
        tolerance: options.tolerance,
        limit: match options.method {
            Method::Auto | Method::Newton(_) => 10,
            _ => 0,
        },
        trace: false,
        layer: 0,
    };
    let newton = match &options.method {
        Method::Newton(newton) => *newton,
        _ => Newton::default(),
    };
    let mut solved = newton::solve(stack, y, &target, goal, &newton);
    for (j, row) in solved.iter_mut().enumerate() {
        row.report.iterations += iterations[j];
        row.report.trace = std::mem::take(&mut traces[j]);
        if row.report.status != Status::Converged {
            row.report.status = match statuses[j] {
                Status::Converged => Status::PrecisionLimit,
                other => other,
            };
        }
    }
    solved
}

/// The less favorable of two endings.
fn worse(a: Status, b: Status) -> Status {
    let rank = |s| match s {
        Status::Converged => 0,
        Status::PrecisionLimit => 1,
        Status::MaxIterations => 2,
        Status::Stalled => 3,
        Status::OutOfRange => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// One layer of a stack as a stack of its own.
fn single_layer<'a>(stack: &Stack<'a, f64>, k: usize) -> Stack<'a, f64> {
    let biases = stack.biases.as_ref().map(|b| RowBiases {
        layers: vec![b.layers[k].clone()],
        errors: vec![b.errors[k].clone()],
    });
    Stack::new(vec![stack.layers[k]], biases)
}

/// Inputs of every layer when the network is evaluated at `x`.
fn layer_inputs(stack: &Stack<'_, f64>, x: &[f64]) -> Vec<Vec<f64>> {
    let mut inputs = Vec::with_capacity(stack.layers.len());
    let mut at = x.to_vec();
    for k in 0..stack.layers.len() {
        inputs.push(at.clone());
        single_layer(stack, k).forward_block(&mut at, &mut Workspace::default());
    }
    inputs
}

/// The same at every pixel of some rows.
fn invert_channels(layer: &ChannelOrthogonal<f64>, y: &mut [f64], bias: Bias<'_, f64>) {
    let (channels, pixels) = (layer.channels(), layer.image() * layer.image());
    let mut values = vec![0.0; channels];
    for (j, row) in y.chunks_exact_mut(channels * pixels).enumerate() {
        for p in 0..pixels {
            for c in 0..channels {
                values[c] = row[c * pixels + p];
            }
            invert_orthogonal(layer.map(), &mut values, bias.column(j));
            for c in 0..channels {
                row[c * pixels + p] = values[c];
            }
        }
    }
}

/// `x = P⁻¹(y − q)` in place: the transpose, refined for what rounding left of orthogonality.
fn invert_orthogonal(layer: &Orthogonal<f64>, y: &mut [f64], bias: &[f64]) {
    let n = y.len();
    let p = layer.matrix();
    let w = faer::Col::<f64>::from_fn(n, |i| y[i] - bias[i]);
    let mut x = p.transpose() * &w;
    // Each round multiplies the error by ‖PᵀP − I‖: two rounds for a rounded orthogonal matrix,
    // more for a poor one.
    let mut last = f64::INFINITY;
    for _ in 0..60 {
        let residual = &w - p * &x;
        let size = residual.norm_l2();
        if size >= 0.5 * last && size <= 1e-12 * w.norm_l2() || size == 0.0 {
            break;
        }
        last = size;
        x += p.transpose() * residual;
    }
    for i in 0..n {
        y[i] = x[i];
    }
}

/// `J(x)⁻ᵀ w` for every row.
pub(crate) fn inverse_vjp(stack: &Stack<'_, f64>, x: &[f64], w: &[f64]) -> Result<Vec<f64>> {
    let n = stack.n;
    let rows = check_batch("x", x, n)?;
    check_rows("cotangent", w, rows, n)?;
    let parts = parallel::map_chunks(rows, 16, |range| {
        let mut out = Vec::with_capacity(range.len() * n);
        for j in range {
            let row = stack.rows(j..j + 1);
            let x = &x[j * n..(j + 1) * n];
            let w = &w[j * n..(j + 1) * n];
            out.extend(newton::linear_solve(
                &row,
                x,
                w,
                Direction::Reverse,
                &Newton::default(),
                (1e-12, usize::MAX),
            ));
        }
        out
    });
    Ok(parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::bounds::Bounds;
    use crate::base::random::Rng;
    use crate::base::rounding::norm;
    use crate::layers::activation::Activation;
    use crate::layers::monlip::{MonLip, MonLipFree, RandomLayer};
    use crate::networks::map::BiLipschitz;

    #[test]
    fn krylov_and_dense_newton_agree() {
        let mut rng = Rng::new(22);
        let bounds = Bounds::new(0.1, 10.0).unwrap();
        let free = MonLipFree::random(
            &RandomLayer::new(30, &[40, 40], bounds).with_activation(Activation::Tanh),
            &mut rng,
        )
        .unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let y = rng.normals(30 * 3);
        let dense = layer
            .inverse(
                &y,
                &InverseOptions::with_method(Method::Newton(Newton::default())),
            )
            .unwrap();
        let krylov = Newton {
            krylov_above: 0,
            ..Default::default()
        };
        let krylov = layer
            .inverse(&y, &InverseOptions::with_method(Method::Newton(krylov)))
            .unwrap();
        assert!(dense.converged() && krylov.converged());
        let difference: Vec<f64> = dense.x.iter().zip(&krylov.x).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) <= dense.max_error_bound() * 3.0 + krylov.max_error_bound() * 3.0);
    }

    #[test]
    fn a_step_size_out_of_range_is_reported_and_bounded_not_hidden() {
        let mut rng = Rng::new(23);
        let bounds = Bounds::new(0.1, 10.0).unwrap();
        let free = MonLipFree::random(&RandomLayer::new(4, &[16, 16], bounds), &mut rng).unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let x = rng.normals(4);
        let y = layer.forward(&x).unwrap();
        // The published default, α = 1, is a hundred times too long here.
        let method = Method::DavisYin(DavisYin {
            alpha: Some(1.0),
            relaxation: 1.0,
        });
        let options = InverseOptions {
            max_iterations: Some(2_000),
            ..InverseOptions::with_method(method)
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        assert_ne!(inverse.rows[0].status, Status::Converged);
        let distance = norm(&inverse.x.iter().zip(&x).map(|(a, b)| a - b).collect::<Vec<_>>());
        assert!(distance <= inverse.rows[0].error_bound);
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let mut rng = Rng::new(24);
        let bounds = Bounds::new(0.5, 2.0).unwrap();
        let free = MonLipFree::random(&RandomLayer::new(2, &[4], bounds), &mut rng).unwrap();
        let layer = MonLip::<f64>::from_free(&free).unwrap();
        let options = InverseOptions::default;
        for bad in [
            InverseOptions {
                tolerance: f64::NAN,
                ..options()
            },
            InverseOptions {
                tolerance: -1.0,
                ..options()
            },
            InverseOptions {
                max_iterations: Some(0),
                ..options()
            },
            InverseOptions {
                start: Some(vec![0.0; 3]),
                ..options()
            },
            InverseOptions::with_method(Method::DavisYin(DavisYin {
                alpha: Some(0.0),
                relaxation: 1.0,
            })),
            InverseOptions::with_method(Method::DouglasRachford(DouglasRachford { alpha: f64::NAN })),
            InverseOptions::with_method(Method::ForwardStep(ForwardStep { step: Some(-1.0) })),
        ] {
            assert!(layer.inverse(&[0.0, 0.0], &bad).is_err(), "{bad:?}");
        }
        assert!(layer.inverse(&[0.0, f64::NAN], &options()).is_err());
        assert!(layer.inverse(&[0.0; 3], &options()).is_err());
        assert!(layer.inverse(&[], &options()).unwrap().rows.is_empty());
    }
}
