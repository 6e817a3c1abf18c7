//! Whether a map reverses orientation, as far as rows tell.

use bilip::faer::Side;

use crate::linear::linear_map;

/// Whether the linear map that fits `y` best, from inputs `x` and parameters `p`, has a negative
/// determinant in `x`.
///
/// Rows are standardized; there are as many targets as inputs, `n`.
pub(crate) fn is_reversed(x: &[f64], p: &[f64], y: &[f64], n: usize) -> bool {
    linear_map(x, p, y, n).determinant() < 0.0
}

/// Whether a map grows, as far as rows tell: what the symmetric part of the linear map that fits best
/// says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// `⟨Δx, Δy⟩ > 0`.
    Increasing,
    /// `⟨Δx, Δy⟩ < 0`.
    Decreasing,
    /// Some directions grow and others shrink.
    Neither,
}

/// The growth of a map from rows of as many inputs as targets.
pub(crate) fn growth(x: &[f64], y: &[f64], n: usize) -> Growth {
    let map = linear_map(x, &[], y, n);
    let symmetric = &map + map.transpose();
    let Ok(values) = symmetric.self_adjoint_eigenvalues(Side::Lower) else {
        return Growth::Neither;
    };
    // Directions that hardly matter say nothing.
    let size = values.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    let (up, down) = (
        values.iter().any(|v| *v > 0.02 * size),
        values.iter().any(|v| *v < -0.02 * size),
    );
    match (up, down) {
        (true, true) => Growth::Neither,
        (false, true) => Growth::Decreasing,
        _ => Growth::Increasing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    #[test]
    fn the_sign_is_that_of_the_determinant() {
        let mut rng = Rng::new(1);
        for case in 0..40 {
            let n = 1 + case % 4;
            let a = rng.matrix(n, n, 1.0);
            let b = rng.matrix(n, 2, 1.0);
            let (x, p, noise) = (rng.normals(200 * n), rng.normals(400), rng.normals(200 * n));
            let mut y = Vec::new();
            for r in 0..200 {
                for i in 0..n {
                    let linear: f64 = (0..n).map(|j| a[(i, j)] * x[r * n + j]).sum();
                    let moved: f64 = (0..2).map(|j| b[(i, j)] * p[r * 2 + j]).sum();
                    y.push(3.0 + linear + moved + 0.01 * noise[r * n + i]);
                }
            }
            if a.determinant().abs() > 0.05 {
                assert_eq!(is_reversed(&x, &p, &y, n), a.determinant() < 0.0, "{case}");
            }
        }
    }

    #[test]
    fn growth_is_that_of_the_linear_part() {
        let mut rng = Rng::new(2);
        let x = rng.normals(600);
        let map = |a: [f64; 4]| -> Vec<f64> {
            x.chunks_exact(2)
                .flat_map(|x| [a[0] * x[0] + a[1] * x[1], a[2] * x[0] + a[3] * x[1]])
                .collect()
        };
        assert_eq!(growth(&x, &map([2.0, 5.0, -5.0, 1.0]), 2), Growth::Increasing);
        assert_eq!(growth(&x, &map([-2.0, 0.5, 0.5, -1.0]), 2), Growth::Decreasing);
        assert_eq!(growth(&x, &map([0.0, 1.0, 1.0, 0.0]), 2), Growth::Neither);
    }

    /// The share of the targets' variance that a fit leaves over.
    fn left_over(inputs: usize, params: &[&str], targets: &[&str], row: fn(&[f64]) -> Vec<f64>) -> f64 {
        let mut rng = Rng::new(3);
        let columns = inputs + params.len();
        let names: Vec<String> = (0..inputs).map(|k| format!("x{k}")).collect();
        let names = names.iter().map(String::as_str).chain(params.iter().copied());
        let names = names.chain(targets.iter().copied()).map(String::from).collect();
        let (mut rows, mut x, mut p, mut y) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..400 {
            let u: Vec<f64> = (0..columns).map(|_| 2.0 * rng.uniform() - 1.0).collect();
            let v = row(&u);
            x.extend(&u[..inputs]);
            p.extend(&u[inputs..]);
            y.extend(&v);
            rows.extend(u.into_iter().chain(v));
        }
        let table = crate::Table::new(Some(names), columns + targets.len(), rows).unwrap();
        let settings = crate::FitSettings {
            hidden: Some(vec![16, 16]),
            epochs: Some(60),
            params: params.iter().map(|p| p.to_string()).collect(),
            ..crate::FitSettings::new(crate::ModelKind::BiLipNet, targets)
        };
        let fit = crate::fit(&table, &settings).unwrap();
        assert!(fit.model.certificate().holds());
        let found = fit.model.evaluate(&x, &p).unwrap();
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        let squares = |of: &dyn Fn(usize) -> f64| (0..y.len()).map(|k| of(k).powi(2)).sum::<f64>();
        squares(&|k| found[k] - y[k]) / squares(&|k| y[k] - mean)
    }

    #[test]
    fn maps_that_reverse_orientation_are_fitted_as_well_as_others() {
        assert!(left_over(1, &[], &["y"], |u| vec![-u[0] - 0.3 * u[0].powi(2)]) < 0.01);
        assert!(left_over(1, &["p"], &["y"], |u| vec![-(2.0 + u[1]) * u[0] + u[1]]) < 0.05);
        // The same map with its targets in either order.
        assert!(
            left_over(2, &[], &["a", "b"], |u| vec![
                u[0] + 0.3 * u[1],
                u[1] - 0.2 * u[0] * u[1]
            ]) < 0.02
        );
        assert!(
            left_over(2, &[], &["b", "a"], |u| vec![
                u[1] - 0.2 * u[0] * u[1],
                u[0] + 0.3 * u[1]
            ]) < 0.02
        );
    }
}
