//! The data of the paper's dense experiments, seeded.

use bilip::Rng;
use bilip_burn::{Columns, Dataset};

use crate::error::{Error, Result};

/// The Rosenbrock function of the paper, `(x−1)²/200 + ½(y−x²)²`.
pub fn rosenbrock(x: f64, y: f64) -> f64 {
    parametric_rosenbrock(x, y, 1.0, 1.0)
}

/// With parameters: `(x−a)²/200 + ½(y−bx²)²`.
pub fn parametric_rosenbrock(x: f64, y: f64, a: f64, b: f64) -> f64 {
    (x - a).powi(2) / 200.0 + 0.5 * (y - b * x * x).powi(2)
}

/// The Rosenbrock function plus `¼(sin(8(x−1)−π/2) + sin(8(y−1)−π/2) + 2)`.
pub fn rosenbrock_sine(x: f64, y: f64) -> f64 {
    let wave = |v: f64| (8.0 * (v - 1.0) - std::f64::consts::FRAC_PI_2).sin();
    rosenbrock(x, y) + 0.25 * (wave(x) + wave(y) + 2.0)
}

/// The n-dimensional Rosenbrock function: the mean of `r(x_i, x_{i+1})`.
pub fn rosenbrock_mean(x: &[f64]) -> f64 {
    x.windows(2).map(|w| rosenbrock(w[0], w[1])).sum::<f64>() / (x.len() - 1).max(1) as f64
}

fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.uniform()
}

/// The step function: `rows` uniform on [−2, 2], target ±2.
///
/// # Errors
/// When `rows` is zero.
pub fn step(rows: usize, rng: &mut Rng) -> Result<Dataset> {
    let x: Vec<f64> = (0..rows).map(|_| uniform(rng, -2.0, 2.0)).collect();
    let y = x.iter().map(|x| 2f64.copysign(*x)).collect();
    Ok(Dataset::new(x, 1, y, 1)?)
}

/// A function on [−2, 2]×[−1, 3]: `rows` uniform points, the four corners among them.
///
/// # Errors
/// When `rows` is zero.
pub fn on_rectangle(f: impl Fn(f64, f64) -> f64, rows: usize, rng: &mut Rng) -> Result<Dataset> {
    let corners = [(-2.0, -1.0), (-2.0, 3.0), (2.0, -1.0), (2.0, 3.0)];
    let points: Vec<(f64, f64)> = (0..rows)
        .map(|k| {
            corners
                .get(k)
                .copied()
                .unwrap_or_else(|| (uniform(rng, -2.0, 2.0), uniform(rng, -1.0, 3.0)))
        })
        .collect();
    Ok(Dataset::new(
        points.iter().flat_map(|(x, y)| [*x, *y]).collect(),
        2,
        points.iter().map(|(x, y)| f(*x, *y)).collect(),
        1,
    )?)
}

/// A function on a `side × side` grid over [−2, 2]×[−1, 3].
///
/// # Errors
/// When `side` is below two.
pub fn grid(f: impl Fn(f64, f64) -> f64, side: usize) -> Result<Dataset> {
    let at = |k: usize, low: f64| low + 4.0 * k as f64 / (side - 1).max(1) as f64;
    let points: Vec<(f64, f64)> = (0..side * side)
        .map(|k| (at(k % side, -2.0), at(k / side, -1.0)))
        .collect();
    Ok(Dataset::new(
        points.iter().flat_map(|(x, y)| [*x, *y]).collect(),
        2,
        points.iter().map(|(x, y)| f(*x, *y)).collect(),
        1,
    )?)
}

/// The parametric Rosenbrock function: x as in [`on_rectangle`], p = (a, b) uniform on [−1, 1]².
///
/// # Errors
/// When `rows` is zero.
pub fn parametric(rows: usize, rng: &mut Rng) -> Result<Dataset> {
    let (mut x, mut p, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let (u, v) = (uniform(rng, -2.0, 2.0), uniform(rng, -1.0, 3.0));
        let (a, b) = (uniform(rng, -1.0, 1.0), uniform(rng, -1.0, 1.0));
        x.extend([u, v]);
        p.extend([a, b]);
        y.push(parametric_rosenbrock(u, v, a, b));
    }
    let columns = Columns {
        inputs: 2,
        parameters: 2,
        targets: 1,
    };
    Ok(Dataset::with_parameters(columns, x, p, y)?)
}

/// The n-dimensional Rosenbrock function at `rows` uniform points of [−2, 2]ⁿ.
///
/// # Errors
/// When `rows` is zero or `n` below two.
pub fn rosenbrock_n(n: usize, rows: usize, rng: &mut Rng) -> Result<Dataset> {
    if n < 2 {
        return Err(Error::config("n", "must be at least 2"));
    }
    let x: Vec<f64> = (0..rows * n).map(|_| uniform(rng, -2.0, 2.0)).collect();
    let y = x.chunks_exact(n).map(rosenbrock_mean).collect();
    Ok(Dataset::new(x, n, y, 1)?)
}

/// Two moons with noise 0.1, class 0 moved by (−0.1, 0.2) and class 1 by (0.1, −0.2); the target is
/// the class.
///
/// # Errors
/// When `rows` is zero.
pub fn moons(rows: usize, rng: &mut Rng) -> Result<Dataset> {
    let half = rows.div_ceil(2);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for k in 0..rows {
        let class = usize::from(k >= half);
        let count = if class == 0 { half } else { rows - half };
        let index = if class == 0 { k } else { k - half };
        let angle = std::f64::consts::PI * index as f64 / (count - 1).max(1) as f64;
        let (u, v) = match class {
            0 => (angle.cos() - 0.1, angle.sin() + 0.2),
            _ => (1.0 - angle.cos() + 0.1, 0.5 - angle.sin() - 0.2),
        };
        x.extend([u + 0.1 * rng.normal(), v + 0.1 * rng.normal()]);
        y.push(class as f64);
    }
    Ok(Dataset::new(x, 2, y, 1)?)
}

/// Points unlike any of [`moons`]: normal around (1.3, −1.8) with variances (0.02, 0.01), `[rows,
/// 2]`.
pub fn moons_outliers(rows: usize, rng: &mut Rng) -> Vec<f64> {
    (0..rows)
        .flat_map(|_| [1.3 + 0.02f64.sqrt() * rng.normal(), -1.8 + 0.1 * rng.normal()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_known_minima() {
        assert_eq!(rosenbrock(1.0, 1.0), 0.0);
        assert!(rosenbrock_sine(1.0, 1.0).abs() < 1e-15);
        assert_eq!(rosenbrock_mean(&[1.0; 20]), 0.0);
        assert_eq!(parametric_rosenbrock(-0.5, 0.125, -0.5, 0.5), 0.0);
        assert!(rosenbrock(0.0, 1.0) > 0.5);
    }

    #[test]
    fn generators_are_reproducible_and_of_the_right_shape() {
        let make = |seed| {
            let mut rng = Rng::new(seed);
            vec![
                step(100, &mut rng).unwrap(),
                on_rectangle(rosenbrock, 50, &mut rng).unwrap(),
                parametric(30, &mut rng).unwrap(),
                rosenbrock_n(20, 10, &mut rng).unwrap(),
                moons(101, &mut rng).unwrap(),
            ]
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        let tables = make(1);
        assert_eq!(
            tables.iter().map(|t| t.rows()).collect::<Vec<_>>(),
            [100, 50, 30, 10, 101]
        );
        assert_eq!(
            &tables[1].inputs()[..8],
            [-2.0, -1.0, -2.0, 3.0, 2.0, -1.0, 2.0, 3.0]
        );
        assert_eq!(tables[2].columns().parameters, 2);
        // The 20-D values the paper reports range over [0.475, 6.532]; ours must look alike.
        let many = rosenbrock_n(20, 10_000, &mut Rng::new(3)).unwrap();
        let (low, high) = many
            .targets()
            .iter()
            .fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        assert!(
            (0.3..0.7).contains(&low) && (5.0..8.0).contains(&high),
            "{low} {high}"
        );
        assert_eq!(grid(rosenbrock, 200).unwrap().rows(), 40_000);
    }

    #[test]
    fn outliers_are_far_from_the_moons() {
        let mut rng = Rng::new(4);
        let moons = moons(1_000, &mut rng).unwrap();
        let outliers = moons_outliers(1_000, &mut rng);
        let nearest = outliers
            .chunks(2)
            .map(|o| {
                moons
                    .inputs()
                    .chunks(2)
                    .map(|m| (o[0] - m[0]).hypot(o[1] - m[1]))
                    .fold(f64::MAX, f64::min)
            })
            .fold(f64::MAX, f64::min);
        assert!(nearest > 0.2, "{nearest}");
    }

    #[test]
    fn sizes_out_of_range_are_errors() {
        assert!(step(0, &mut Rng::new(1)).is_err());
        assert!(rosenbrock_n(1, 5, &mut Rng::new(1)).is_err());
    }
}
