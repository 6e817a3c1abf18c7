//! Restarted GMRES (Saad and Schultz 1986) for the Newton equations of wide inputs.

use crate::base::rounding::norm;

/// Basis vectors kept before a restart.
const RESTART: usize = 80;

/// Solves `A x = b` to `‖Ax − b‖ ≤ tolerance·‖b‖` given products with `A`, in at most `limit` of
/// them.
///
/// The Jacobians here have symmetric part ⪰ μI, for which GMRES converges without restarts in at
/// most `n` products.
pub(crate) fn gmres(
    mut apply: impl FnMut(&[f64]) -> Vec<f64>,
    b: &[f64],
    tolerance: f64,
    limit: usize,
) -> Vec<f64> {
    let n = b.len();
    let mut x = vec![0.0; n];
    let target = tolerance * norm(b);
    let mut residual = b.to_vec();
    let mut products = 0;
    loop {
        let beta = norm(&residual);
        if beta <= target || products >= limit || !beta.is_finite() {
            return x;
        }
        let size = RESTART.min(n).min(limit - products);
        let mut basis: Vec<Vec<f64>> = vec![residual.iter().map(|r| r / beta).collect()];
        // Columns of the Hessenberg matrix after rotation, the rotations, and the rotated
        // right-hand side.
        let mut columns: Vec<Vec<f64>> = Vec::new();
        let mut rotations: Vec<(f64, f64)> = Vec::new();
        let mut rhs = vec![beta];
        for k in 0..size {
            let mut w = apply(&basis[k]);
            products += 1;
            let mut h = vec![0.0; k + 2];
            // Modified Gram–Schmidt, twice: orthogonal to rounding whatever the conditioning.
            for _ in 0..2 {
                for (i, v) in basis.iter().enumerate() {
                    let dot: f64 = w.iter().zip(v).map(|(a, b)| a * b).sum();
                    h[i] += dot;
                    for (w, v) in w.iter_mut().zip(v) {
                        *w -= dot * v;
                    }
                }
            }
            h[k + 1] = norm(&w);
            for (i, (c, s)) in rotations.iter().enumerate() {
                let (a, b) = (h[i], h[i + 1]);
                h[i] = c * a + s * b;
                h[i + 1] = c * b - s * a;
            }
            let length = h[k].hypot(h[k + 1]);
            let next = h[k + 1];
            let (c, s) = if length == 0.0 {
                (1.0, 0.0)
            } else {
                (h[k] / length, next / length)
            };
            h[k] = length;
            rotations.push((c, s));
            rhs.push(-s * rhs[k]);
            rhs[k] *= c;
            h.truncate(k + 1);
            columns.push(h);
            let exhausted = next <= f64::EPSILON * length;
            if exhausted || rhs[k + 1].abs() <= target {
                break;
            }
            basis.push(w.iter().map(|w| w / next).collect());
        }
        let k = columns.len();
        let mut coefficients = vec![0.0; k];
        for i in (0..k).rev() {
            let mut value = rhs[i];
            for j in i + 1..k {
                value -= columns[j][i] * coefficients[j];
            }
            coefficients[i] = value / columns[i][i];
        }
        for (coefficient, v) in coefficients.iter().zip(&basis) {
            for (x, v) in x.iter_mut().zip(v) {
                *x += coefficient * v;
            }
        }
        let product = apply(&x);
        products += 1;
        residual = b.iter().zip(&product).map(|(b, p)| b - p).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    #[test]
    fn gmres_solves_a_monotone_system_with_and_without_restarts() {
        let mut rng = Rng::new(4);
        for n in [1, 7, 60, 150] {
            let a = rng.matrix(n, n, 0.5 / (n as f64).sqrt());
            let a = a + faer::Mat::<f64>::identity(n, n);
            let b: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
            let multiply =
                |x: &[f64]| -> Vec<f64> { (0..n).map(|i| (0..n).map(|j| a[(i, j)] * x[j]).sum()).collect() };
            let x = gmres(multiply, &b, 1e-12, 10 * n + 20);
            let residual: Vec<f64> = multiply(&x).iter().zip(&b).map(|(p, b)| p - b).collect();
            assert!(norm(&residual) <= 1e-11 * norm(&b), "n={n}: {}", norm(&residual));
        }
    }
}
