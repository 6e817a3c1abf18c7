//! The inverse of a convolutional layer, with a certified error for every image.

use super::{ConvMonLip, Slopes, Spectrum};
use crate::certificate::Norms;
use crate::error::{Error, Result, check_batch};
use crate::inverse::{DavisYin, Inverse, InverseOptions, Method, RowReport, Status, gmres};
use crate::parallel;
use crate::real::{Real, UNIT_ROUNDOFF};
use crate::rounding::{norm, norm_up};

/// Newton steps before Davis–Yin takes over.
const NEWTON_LIMIT: usize = 50;
/// Products with the Jacobian that a Newton step may take.
const PRODUCTS: usize = 300;
/// Halvings of a Newton step.
const HALVINGS: usize = 12;
/// Davis–Yin steps between two looks at the error.
const LOOK: usize = 10;

/// An image on its way, and what is known of its error.
struct State {
    x: Vec<f64>,
    /// `y − F(x)`, and a bound on its rounding error.
    residual: Vec<f64>,
    rounding: f64,
}

impl<T: Real> ConvMonLip<T> {
    /// The x with `F(x) = y` for every row, each with a certified error: Newton's method with Krylov solves, Davis–Yin splitting with the resolvent
    /// frequency by frequency, or (`auto`) the first with the second behind it.
    ///
    /// The stored numbers are converted, exactly, to `f64`, in which everything certified is computed.
    ///
    /// # Errors
    /// On a batch of the wrong size or with NaN or infinity, on settings out of range, on other methods, and when no positive μ is proved. A row that does not reach the
    /// tolerance is no error: its [`Status`] says so.
    pub fn inverse(&self, y: &[f64], options: &InverseOptions) -> Result<Inverse> {
        let layer = self.to_f64();
        let n = layer.dim();
        let rows = check_batch("y", y, n)?;
        options.check(rows, n)?;
        let mu = layer.bounds()?.mu();
        let norms = layer.norms();
        let (newton, splitting) = match &options.method {
            Method::Auto => (true, Some(DavisYin::default())),
            Method::Newton(_) => (true, None),
            Method::DavisYin(method) => (false, Some(*method)),
            other => {
                return Err(Error::setting(
                    "method",
                    other.name(),
                    "convolutional layers have auto, newton and dys",
                ));
            }
        };
        let solved = parallel::map(rows, |r| {
            let y = &y[r * n..(r + 1) * n];
            let start = match &options.start {
                Some(start) => start[r * n..(r + 1) * n].to_vec(),
                None => layer.first_guess(y),
            };
            let goal = Goal {
                mu,
                tolerance: options.tolerance,
                limit: options.max_iterations,
            };
            let mut state = layer.at(start, y, &norms);
            let mut iterations = 0;
            let mut status = goal.verdict(&state);
            if newton && status.is_none() {
                status = layer.newton(&mut state, y, &norms, &goal, &mut iterations);
            }
            if let Some(method) = &splitting
                && !matches!(status, Some(Status::Converged | Status::PrecisionLimit))
            {
                status = layer.davis_yin(&mut state, y, &norms, &goal, method, &mut iterations);
            }
            let residual = norm(&state.residual);
            let report = RowReport {
                status: status.unwrap_or(Status::MaxIterations),
                iterations,
                residual,
                residual_bound: goal.residual_bound(&state),
                error_bound: goal.error_bound(&state),
                trace: Vec::new(),
            };
            (state.x, report)
        });
        let (x, rows): (Vec<Vec<f64>>, Vec<RowReport>) = solved.into_iter().unzip();
        Ok(Inverse { x: x.concat(), rows })
    }
}

struct Goal {
    mu: f64,
    tolerance: f64,
    limit: Option<usize>,
}

impl Goal {
    fn residual_bound(&self, state: &State) -> f64 {
        (norm_up(&state.residual) + state.rounding) * (1.0 + 4.0 * UNIT_ROUNDOFF)
    }

    fn error_bound(&self, state: &State) -> f64 {
        let bound = self.residual_bound(state) / self.mu * (1.0 + 4.0 * UNIT_ROUNDOFF);
        if bound.is_finite() { bound } else { f64::INFINITY }
    }

    fn verdict(&self, state: &State) -> Option<Status> {
        if self.error_bound(state) <= self.tolerance {
            return Some(Status::Converged);
        }
        // No iteration can see below the rounding of F.
        (norm(&state.residual) <= state.rounding).then_some(Status::PrecisionLimit)
    }
}

impl ConvMonLip<f64> {
    /// Inverse of the part of the layer that is surely there: half way between the bounds.
    fn first_guess(&self, y: &[f64]) -> Vec<f64> {
        let e = &self.explicit;
        let slope = e.skip() + 0.5 * e.bounds.gap();
        self.without_output_bias(y).iter().map(|v| v / slope).collect()
    }

    fn without_output_bias(&self, y: &[f64]) -> Vec<f64> {
        let e = &self.explicit;
        let pixels = e.image * e.image;
        y.iter()
            .enumerate()
            .map(|(k, v)| v - e.output_bias[k / pixels % e.output_bias.len()])
            .collect()
    }

    fn at(&self, x: Vec<f64>, y: &[f64], norms: &Norms) -> State {
        let (value, error) = self.evaluate_with_error(&x, norms);
        let residual: Vec<f64> = y.iter().zip(&value).map(|(y, v)| y - v).collect();
        let rounding = error + UNIT_ROUNDOFF * (norm_up(y) + norm_up(&value));
        State {
            x,
            residual,
            rounding,
        }
    }

    /// `F(x)` of one image, and a proved bound on the Euclidean norm of its rounding error.
    ///
    /// Norm by norm through the formula: a product with the matrix of the Fourier transform, entries at most one and known to a few units in the last place, loses
    /// `(γ_s + 8u)·s` for a matrix of norm √s; a product at a frequency `γ·‖·‖_F`; and of what is lost before an activation, the output feels the square root of
    /// [`Norms::amplification`], for the reason given in [`crate::rounding`].
    fn evaluate_with_error(&self, x: &[f64], norms: &Norms) -> (Vec<f64>, f64) {
        let e = &self.explicit;
        let mut sizes = Sizes::default();
        let y = self.evaluate_recorded(x, None, Some(&mut sizes));
        let u = UNIT_ROUNDOFF;
        let s = e.image as f64;
        // Of the unitary transform: two products of length s (sums of two), each √s above its norm.
        let transform = 2.0 * s.sqrt() * (2.0 * s + 16.0) * u * 1.5;
        let product = |length: usize| (2.0 * length as f64 + 8.0) * u * 1.5;
        let widest = e.units.iter().copied().max().unwrap_or(1);
        let (size_x, size_v, size_z) = (norm_up(x), sizes.before.sqrt(), sizes.after.sqrt());
        let size_b = norm_up(&e.hidden_bias) * s;
        let gain = (2.0 * e.bounds.gap()).sqrt();
        let lost_x = transform * size_x;
        let (s2, v2) = (norms.s2, norms.v2.iter().copied().fold(0.0, f64::max));
        let before = gain * (s2 * lost_x + product(self.channels()) * norms.s_frobenius * (size_x + lost_x))
            + (product(widest) * norms.v_frobenius + v2 * transform) * size_z
            + (transform + 8.0 * u) * (size_v + size_b);
        // The activation's own rounding, which later layers and the output see.
        let own = 16.0 * u * size_z;
        let through = norms.amplification.sqrt() * (before + (1.0 + v2) * own);
        let out = through
            + s2 * (own + transform * size_z)
            + product(e.hidden_bias.len()) * norms.s_frobenius * size_z;
        let output_bias = norm_up(&e.output_bias) * s;
        let error = 0.5 * gain * (out + transform * s2 * size_z)
            + 8.0 * u * (norm_up(&y) + e.skip().abs() * size_x + output_bias);
        // What was left out is of second order.
        (y, 1.01 * error)
    }

    fn newton(
        &self,
        state: &mut State,
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
        iterations: &mut usize,
    ) -> Option<Status> {
        for _ in 0..goal.limit.unwrap_or(NEWTON_LIMIT) {
            let slopes: Slopes<f64> = self.slopes(&state.x);
            let size = norm(&state.residual);
            let step = gmres(
                |w| self.tangent(&slopes, w),
                &state.residual,
                (0.1 * goal.mu * goal.tolerance / size).clamp(1e-12, 1e-2),
                PRODUCTS,
            );
            *iterations += 1;
            let mut share = 1.0;
            let mut better = None;
            for _ in 0..HALVINGS {
                let x: Vec<f64> = state.x.iter().zip(&step).map(|(x, d)| x + share * d).collect();
                let next = self.at(x, y, norms);
                if norm(&next.residual) < (1.0 - 1e-4 * share) * size {
                    better = Some(next);
                    break;
                }
                share *= 0.5;
            }
            match better {
                Some(next) => *state = next,
                None => return Some(Status::Stalled),
            }
            if let Some(status) = goal.verdict(state) {
                return Some(status);
            }
        }
        None
    }

    /// Davis–Yin splitting in the hidden variables: prox of the activation pixel by pixel, everything linear frequency by frequency.
    fn davis_yin(
        &self,
        state: &mut State,
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
        method: &DavisYin,
        iterations: &mut usize,
    ) -> Option<Status> {
        let e = &self.explicit;
        let (mu, gamma) = (e.skip(), e.bounds.gap());
        let s = norms.s2.max(1e-3);
        let alpha = method.alpha.unwrap_or(0.99 * 2.0 * mu / (gamma * s * s));
        let layers = e.units.len();
        let centered = self.without_output_bias(y);
        // b_z = (√(2γ)/μ)S(y − b_y) + b̂, as images.
        let driven = self.s_times(
            &self.fourier.forward(&centered, self.channels()),
            (2.0 * gamma).sqrt() / mu,
        );
        let pixels = e.image * e.image;
        let bias: Vec<Vec<f64>> = (0..layers)
            .map(|k| {
                let units = self.units_of(k);
                let mut images = self.images(&driven, units.clone());
                for (n, image) in images.chunks_exact_mut(pixels).enumerate() {
                    image
                        .iter_mut()
                        .for_each(|v| *v += e.hidden_bias[units.start + n]);
                }
                images
            })
            .collect();
        // From the x that is there: its own hidden variables solve the problem of another y.
        let mut u: Vec<Vec<f64>> = self.hidden(&state.x);
        let limit = goal.limit.unwrap_or(100_000);
        let mut best = f64::INFINITY;
        for count in 1..=limit {
            let half: Vec<Vec<f64>> = (0..layers)
                .map(|k| {
                    let units = self.units_of(k);
                    (u[k].iter().enumerate())
                        .map(|(at, v)| {
                            let psi = e.psi.as_ref().map(|psi| psi[units.start + at / pixels]);
                            e.activation.prox_scaled(alpha, *v, psi)
                        })
                        .collect()
                })
                .collect();
            // Sᵀz½ and, from it, x and (γ/μ)S Sᵀz½.
            let mut back = Spectrum::zeros(e.frequencies.len(), self.channels(), 1);
            for (k, half) in half.iter().enumerate() {
                let units = self.units_of(k);
                self.add_s_adjoint(&mut back, k, 1.0, &self.fourier.forward(half, units.len()));
            }
            *iterations += 1;
            if count % LOOK == 0 || count == limit {
                let image = self.fourier.inverse(&back);
                let x: Vec<f64> = (centered.iter().zip(&image))
                    .map(|(y, z)| (y - (0.5 * gamma).sqrt() * z) / mu)
                    .collect();
                let next = self.at(x, y, norms);
                if goal.error_bound(&next) < goal.error_bound(state) {
                    *state = next;
                }
                if let Some(status) = goal.verdict(state) {
                    return Some(status);
                }
                // A step out of range makes it grow.
                let now = norm(&state.residual);
                if count >= 50 * LOOK && count % (50 * LOOK) == 0 {
                    if now >= best {
                        return Some(Status::Stalled);
                    }
                    best = now;
                }
            }
            let coupled = self.s_times(&back, gamma / mu);
            let mut before: Option<Spectrum<f64>> = None;
            for k in 0..layers {
                let units = self.units_of(k);
                let pull = self.images(&coupled, units.clone());
                let mut right: Vec<f64> = (0..u[k].len())
                    .map(|i| 2.0 * half[k][i] - u[k][i] - alpha * pull[i] + alpha * bias[k][i])
                    .collect();
                if let Some(z) = &before {
                    let mut from = Spectrum::zeros(e.frequencies.len(), units.len(), 1);
                    self.add_v(&mut from, 0..units.len(), k, false, z);
                    for (r, v) in right.iter_mut().zip(self.fourier.inverse(&from)) {
                        *r += alpha * v;
                    }
                }
                right.iter_mut().for_each(|r| *r /= 1.0 + alpha);
                for i in 0..u[k].len() {
                    u[k][i] += method.relaxation * (right[i] - half[k][i]);
                }
                before = Some(self.fourier.forward(&right, units.len()));
            }
        }
        None
    }

    /// The hidden pixels of an image, layer by layer.
    fn hidden(&self, x: &[f64]) -> Vec<Vec<f64>> {
        let mut sizes = Sizes {
            keep: Some(Vec::new()),
            ..Default::default()
        };
        self.evaluate_recorded(x, None, Some(&mut sizes));
        sizes.keep.unwrap_or_default()
    }
}

/// What an evaluation leaves behind.
#[derive(Default)]
pub(super) struct Sizes {
    /// Sums of squares before and after the activations.
    pub(super) before: f64,
    pub(super) after: f64,
    /// The hidden images themselves, where they are asked for.
    pub(super) keep: Option<Vec<Vec<f64>>>,
}
