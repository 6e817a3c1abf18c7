//! Whether a map reverses orientation, as far as rows tell.

use crate::linear::linear_map;

/// Whether the linear map that fits `y` best, from inputs `x` and parameters `p`, has a negative
/// determinant in `x`.
///
/// Rows are standardized; there are as many targets as inputs, `n`.
pub(crate) fn is_reversed(x: &[f64], p: &[f64], y: &[f64], n: usize) -> bool {
    linear_map(x, p, y, n).determinant() < 0.0
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
