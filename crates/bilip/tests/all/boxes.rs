//! Minima in boxes: nothing in the box is below the proved bound, and the gap closes.

use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, BoundedMinimum, Bounds, BoxOptions, BoxStatus,
    InverseOptions, Mlp, Model, Network, PartialBiLipNet, PartialPlNet, PlNet, RandomLayer, Real, Rng,
    Scaling,
};
use proptest::prelude::*;

type Limits = Vec<(f64, f64)>;

fn net<T: Real>(n: usize, activation: Activation, tau: f64, seed: u64) -> BiLipNet<T> {
    let bounds = Bounds::new(1.0 / tau.sqrt(), tau.sqrt()).unwrap();
    let layer = RandomLayer::new(n, &[12, 12], bounds)
        .with_activation(activation)
        .with_bias(1.0);
    BiLipNet::from_free(&BiLipNetFree::random(&layer, 2, &mut Rng::new(seed)).unwrap()).unwrap()
}

/// A network in units far from those of its weights.
fn scaled<T: Real>(n: usize, activation: Activation, tau: f64, seed: u64) -> BiLipNet<T> {
    let scale = [0.03125, 4.0, 1.0, 256.0];
    let shift = [-3.0, 10.0, 0.1, 0.0];
    let narrow = |values: &[f64]| values[..n].iter().map(|v| T::round_from(*v)).collect();
    let input = Scaling::new(narrow(&scale), narrow(&shift)).unwrap();
    let output = Scaling::new(vec![T::round_from(4.0); n], vec![T::zero(); n]).unwrap();
    net(n, activation, tau, seed)
        .with_scalings(Some(input), Some(output))
        .unwrap()
}

/// The value from below and above, with its proved rounding error.
fn value<T: Real>(f: &PlNet<T>, x: &[f64]) -> (f64, f64) {
    let (g, error) = f.net().forward_with_error(x).unwrap();
    let size = g.iter().map(|g| g * g).sum::<f64>().sqrt();
    let half_square = |v: f64| 0.5 * v.max(0.0).powi(2);
    let (low, high) = (half_square(size - error[0]), half_square(size + error[0]));
    (
        f.offset() + low * (1.0 - 1e-13),
        f.offset() + high * (1.0 + 1e-13),
    )
}

/// Asserts what every answer has to satisfy.
fn check<T: Real>(f: &PlNet<T>, limits: &[(f64, f64)], found: &BoundedMinimum) {
    for (x, (low, high)) in found.x.iter().zip(limits) {
        assert!(low <= x && x <= high, "{x} is not in {low}..{high}");
    }
    let (low, high) = value(f, &found.x);
    let slack = 1e-12 * found.value.abs();
    assert!(
        found.value >= low - slack && found.value <= high + slack,
        "{found:?}"
    );
    assert!(found.lower <= found.value && found.gap >= found.value - found.lower);
    if found.status == BoxStatus::Converged && found.spread > 0.0 {
        assert!(found.gap <= 1e-6 * found.spread + slack, "{found:?}");
    }
}

fn random_point(limits: &[(f64, f64)], rng: &mut Rng) -> Vec<f64> {
    (limits.iter())
        .map(|(low, high)| low + rng.uniform() * (high - low))
        .collect()
}

#[test]
fn the_minimum_in_a_box_is_that_of_a_dense_grid() {
    let mut boxes = 0;
    for (n, steps) in [(1, 2_000), (2, 120), (3, 25)] {
        for activation in [Activation::Relu, Activation::Tanh, Activation::Softplus] {
            for seed in 0..3 {
                let f = PlNet::new(net::<f64>(n, activation, 20.0, seed), 1.5).unwrap();
                let free = f.minimize(&InverseOptions::default()).unwrap();
                let mut rng = Rng::new(seed + 100);
                // Beside the minimizer in some inputs, around it in others.
                let limits: Limits = (free.x.iter())
                    .map(|x| {
                        let low = x + [0.3, -1.0, -2.5][(3.0 * rng.uniform()) as usize];
                        (low, low + 2.0)
                    })
                    .collect();
                let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
                check(&f, &limits, &found);
                assert_eq!(
                    found.status,
                    BoxStatus::Converged,
                    "{activation} {n} {limits:?} {found:?}"
                );
                let mut points = Vec::new();
                for k in 0..(steps + 1usize).pow(n as u32) {
                    let mut rest = k;
                    for (low, high) in &limits {
                        let share = (rest % (steps + 1)) as f64 / steps as f64;
                        points.push(low + share * (high - low));
                        rest /= steps + 1;
                    }
                }
                let values = f.value(&points).unwrap();
                let grid = values.iter().copied().fold(f64::INFINITY, f64::min);
                assert!(found.lower <= grid, "{activation}: {} above {grid}", found.lower);
                assert!(found.value <= grid + found.gap + 1e-12, "{activation}: {found:?}");
                // The grid is nearly as low: the answer is no bound of something else.
                let step = 2.0 / steps as f64 * (n as f64).sqrt();
                let slope = f.bounds().nu() * (2.0 * (found.value - f.offset())).sqrt() * step
                    + 0.5 * (f.bounds().nu() * step).powi(2);
                assert!(
                    found.value >= grid - slope,
                    "{activation}: {} {grid}",
                    found.value
                );
                boxes += usize::from(!found.free_minimizer_inside);
            }
        }
    }
    assert!(boxes > 15, "{boxes}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_value_in_a_box_is_below_the_proved_bound(
        n in 1usize..=4,
        activation in 0usize..Activation::ALL.len(),
        log_tau in 0.0..3.0f64,
        in_units in any::<bool>(),
        single in any::<bool>(),
        seed in any::<u64>(),
    ) {
        fn run<T: Real>(n: usize, activation: Activation, tau: f64, in_units: bool, seed: u64) {
            let net = match in_units {
                true => scaled::<T>(n, activation, tau, seed),
                false => net::<T>(n, activation, tau, seed),
            };
            let f = PlNet::new(net, -0.7).unwrap();
            let mut rng = Rng::new(seed ^ 1);
            let free = f.minimize(&InverseOptions::default()).unwrap();
            let unit = |i: usize| if in_units { [32.0, 0.25, 1.0, 0.00390625][i] } else { 1.0 };
            let limits: Limits = (0..n)
                .map(|i| {
                    let low = free.x[i] + unit(i) * 2.0 * rng.normal();
                    match rng.uniform() {
                        u if u < 0.2 => (low, low),
                        _ => (low, low + unit(i) * 3.0 * rng.uniform()),
                    }
                })
                .collect();
            // Few cells: the bound holds wherever the search ends.
            let options = BoxOptions { max_cells: 300, ..BoxOptions::default() };
            let found = f.minimize_in(&limits, &options).unwrap();
            check(&f, &limits, &found);
            assert!(found.cells <= 300 + 200, "{}", found.cells);
            for k in 0..300 {
                let mut x = random_point(&limits, &mut rng);
                if k % 3 == 0 {
                    // Near the answer, where it matters.
                    let near = 10f64.powf(-6.0 * rng.uniform());
                    for i in 0..n {
                        x[i] = (found.x[i] + near * (x[i] - found.x[i])).clamp(limits[i].0, limits[i].1);
                    }
                }
                let (_, high) = value(&f, &x);
                assert!(found.lower <= high, "{activation} {} above {high} at {x:?}", found.lower);
            }
        }
        let activation = Activation::ALL[activation];
        let tau = 10f64.powf(log_tau).max(1.01);
        match single {
            true => run::<f32>(n, activation, tau, in_units, seed),
            false => run::<f64>(n, activation, tau, in_units, seed),
        }
    }
}

#[test]
fn a_box_around_the_minimizer_gives_the_minimum_without_it() {
    for seed in 0..4 {
        let f = PlNet::new(scaled::<f64>(3, Activation::Tanh, 50.0, seed), 2.0).unwrap();
        let free = f.minimize(&InverseOptions::default()).unwrap();
        let wide: Limits = free.x.iter().map(|x| (x - 1e3, f64::INFINITY)).collect();
        for limits in [wide, vec![(f64::NEG_INFINITY, f64::INFINITY); 3]] {
            let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
            assert!(found.free_minimizer_inside && found.status == BoxStatus::Converged);
            assert!(found.lower <= 2.0 && found.gap < 1e-12, "{found:?}");
        }
        // On the very edge: it cannot be proved to be inside, and the value says the rest.
        let limits: Limits = free.x.iter().map(|x| (*x, x + 1.0)).collect();
        let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
        assert!(found.gap <= 1e-6 * found.spread, "{found:?}");
    }
}

#[test]
fn fixed_inputs_and_boxes_of_no_width_are_points() {
    let f = PlNet::new(scaled::<f64>(3, Activation::Relu, 50.0, 3), 0.0).unwrap();
    let point = [1.7, -2.3, 0.4];
    let limits: Limits = point.iter().map(|x| (*x, *x)).collect();
    let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
    check(&f, &limits, &found);
    assert_eq!(found.x, point);
    assert!(found.gap <= 1e-10 * found.value && found.status == BoxStatus::Converged);
    // One input free: a dense line.
    let limits = [(1.7, 1.7), (-3.0, 2.0), (0.4, 0.4)];
    let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
    check(&f, &limits, &found);
    let lowest = (0..=20_000)
        .map(|k| value(&f, &[1.7, -3.0 + f64::from(k) / 4e3, 0.4]).1)
        .fold(f64::INFINITY, f64::min);
    assert!(found.lower <= lowest && found.value <= lowest + found.gap);
}

#[test]
fn a_known_minimizer_and_single_precision_are_bounded_alike() {
    let known = vec![0.5f32, -1.25];
    let f = PlNet::with_minimizer(net::<f32>(2, Activation::Elu, 20.0, 5), 1.0, known).unwrap();
    let inside = f
        .minimize_in(&[(0.0, 1.0), (-2.0, 0.0)], &BoxOptions::default())
        .unwrap();
    assert!(inside.free_minimizer_inside && inside.gap < 1e-12);
    let limits = [(1.0, 2.0), (-2.0, 0.0)];
    let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
    assert!(found.status == BoxStatus::Converged && !found.free_minimizer_inside);
    let mut rng = Rng::new(2);
    for _ in 0..2_000 {
        let x: Vec<f32> = random_point(&limits, &mut rng)
            .iter()
            .map(|v| *v as f32)
            .collect();
        let value = f64::from(f.value(&x).unwrap()[0]);
        assert!(found.lower <= value + 1e-5, "{} {value}", found.lower);
    }
}

#[test]
fn partial_networks_are_bounded_for_every_parameter() {
    let mut rng = Rng::new(8);
    let net = net::<f64>(2, Activation::Tanh, 20.0, 9);
    let mut mlp = |outputs: usize| {
        Mlp::new(vec![
            (rng.glorot(8, 1), rng.normals(8)),
            (rng.glorot(outputs, 8), rng.normals(outputs)),
        ])
        .unwrap()
    };
    let orthogonal = (0..3).map(|_| mlp(2)).collect();
    let hidden = (0..2).map(|_| mlp(24)).collect();
    let f = PartialPlNet::new(PartialBiLipNet::new(net, orthogonal, hidden).unwrap(), 0.25).unwrap();
    let p = [-1.0, 0.0, 2.0];
    let limits = [(1.0, 2.0), (-4.0, -3.0)];
    let model = Model::from(Network::PartialPlNet(f.clone()));
    let found = model.minimize_in(&p, &limits, &BoxOptions::default()).unwrap();
    assert_eq!(found.len(), 3);
    for (found, p) in found.iter().zip(p) {
        assert_eq!(found.status, BoxStatus::Converged);
        let mut lowest = f64::INFINITY;
        for k in 0..=60 {
            for l in 0..=60 {
                let x = [1.0 + f64::from(k) / 60.0, -4.0 + f64::from(l) / 60.0];
                lowest = lowest.min(f.value(&x, &[p]).unwrap()[0]);
            }
        }
        assert!(found.lower <= lowest + 1e-12 && found.value <= lowest + found.gap + 1e-12);
        let there = f.value(&found.x, &[p]).unwrap()[0];
        assert!((there - found.value).abs() <= 1e-10 * there.abs());
    }
}

#[test]
fn threads_do_not_change_the_answer() {
    let f = PlNet::new(net::<f64>(3, Activation::Relu, 100.0, 12), 0.0).unwrap();
    let limits = [(1.0, 3.0), (1.0, 3.0), (-3.0, 3.0)];
    let answers: Vec<BoundedMinimum> = [1, 2, 16]
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| f.minimize_in(&limits, &BoxOptions::default()).unwrap())
        })
        .to_vec();
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn bad_boxes_and_settings_are_errors() {
    let f = PlNet::new(net::<f64>(2, Activation::Relu, 20.0, 1), 0.0).unwrap();
    let options = BoxOptions::default();
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for bad in [
        vec![(0.0, 1.0)],
        vec![(0.0, 1.0), (1.0, 0.0)],
        vec![(0.0, 1.0), (nan, 0.0)],
        vec![(0.0, 1.0), (0.0, nan)],
        vec![(inf, inf), (0.0, 1.0)],
        vec![(-inf, -inf), (0.0, 1.0)],
    ] {
        assert!(f.minimize_in(&bad, &options).is_err(), "{bad:?}");
    }
    let limits = [(0.0, 1.0), (0.0, 1.0)];
    for bad in [0.0, -1.0, nan, inf] {
        let options = BoxOptions {
            tolerance: bad,
            ..options.clone()
        };
        assert!(f.minimize_in(&limits, &options).is_err(), "{bad}");
    }
    let none = BoxOptions {
        max_cells: 0,
        ..options
    };
    assert!(f.minimize_in(&limits, &none).is_err());
    let map = Model::from(Network::BiLipNet(net::<f64>(2, Activation::Relu, 20.0, 1)));
    assert!(map.minimize_in(&[], &limits, &BoxOptions::default()).is_err());
}

#[test]
fn boxes_far_away_or_of_many_inputs_end_with_a_proved_gap() {
    let f = PlNet::new(net::<f64>(2, Activation::Tanh, 100.0, 4), 0.0).unwrap();
    for limits in [[(1e8, 2e8), (-1.0, 1.0)], [(1e3, 1e3 + 1e-9), (5.0, 5.0 + 1e-9)]] {
        let found = f.minimize_in(&limits, &BoxOptions::default()).unwrap();
        check(&f, &limits, &found);
        assert!(found.gap <= 1e-6 * (found.value + found.spread), "{found:?}");
    }
    let f = PlNet::new(net::<f64>(8, Activation::Relu, 100.0, 4), 0.0).unwrap();
    let limits = vec![(1.0, 3.0); 8];
    let options = BoxOptions {
        max_cells: 500,
        ..BoxOptions::default()
    };
    let found = f.minimize_in(&limits, &options).unwrap();
    check(&f, &limits, &found);
    let mut rng = Rng::new(3);
    for _ in 0..2_000 {
        assert!(found.lower <= value(&f, &random_point(&limits, &mut rng)).1);
    }
}
