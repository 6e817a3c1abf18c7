//! The guarantees, as properties of random networks: 256 cases each, more with `PROPTEST_CASES`.

use bilip::faer::{Mat, Side};
use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, InverseOptions, Method, Mlp, MonLip,
    MonLipExplicit, MonLipFree, Newton, PartialBiLipNet, PartialPlNet, PlNet, RandomLayer, Real, Rng, Status,
};
use proptest::prelude::*;

/// A random network of any shape, activation and distortion.
#[derive(Clone, Debug)]
struct Shape {
    n: usize,
    units: Vec<usize>,
    blocks: usize,
    activation: Activation,
    bounds: Bounds,
    scaled: bool,
    general: bool,
    seed: u64,
}

impl Shape {
    fn monlip(&self, rng: &mut Rng) -> MonLipFree {
        let mut free = MonLipFree::random(
            &RandomLayer::new(self.n, &self.units, self.bounds).with_activation(self.activation),
            rng,
        )
        .unwrap();
        if self.scaled {
            free.log_psi = Some(rng.normals(free.fq.nrows()));
        }
        if self.general {
            free.fp = Some(rng.glorot(self.n, self.n));
        }
        free
    }

    fn layer<T: Real>(&self) -> MonLip<T> {
        MonLip::from_free(&self.monlip(&mut Rng::new(self.seed))).unwrap()
    }

    fn net<T: Real>(&self) -> BiLipNet<T> {
        let mut rng = Rng::new(self.seed);
        let mut free = BiLipNetFree::random(
            &RandomLayer::new(self.n, &self.units, self.bounds).with_activation(self.activation),
            self.blocks,
            &mut rng,
        )
        .unwrap();
        free.monotone = (0..self.blocks).map(|_| self.monlip(&mut rng)).collect();
        free.share_bounds().unwrap();
        BiLipNet::from_free(&free).unwrap()
    }
}

fn shapes(n: usize, largest: f64) -> impl Strategy<Value = Shape> {
    (
        1..=n,
        prop::collection::vec(1usize..20, 1..5),
        1usize..=2,
        0usize..Activation::ALL.len(),
        // τ − 1 from 1e-6 up, and μ over four decades.
        (-6.0..largest.log10(), -2.0..2.0f64),
        any::<bool>(),
        prop::bool::weighted(0.25),
        any::<u64>(),
    )
        .prop_map(
            |(n, units, blocks, activation, (log_tau, log_mu), scaled, general, seed)| {
                let mu = 10f64.powf(log_mu);
                let nu = mu * (1.0 + 10f64.powf(log_tau));
                let bounds = Bounds::new(mu, nu).unwrap();
                Shape {
                    n,
                    units,
                    blocks,
                    activation: Activation::ALL[activation],
                    bounds,
                    scaled,
                    general,
                    seed,
                }
            },
        )
}

fn norm(v: &[f64]) -> f64 {
    v.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Asserts `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖` on pairs near and far, allowing for the proved rounding error and
/// nothing else.
fn assert_two_sided<T: Real>(map: &impl BiLipschitz<T>, claim: Bounds, rng: &mut Rng) {
    let n = map.dim();
    for k in 0..12 {
        let scale = 10f64.powi(k % 4 - 1);
        let x: Vec<f64> = rng.normals(n).iter().map(|v| 3.0 * v).collect();
        let other: Vec<f64> = x.iter().map(|v| v + scale * rng.normal()).collect();
        let ((a, ea), (b, eb)) = (
            map.forward_with_error(&x).unwrap(),
            map.forward_with_error(&other).unwrap(),
        );
        let (dx, dy) = (norm(&difference(&x, &other)), norm(&difference(&a, &b)));
        let slack = ea[0] + eb[0] + 1e-13 * dy;
        assert!(
            dy >= claim.mu() * dx * (1.0 - 1e-13) - slack,
            "{dy} < {} · {dx}",
            claim.mu()
        );
        assert!(
            dy <= claim.nu() * dx * (1.0 + 1e-13) + slack,
            "{dy} > {} · {dx}",
            claim.nu()
        );
    }
}

/// Newton's line search fails on this one, and Douglas–Rachford has not arrived after 100,000
/// steps.
#[test]
fn rows_on_which_newton_fails_and_splitting_is_slow_arrive_along_the_path() {
    let shape = Shape {
        n: 21,
        units: vec![2, 4, 4, 13],
        blocks: 1,
        activation: Activation::Relu,
        bounds: Bounds::new(0.7115567997249277, 386527.71878573374).unwrap(),
        scaled: false,
        general: false,
        seed: 18331901831042943936,
    };
    let x = Rng::new(shape.seed ^ 2).normals(shape.n * 3);
    let options = InverseOptions::default();
    fn check<T: Real>(map: &impl BiLipschitz<T>, x: &[f64], options: &InverseOptions) {
        let (y, _) = map.forward_with_error(x).unwrap();
        for row in map.inverse(&y, options).unwrap().rows {
            assert_eq!(row.status, Status::Converged, "{row:?}");
            assert!(row.iterations < 2_000, "{row:?}");
        }
    }
    check(&shape.net::<f64>(), &x, &options);
    check(&shape.layer::<f32>(), &x, &options);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_networks_keep_their_bounds(shape in shapes(32, 1e6)) {
        let mut rng = Rng::new(shape.seed ^ 1);
        let layer = shape.layer::<f64>();
        prop_assert!(layer.layer_certificate().holds());
        assert_two_sided(&layer, shape.bounds, &mut rng);
        assert_two_sided(&shape.layer::<f32>(), shape.bounds, &mut rng);
        let net = shape.net::<f64>();
        prop_assert_eq!(net.bounds().bounds(), Some(shape.bounds));
        assert_two_sided(&net, shape.bounds, &mut rng);
        // μ and ν of an f32 network can be too close for its rounding: an error then, never a false
        // claim.
        if shape.bounds.distortion() > 1.0 + 1e-4 {
            let net = shape.net::<f32>();
            prop_assert_eq!(net.bounds().bounds(), Some(shape.bounds));
            assert_two_sided(&net, shape.bounds, &mut rng);
        }
    }

    #[test]
    fn inverse_recovers_the_input_within_the_certified_bound(shape in shapes(32, 1e6)) {
        let mut rng = Rng::new(shape.seed ^ 2);
        let x = rng.normals(shape.n * 3);
        let net = shape.net::<f64>();
        let single = shape.layer::<f32>();
        let mu = shape.bounds.mu();
        let options = InverseOptions { tolerance: 1e-8 * norm(&x).max(1.0), ..Default::default() };
        for (y, errors, inverse) in [
            net.forward_with_error(&x).map(|(y, e)| { let i = net.inverse(&y, &options); (y, e, i.unwrap()) }).unwrap(),
            single.forward_with_error(&x).map(|(y, e)| { let i = single.inverse(&y, &options); (y, e, i.unwrap()) }).unwrap(),
        ] {
            prop_assert_eq!(y.len(), x.len());
            for (r, row) in inverse.rows.iter().enumerate() {
                let slice = r * shape.n..(r + 1) * shape.n;
                let distance = norm(&difference(&inverse.x[slice.clone()], &x[slice]));
                // y itself was rounded: its own proved error moves the true inverse by that over μ.
                let allowed = row.error_bound + errors[r] / mu * (1.0 + 1e-12) + 1e-15 * norm(&x);
                prop_assert!(distance <= allowed, "{} > {}: {:?}", distance, allowed, row);
                let piecewise_linear = shape.activation.is_homogeneous();
                // A smooth activation is only known to a few ulp: τ times that may exceed the
                // tolerance.
                if piecewise_linear || shape.bounds.distortion() < 1e4 {
                    prop_assert_eq!(row.status, Status::Converged, "{:?}", row);
                }
            }
        }
    }

    #[test]
    fn every_solver_that_converges_agrees_with_newton(shape in shapes(8, 30.0)) {
        let mut rng = Rng::new(shape.seed ^ 3);
        let layer = shape.layer::<f64>();
        let y = layer.forward(&rng.normals(shape.n * 2)).unwrap();
        let solve = |method: Method| {
            let options = InverseOptions { tolerance: 4e-9, max_iterations: Some(match method {
                Method::Auto | Method::Newton(_) => 100,
                _ => 3_000,
            }), ..InverseOptions::with_method(method) };
            layer.inverse(&y, &options).unwrap()
        };
        let newton = solve(Method::Newton(Newton::default()));
        prop_assert!(newton.converged());
        for method in Method::all() {
            let name = method.name();
            let found = solve(method);
            // These two are proved to converge, and fast enough for the limit at such a distortion.
            if matches!(name, "auto" | "drs") {
                prop_assert!(found.converged(), "{}: {:?}", name, found.rows);
            }
            for (r, row) in found.rows.iter().enumerate() {
                let slice = r * shape.n..(r + 1) * shape.n;
                let distance = norm(&difference(&found.x[slice.clone()], &newton.x[slice]));
                prop_assert!(distance <= row.error_bound + newton.rows[r].error_bound, "{}", name);
                if row.status == Status::Converged {
                    prop_assert!(distance <= 1e-8, "{}: {}", name, distance);
                }
            }
        }
    }

    #[test]
    fn prox_minimizes_its_defining_function(
        which in 0usize..Activation::ALL.len(),
        log_alpha in -3.0..2.0f64,
        u in -8.0..8.0f64,
    ) {
        let act = Activation::ALL[which];
        let alpha = 10f64.powf(log_alpha);
        let z = act.prox(alpha, u);
        // f(σ(v)) = ∫₀ᵛ (t − σ(t))σ'(t) dt, because σ = (id + ∂f)⁻¹; Simpson's rule between kinks.
        let f = |v: f64| {
            let steps = 400;
            let h = v / steps as f64;
            let g = |t: f64| (t - act.value(t)) * act.derivative(t);
            // Off the kink at zero by a hair: one-sided derivatives there.
            let nudge = 1e-12 * v.signum();
            (0..steps).map(|i| {
                let a = i as f64 * h;
                h / 6.0 * (g(a + nudge) + 4.0 * g(a + 0.5 * h) + g(a + h))
            }).sum::<f64>()
        };
        let objective = |v: f64| 0.5 * (act.value(v) - u).powi(2) + alpha * f(v);
        // The preimage that belongs to z, from the optimality condition αv = u − (1−α)z.
        let v = (u - (1.0 - alpha) * z) / alpha;
        prop_assert!((act.value(v) - z).abs() <= 1e-9 * (1.0 + v.abs()), "{}: σ({}) = {} ≠ {}", act, v, act.value(v), z);
        let best = objective(v.clamp(-60.0, 60.0));
        for k in -60..=60 {
            let other = objective(k as f64 * 0.35);
            prop_assert!(best <= other + 1e-6 * (1.0 + other.abs()), "{}: {} > {} at {}", act, best, other, k as f64 * 0.35);
        }
    }

    #[test]
    fn free_parameters_of_any_layer_give_it_back(shape in shapes(16, 1e6)) {
        let layer = shape.layer::<f64>();
        let free = layer.to_free().unwrap();
        let again = MonLip::<f64>::from_free(&free).unwrap();
        let x = Rng::new(shape.seed ^ 4).normals(shape.n * 4);
        let (a, b) = (layer.forward(&x).unwrap(), again.forward(&x).unwrap());
        let scale = shape.bounds.nu() * norm(&x) + norm(&a);
        let error = norm(&difference(&a, &b)) / scale;
        prop_assert!(error < 1e-7, "{}", error);
    }

    #[test]
    fn the_certificate_accepts_what_is_built_and_judges_tampering_as_eigenvalues_do(
        shape in shapes(12, 1e6),
        pick in any::<prop::sample::Index>(),
        in_v in any::<bool>(),
    ) {
        let shape = Shape { general: false, ..shape };
        prop_assert!(shape.layer::<f64>().verify().holds());
        prop_assert!(shape.layer::<f32>().verify().holds());
        prop_assert!(shape.net::<f64>().verify().holds());
        let layer = shape.layer::<f64>();
        let mut explicit = layer.to_explicit();
        // Enlarge one entry by 1e-3.
        let enlarge = |m: &mut Mat<f64>| {
            let (i, j) = (pick.index(m.nrows()), pick.index(m.nrows() * m.ncols()) / m.nrows());
            m[(i, j)] += 1e-3f64.copysign(m[(i, j)]);
        };
        if in_v && !explicit.v.is_empty() {
            let k = pick.index(explicit.v.len());
            enlarge(&mut explicit.v[k]);
        } else {
            enlarge(&mut explicit.s);
        }
        let smallest = smallest_eigenvalue(&explicit);
        let verdict = MonLip::from_explicit(explicit);
        // Enlarging an entry nearly always breaks the condition; for n = 1 it can also strengthen
        // it. An independent eigenvalue decomposition says which.
        if smallest < -1e-10 {
            match verdict {
                Ok(tampered) => {
                    prop_assert!(!tampered.layer_certificate().holds());
                    prop_assert!(tampered.layer_certificate().margin() <= 0.98 * smallest);
                    // What it still supports is true.
                    prop_assert!(!tampered.bounds().implies(shape.bounds));
                    assert_two_sided(&tampered, tampered.bounds().bounds().unwrap(), &mut Rng::new(shape.seed ^ 5));
                }
                Err(error) => prop_assert!(error.to_string().contains("no bi-Lipschitz bound"), "{}", error),
            }
        } else if smallest > 1e-10 {
            prop_assert!(verdict.unwrap().layer_certificate().holds());
        }
    }

    #[test]
    fn minima_of_pl_networks_are_where_they_are_said_to_be(shape in shapes(10, 1e3)) {
        let mut rng = Rng::new(shape.seed ^ 6);
        let f = PlNet::new(shape.net::<f64>(), 1.5).unwrap();
        let minimum = f.minimize(&InverseOptions::default()).unwrap();
        prop_assert_eq!(minimum.status, Status::Converged);
        let certificate = f.certificate();
        let mu2 = certificate.pl_constant().unwrap();
        // The proved constant; the rounding inwards can put it a hair above the claim's square.
        let ratio = mu2 / shape.bounds.mu().powi(2);
        prop_assert!((ratio - 1.0).abs() < 1e-9, "{}", ratio);
        let at = f.value(&minimum.x).unwrap()[0];
        prop_assert!(at - 1.5 <= minimum.gap + 1e-15);
        // Nothing nearby or far is smaller, and the PL inequality holds everywhere.
        for k in 0..8 {
            let scale = 10f64.powi(k - 4);
            let x: Vec<f64> = minimum.x.iter().map(|v| v + scale * rng.normal()).collect();
            let value = f.value(&x).unwrap()[0];
            prop_assert!(value >= 1.5);
            let gradient = norm(&f.gradient(&x).unwrap());
            prop_assert!(0.5 * gradient * gradient >= mu2 * (value - 1.5) * (1.0 - 1e-9) - 1e-12);
            let distance = bilip::distance_to_minimum(&f, &x).unwrap();
            prop_assert!(norm(&difference(&x, &minimum.x)) <= distance + minimum.distance_bound);
        }
    }

    #[test]
    fn partial_networks_keep_their_bounds_and_minima_for_every_parameter(shape in shapes(6, 1e3)) {
        let mut rng = Rng::new(shape.seed ^ 7);
        let net = shape.net::<f64>();
        let parameters = 2;
        let mut mlp = |outputs: usize| {
            Mlp::new(vec![
                (rng.glorot(8, parameters), rng.normals(8)),
                (rng.glorot(outputs, 8), rng.normals(outputs)),
            ]).unwrap()
        };
        let orthogonal = (0..=shape.blocks).map(|_| mlp(shape.n)).collect();
        let hidden = (0..shape.blocks).map(|k| mlp(net.monotone()[k].hidden())).collect();
        let net = PartialBiLipNet::new(net, orthogonal, hidden).unwrap();
        let p = rng.normals(3 * parameters);
        let x = rng.normals(3 * shape.n);
        let y = net.forward(&x, &p).unwrap();
        for r in 0..3 {
            let at = net.at(&p[r * parameters..(r + 1) * parameters]).unwrap();
            assert_two_sided(&at, shape.bounds, &mut rng);
            let slice = r * shape.n..(r + 1) * shape.n;
            let single = at.forward(&x[slice.clone()]).unwrap();
            prop_assert!(norm(&difference(&single, &y[slice.clone()])) <= 1e-10 * (1.0 + norm(&single)));
        }
        let options = InverseOptions { tolerance: 1e-7, ..Default::default() };
        let inverse = net.inverse(&y, &p, &options).unwrap();
        prop_assert!(inverse.converged(), "{:?}", inverse.rows);
        // Each row meets its own bound; the rounding of y in the forward pass adds its share.
        let rounding = 1e-10 * (norm(&y) + shape.bounds.nu() * norm(&x)) / shape.bounds.mu();
        prop_assert!(norm(&difference(&inverse.x, &x)) <= 3.0 * inverse.max_error_bound() + rounding);
        let f = PartialPlNet::new(net, -2.0).unwrap();
        for (r, minimum) in f.minimize(&p, &options).unwrap().into_iter().enumerate() {
            prop_assert_eq!(minimum.status, Status::Converged);
            let p = &p[r * parameters..(r + 1) * parameters];
            let value = f.value(&minimum.x, p).unwrap()[0];
            prop_assert!((value + 2.0).abs() <= minimum.gap + 1e-13);
        }
    }
}

/// Smallest eigenvalue of `I − (V+Vᵀ)/2 − SSᵀ`, by a dense eigenvalue decomposition.
fn smallest_eigenvalue(layer: &MonLipExplicit<f64>) -> f64 {
    let m = layer.s.nrows();
    let mut matrix = Mat::<f64>::identity(m, m) - &layer.s * layer.s.transpose();
    let mut column = 0;
    for v in &layer.v {
        let row = column + v.ncols();
        for j in 0..v.ncols() {
            for i in 0..v.nrows() {
                matrix[(row + i, column + j)] -= 0.5 * v[(i, j)];
                matrix[(column + j, row + i)] -= 0.5 * v[(i, j)];
            }
        }
        column = row;
    }
    matrix.self_adjoint_eigenvalues(Side::Lower).unwrap()[0]
}
