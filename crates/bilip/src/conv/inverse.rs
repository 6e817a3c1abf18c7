//! The inverse of a convolutional layer, with a certified error for every image.

use super::accurate::Accurate;
use super::{Complex, ConvMonLip, Frequency, Slopes, Spectrum};
use faer::Mat;
use faer::linalg::solvers::Solve;

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
/// Newton steps with accurate residuals.
const REFINEMENTS: usize = 6;
/// Steps of a splitting between two looks at the error.
const LOOK: usize = 10;

/// An image on its way, and what is known of its error.
struct State {
    x: Vec<f64>,
    /// `y − F(x)`, and a bound on its rounding error.
    residual: Vec<f64>,
    rounding: f64,
}

impl<T: Real> ConvMonLip<T> {
    /// The x with `F(x) = y` for every row, each with a certified error: by Newton's method with Krylov solves, by Davis–Yin or Douglas–Rachford splitting with their
    /// resolvents frequency by frequency, or (`auto`) by the first and, should its line search fail, the last. Where the rounding of residuals in f64 is all that
    /// is left to see, a few Newton steps with residuals in double-double arithmetic follow.
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
        layer.certificate.need_positive()?;
        let mu = layer.bounds().mu();
        let norms = layer.norms();
        if !matches!(
            options.method,
            Method::Auto | Method::Newton(_) | Method::DavisYin(_) | Method::DouglasRachford(_)
        ) {
            return Err(Error::setting(
                "method",
                options.method.name(),
                "convolutional layers have auto, newton, dys and drs",
            ));
        }
        let resolvent = parallel::Late::empty();
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
            if status.is_none() {
                let split = |run: (&mut State, &mut usize), alpha: f64| {
                    let resolvent = resolvent.get_or_compute(|| Resolvent::new(&layer, alpha));
                    layer.douglas_rachford(run, y, &norms, &goal, resolvent)
                };
                let run = (&mut state, &mut iterations);
                status = match &options.method {
                    Method::DouglasRachford(method) => split(run, method.alpha),
                    Method::DavisYin(method) => layer.davis_yin(run, y, &norms, &goal, method),
                    _ => layer.newton(run, y, &norms, &goal),
                };
                if options.method == Method::Auto
                    && !matches!(status, Some(Status::Converged | Status::PrecisionLimit))
                {
                    // In between what suits the directions that S sees most and those that it does not.
                    let alpha = (layer.explicit.skip() / layer.explicit.bounds.gap()).powf(0.75);
                    status = split((&mut state, &mut iterations), alpha);
                }
            }
            if status == Some(Status::PrecisionLimit) {
                status = Some(layer.refine(&mut state, y, &norms, &goal, &mut iterations));
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
    fn evaluate_with_error(&self, x: &[f64], norms: &Norms) -> (Vec<f64>, f64) {
        let mut sizes = Sizes::default();
        let y = self.evaluate_recorded(x, None, Some(&mut sizes));
        let s = self.explicit.image as f64;
        let rounding = Rounding {
            unit: UNIT_ROUNDOFF,
            // Of the unitary transform: two products of length s (sums of two), each √s above its norm.
            transform: 3.0 * s.sqrt() * (2.0 * s + 16.0) * UNIT_ROUNDOFF,
            product: |length| (2.0 * length as f64 + 8.0) * UNIT_ROUNDOFF * 1.5,
            own: 16.0 * UNIT_ROUNDOFF,
        };
        let error = self.rounding_error(x, norm_up(&y), &sizes, norms, &rounding);
        (y, error)
    }

    /// What an evaluation may have lost.
    ///
    /// Norm by norm through the formula: a product with the matrix of the Fourier transform, entries at most one and known to a few units in the last place, loses
    /// `(γ_s + 8u)·s` for a matrix of norm √s; a product at a frequency `γ·‖·‖_F`; and of what is lost before an activation, the output feels the square root of
    /// [`Norms::amplification`], for the reason given in [`crate::rounding`].
    pub(super) fn rounding_error(
        &self,
        x: &[f64],
        size_y: f64,
        sizes: &Sizes,
        norms: &Norms,
        r: &Rounding,
    ) -> f64 {
        let e = &self.explicit;
        let s = e.image as f64;
        let widest = e.units.iter().copied().max().unwrap_or(1);
        // Squares of numbers too small for it are missing from the sums.
        let size = |squares: f64| squares.sqrt() + 1e-150;
        let (size_x, size_v, size_z) = (norm_up(x), size(sizes.before), size(sizes.after));
        let size_b = norm_up(&e.hidden_bias) * s;
        let gain = (2.0 * e.bounds.gap()).sqrt();
        let lost_x = r.transform * size_x;
        let (s2, v2) = (norms.s2, norms.v2.iter().copied().fold(0.0, f64::max));
        // What S gives is in the sum to which the products with V are then added, one by one.
        let driven =
            s2 * lost_x + (r.product)(self.channels() + widest) * norms.s_frobenius * (size_x + lost_x);
        let before = gain * driven
            + ((r.product)(widest) * norms.v_frobenius + v2 * r.transform) * size_z
            + (r.transform + 8.0 * r.unit) * (size_v + size_b);
        // The activation's own rounding, which later layers and the output see.
        let own = (r.own + 16.0 * r.unit) * (size_v + size_b + size_z);
        // The square root is for weights whose condition is proved.
        let amplified = match self.certificate.margin() >= 0.0 {
            true => norms.amplification.sqrt(),
            false => s2 * norms.amplification,
        };
        let through = amplified * (before + (1.0 + v2) * own);
        let out = through
            + s2 * (own + r.transform * size_z)
            + (r.product)(e.hidden_bias.len()) * norms.s_frobenius * size_z;
        let output_bias = norm_up(&e.output_bias) * s;
        let error = 0.5 * gain * (out + r.transform * s2 * size_z)
            + 8.0 * r.unit * (size_y + e.skip().abs() * size_x + output_bias);
        // What was left out is of second order, and what underflow takes is nothing.
        1.01 * error + 1e-140
    }

    /// A few more steps of Newton's method with residuals in double-double arithmetic, where the plain ones have said all they can.
    fn refine(
        &self,
        state: &mut State,
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
        iterations: &mut usize,
    ) -> Status {
        let accurate = Accurate::new(self);
        let at = |x: Vec<f64>| {
            let (residual, rounding) = accurate.residual(&x, y, norms);
            State {
                x,
                residual,
                rounding,
            }
        };
        *state = at(std::mem::take(&mut state.x));
        for _ in 0..REFINEMENTS {
            if let Some(status) = goal.verdict(state) {
                return status;
            }
            let slopes: Slopes<f64> = self.slopes(&state.x);
            let step = gmres(|w| self.tangent(&slopes, w), &state.residual, 1e-6, PRODUCTS);
            *iterations += 1;
            let next = at(state.x.iter().zip(&step).map(|(x, d)| x + d).collect());
            let better = norm(&next.residual) < norm(&state.residual);
            if !better {
                return Status::Stalled;
            }
            *state = next;
        }
        goal.verdict(state).unwrap_or(Status::MaxIterations)
    }

    fn newton(
        &self,
        (state, iterations): (&mut State, &mut usize),
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
    ) -> Option<Status> {
        // How exactly a step is solved for: as the steps before have paid (Eisenstat and Walker 1996).
        let mut forcing: f64 = 0.1;
        for _ in 0..goal.limit.unwrap_or(NEWTON_LIMIT) {
            let slopes: Slopes<f64> = self.slopes(&state.x);
            let size = norm(&state.residual);
            let enough = 0.1 * goal.mu * goal.tolerance / size;
            let step = gmres(
                |w| self.tangent(&slopes, w),
                &state.residual,
                forcing.max(enough).min(0.5),
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
            forcing = (0.9 * (norm(&state.residual) / size).powi(2)).clamp(1e-6, 0.1);
        }
        None
    }

    /// Davis–Yin splitting in the hidden variables: prox of the activation pixel by pixel, everything linear frequency by frequency.
    fn davis_yin(
        &self,
        (state, iterations): (&mut State, &mut usize),
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
        method: &DavisYin,
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
        let mut progress = Progress::default();
        for count in 1..=limit {
            let half = self.prox(alpha, &u);
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
                if let Some(status) = progress.look(state, self.at(x, y, norms), goal) {
                    return Some(status);
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

    /// `prox^α(u)` of the activation, pixel by pixel.
    fn prox(&self, alpha: f64, u: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let e = &self.explicit;
        let pixels = e.image * e.image;
        (u.iter().enumerate())
            .map(|(k, u)| {
                let units = self.units_of(k);
                (u.iter().enumerate())
                    .map(|(at, v)| {
                        let psi = e.psi.as_ref().map(|psi| psi[units.start + at / pixels]);
                        e.activation.prox_scaled(alpha, *v, psi)
                    })
                    .collect()
            })
            .collect()
    }

    /// Douglas–Rachford splitting in the hidden variables, as [`crate::DouglasRachford`]: prox of the activation pixel by pixel, the resolvent of everything linear
    /// frequency by frequency.
    fn douglas_rachford(
        &self,
        (state, iterations): (&mut State, &mut usize),
        y: &[f64],
        norms: &Norms,
        goal: &Goal,
        resolvent: &Resolvent,
    ) -> Option<Status> {
        let e = &self.explicit;
        let (mu, gamma, alpha) = (e.skip(), e.bounds.gap(), resolvent.alpha);
        let (all, pixels) = (e.frequencies.len(), e.image * e.image);
        let mut target = self
            .fourier
            .forward(&self.without_output_bias(y), self.channels());
        target.scale(1.0 / mu);
        let mut u: Vec<Vec<f64>> = self.hidden(&state.x);
        let limit = goal.limit.unwrap_or(10_000);
        let mut progress = Progress::default();
        for count in 1..=limit {
            let half = self.prox(alpha, &u);
            // q = K⁻¹(2z½ − u + αb̂), layer by layer, and Sᴴq.
            let mut back = Spectrum::zeros(all, self.channels(), 1);
            let mut q: Vec<Spectrum<f64>> = Vec::with_capacity(u.len());
            for k in 0..u.len() {
                let units = self.units_of(k);
                let right: Vec<f64> = (0..u[k].len())
                    .map(|i| 2.0 * half[k][i] - u[k][i] + alpha * e.hidden_bias[units.start + i / pixels])
                    .collect();
                let mut own = self.fourier.forward(&right, units.len());
                if let Some(before) = q.last() {
                    let mut from = Spectrum::zeros(all, units.len(), 1);
                    self.add_v(&mut from, 0..units.len(), k, false, before);
                    own.add_scaled(alpha, &from);
                }
                own.scale(1.0 / (1.0 + alpha));
                self.add_s_adjoint(&mut back, k, 1.0, &own);
                q.push(own);
            }
            // x of the resolvent, and its hidden variables w = q + α√(2γ)Wx.
            let mut right = target.clone();
            right.add_scaled(-(0.5 * gamma).sqrt() / mu, &back);
            let mut x = Spectrum::zeros(all, self.channels(), 1);
            let core = |f: usize| (resolvent.core[f].parts(), false);
            x.add_product(0..self.channels(), 1.0, core, &right, 0..self.channels());
            for (k, mut w) in q.into_iter().enumerate() {
                let units = self.units_of(k);
                let solved = |f: usize| (resolvent.solved[f].parts_of_rows(units.clone()), false);
                let factor = alpha * (2.0 * gamma).sqrt();
                w.add_product(0..units.len(), factor, solved, &x, 0..self.channels());
                for ((u, w), half) in u[k].iter_mut().zip(self.fourier.inverse(&w)).zip(&half[k]) {
                    *u += w - half;
                }
            }
            *iterations += 1;
            if count % LOOK == 0 || count == limit {
                let next = self.at(self.fourier.inverse(&x), y, norms);
                if let Some(status) = progress.look(state, next, goal) {
                    return Some(status);
                }
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

/// What the resolvent of the linear part needs at every frequency: `W = K⁻¹S` with `K = (1 + α)I − αV`, and `(I + α(γ/μ)SᴴW)⁻¹`.
struct Resolvent {
    alpha: f64,
    solved: Vec<Complex<f64>>,
    core: Vec<Complex<f64>>,
}

impl Resolvent {
    fn new(layer: &ConvMonLip<f64>, alpha: f64) -> Self {
        let e = &layer.explicit;
        let ratio = e.bounds.gap() / e.skip();
        let parts = parallel::map(e.frequencies.len(), |f| {
            let Frequency { v, s } = &e.frequencies[f];
            let (m, c) = s.re.shape();
            let mut solved: Complex<f64> = Complex::zeros(m, c);
            for k in 0..e.units.len() {
                let units = layer.units_of(k);
                let mut own = s.rows(units.start, units.len());
                if k > 0 {
                    let before = layer.units_of(k - 1);
                    let from = v[k - 1].times(&solved.rows(before.start, before.len()));
                    own.re += alpha * &from.re;
                    own.im += alpha * &from.im;
                }
                for (to, own) in [(&mut solved.re, own.re), (&mut solved.im, own.im)] {
                    to.as_mut()
                        .subrows_mut(units.start, units.len())
                        .copy_from(&own * (1.0 / (1.0 + alpha)));
                }
            }
            let mut system = s.adjoint().times(&solved).embedded() * (alpha * ratio);
            (0..2 * c).for_each(|i| system[(i, i)] += 1.0);
            let core = system.partial_piv_lu().solve(Mat::<f64>::identity(2 * c, 2 * c));
            (solved, Complex::from_embedded(core.as_ref()))
        });
        let (solved, core) = parts.into_iter().unzip();
        Resolvent { alpha, solved, core }
    }
}

/// Whether a splitting still gets on.
struct Progress {
    looks: usize,
    best: f64,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            looks: 0,
            best: f64::INFINITY,
        }
    }
}

impl Progress {
    /// Takes the next state if it is better; a verdict, if there is one, or that nothing has become better for long: a step out of range makes it grow.
    fn look(&mut self, state: &mut State, next: State, goal: &Goal) -> Option<Status> {
        if goal.error_bound(&next) < goal.error_bound(state) {
            *state = next;
        }
        if let Some(status) = goal.verdict(state) {
            return Some(status);
        }
        self.looks += 1;
        if self.looks.is_multiple_of(50) {
            let now = norm(&state.residual);
            if now >= self.best {
                return Some(Status::Stalled);
            }
            self.best = now;
        }
        None
    }
}

/// What the operations of an evaluation lose, relative to the sizes of what they work on.
pub(super) struct Rounding {
    /// One operation.
    pub(super) unit: f64,
    /// A Fourier transform, or its inverse, scaled to be unitary.
    pub(super) transform: f64,
    /// A complex product of so many terms.
    pub(super) product: fn(usize) -> f64,
    /// An activation.
    pub(super) own: f64,
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
