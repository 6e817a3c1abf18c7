//! What the proofs say of one layer: orthogonal, monotone and dense, monotone at every frequency.

use faer::{Mat, MatRef};

use super::certificate::{LayerCertificate, LayerKind};
use super::psd::{Arrow, Diagonal, orthogonality_defect, power_of_two_at_least};
use super::{Norms, Proved, psd};
use crate::base::bounds::Bounds;
use crate::base::error::{Error, Result};
use crate::base::matrix::to_f64;
use crate::base::parallel;
use crate::base::real::Real;

/// The certificate of a stored orthogonal matrix.
///
/// # Errors
/// On an empty or non-square matrix, entries that are not finite, and `‖PᵀP − I‖ ≥ 1`.
pub(crate) fn certify_orthogonal(p: MatRef<'_, f64>) -> Result<LayerCertificate> {
    if p.nrows() != p.ncols() || p.nrows() == 0 {
        return Err(Error::shape(
            "matrix of an orthogonal layer",
            "a square, non-empty matrix",
            format!("{}×{}", p.nrows(), p.ncols()),
        ));
    }
    crate::base::matrix::check_matrix("matrix of an orthogonal layer", p)?;
    let certificate = certify_orthogonal_matrix(p);
    certificate.need_positive()?;
    Ok(certificate)
}

pub(crate) fn certify_orthogonal_matrix(p: MatRef<'_, f64>) -> LayerCertificate {
    let defect = orthogonality_defect(p).unwrap_or(f64::INFINITY);
    let (mu, nu) = if defect < 1.0 {
        (
            (1.0 - defect).next_down().sqrt().next_down().max(0.0),
            (1.0 + defect).next_up().sqrt().next_up(),
        )
    } else {
        // Columns longer than √1.5: only the Frobenius norm bounds it from above.
        (0.0, psd::frobenius_upper(p))
    };
    let proved = Proved::new(mu, nu);
    LayerCertificate {
        kind: LayerKind::Orthogonal,
        // An isometry up to the rounding of its entries, which is what any stored matrix can be.
        design: proved.bounds().unwrap_or(Bounds::ISOMETRY),
        holds: proved.bounds().is_some(),
        margin: -defect.min(f64::MAX),
        proved,
    }
}

/// The condition matrix with `hidden` on the diagonal of the hidden blocks and `corner` on that of
/// the border, scaled by a power of two so that no diagonal entry exceeds one.
fn condition(v: &[Mat<f64>], s: MatRef<'_, f64>, hidden: f64, corner: f64) -> (Arrow, f64) {
    let scale = 1.0 / power_of_two_at_least(hidden.max(corner).max(1.0));
    let mut units = vec![v.first().map_or(s.nrows(), |v| v.ncols())];
    units.extend(v.iter().map(|v| v.nrows()));
    let mut at = 0;
    let mut border = Vec::with_capacity(units.len());
    for m in &units {
        let block = s.subrows(at, *m);
        border.push(Mat::from_fn(s.ncols(), *m, |i, j| scale * block[(j, i)]));
        at += m;
    }
    let diagonal = |size: usize, value: f64| Diagonal::Scalar {
        size,
        value: scale * value,
    };
    let arrow = Arrow {
        diagonal: units.iter().map(|m| diagonal(*m, hidden)).collect(),
        sub: v
            .iter()
            .map(|v| Mat::from_fn(v.nrows(), v.ncols(), |i, j| -0.5 * scale * v[(i, j)]))
            .collect(),
        border,
        corner: Some(diagonal(s.ncols(), corner)),
    };
    (arrow, scale)
}

/// The largest `θ` found with `I − (V+Vᵀ)/2 ⪰ θI` proved, within a factor of two; 0 when there is
/// none above 1e-12.
pub(crate) fn strong_monotonicity(v: &[Mat<f64>], units: &[usize]) -> f64 {
    let arrow = Arrow {
        diagonal: (units.iter())
            .map(|m| Diagonal::Scalar { size: *m, value: 1.0 })
            .collect(),
        sub: v
            .iter()
            .map(|v| Mat::from_fn(v.nrows(), v.ncols(), |i, j| -0.5 * v[(i, j)]))
            .collect(),
        border: vec![],
        corner: None,
    };
    // The powers of two by bisection with factorizations alone, and one or two proofs.
    let power = |k: i32| 2f64.powi(-k);
    let (mut low, mut high) = (0, 41);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if arrow.seems_positive(power(middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    for k in high..(high + 3).min(40) {
        if let Some(bound) = arrow.eigenvalue_bound(power(k))
            && bound > 0.0
        {
            return bound;
        }
    }
    0.0
}

/// How sure one has to be that a matrix is positive definite.
#[derive(Clone, Copy, PartialEq)]
enum Rigor {
    /// It can be factored in floating point.
    Likely,
    /// It is proved.
    Proved,
}

impl Rigor {
    /// Whether the condition matrix is positive definite with these numbers on the diagonals of
    /// hidden units and border.
    fn holds(self, v: &[Mat<f64>], s: MatRef<'_, f64>, hidden: f64, corner: f64) -> bool {
        let arrow = condition(v, s, hidden, corner).0;
        match self {
            Rigor::Likely => arrow.seems_positive(arrow.resolution()),
            Rigor::Proved => arrow.prove_positive().is_some(),
        }
    }
}

fn widths(v: &[Mat<f64>], s: MatRef<'_, f64>) -> Vec<usize> {
    let mut units = vec![v.first().map_or(s.nrows(), |v| v.ncols())];
    units.extend(v.iter().map(|v| v.nrows()));
    units
}

/// Proves what bounds the stored `V`, `S` support in a layer designed for `design`.
pub(crate) fn certify_monlip(v: &[Mat<f64>], s: MatRef<'_, f64>, design: Bounds) -> LayerCertificate {
    match proved_margin(v, s) {
        Some(margin) => LayerCertificate::of_condition(design, margin),
        None => supported_by_foreign_weights(
            |rigor, hidden, corner| rigor.holds(v, s, hidden, corner),
            || Norms::new(v, s, &widths(v, s)),
            design,
        ),
    }
}

/// The same for weights that are block-diagonal in an orthonormal basis: the condition holds if it
/// holds in every block.
pub(crate) fn certify_blocks(
    count: usize,
    block: impl Fn(usize) -> (Vec<Mat<f64>>, Mat<f64>) + Sync + Send,
    design: Bounds,
) -> LayerCertificate {
    let margins = parallel::map(count, |f| {
        let (v, s) = block(f);
        proved_margin(&v, s.as_ref())
    });
    if let Some(margins) = margins.into_iter().collect::<Option<Vec<f64>>>() {
        let margin = margins.into_iter().fold(f64::INFINITY, f64::min);
        return LayerCertificate::of_condition(design, margin);
    }
    supported_by_foreign_weights(
        |rigor, hidden, corner| {
            let proved = parallel::map(count, |f| {
                let (v, s) = block(f);
                rigor.holds(&v, s.as_ref(), hidden, corner)
            });
            proved.into_iter().all(|p| p)
        },
        || {
            Norms::largest(parallel::map(count, |f| {
                let (v, s) = block(f);
                Norms::new(&v, s.as_ref(), &widths(&v, s.as_ref()))
            }))
        },
        design,
    )
}

/// A proved lower bound on the smallest eigenvalue of the condition matrix, if it is positive.
fn proved_margin(v: &[Mat<f64>], s: MatRef<'_, f64>) -> Option<f64> {
    let (arrow, scale) = condition(v, s, 1.0, 1.0);
    arrow.prove_positive().map(|margin| margin / scale)
}

/// For weights that miss the condition: the smallest defect, and the bounds that remain, by two
/// routes.
///
/// 1. *A larger γ.* If `I − (V+Vᵀ)/2 − SSᵀ/ρ ⪰ 0` for some `ρ > 1`, the same function is a layer
///    with `γ' = ργ` (scale `S` by `1/√ρ`), so μ stands and `ν' = μ + ργ`.
/// 2. *A defect.* With `M + δI ⪰ 0`: `⟨Δx,Δỹ⟩ ≥ ‖Δỹ‖²/γ − ½δ‖Δẑ‖²`, and `‖Δẑ‖ ≤ ζ‖Δx‖` by recursion
///    over the layers. With `κ = ½δζ²` this gives `μ' = μ − κ` and `‖Δỹ‖ ≤ (γ/2)(1 + √(1 +
///    4κ/γ))‖Δx‖`.
///
/// Both are proofs, so the better of each bound is taken.
///
/// `holds` says whether the condition matrix is positive with these numbers on the diagonals of
/// hidden units and border.
fn supported_by_foreign_weights(
    holds: impl Fn(Rigor, f64, f64) -> bool,
    norms: impl FnOnce() -> Norms,
    design: Bounds,
) -> LayerCertificate {
    let (mu, gamma) = (design.mu(), design.gap());
    let defect = smallest(|rigor, delta| holds(rigor, 1.0 + delta, 1.0));
    let mut certified_mu = 0.0;
    let mut certified_nu = f64::INFINITY;
    if let Some(rho) = smallest(|rigor, extra| holds(rigor, 1.0, 1.0 + extra)) {
        certified_mu = mu;
        certified_nu = (mu + (1.0 + rho) * gamma) * (1.0 + 1e-14);
    }
    if let Some(delta) = defect {
        let norms = norms();
        let gain = (2.0 * gamma).sqrt() * (1.0 + 1e-14);
        let (mut square, mut previous) = (0.0, 0.0);
        for (k, block) in norms.s_blocks.iter().enumerate() {
            let own = gain * block + if k == 0 { 0.0 } else { norms.v2[k - 1] * previous };
            square += own * own;
            previous = own;
        }
        let kappa = 0.5 * delta * square * (1.0 + 1e-12);
        let lower = (mu - kappa) * (1.0 - 1e-14);
        let upper = (mu + 0.5 * gamma * (1.0 + (1.0 + 4.0 * kappa / gamma).sqrt())) * (1.0 + 1e-12);
        certified_mu = certified_mu.max(lower.max(0.0));
        if upper.is_finite() {
            certified_nu = certified_nu.min(upper);
        }
    }
    LayerCertificate {
        kind: LayerKind::MonLip,
        design,
        holds: false,
        margin: -defect.unwrap_or(f64::MAX),
        proved: Proved::new(certified_mu, certified_nu.max(certified_mu)),
    }
}

/// The smallest number, within some ten per cent, for which a monotone property is proved; `None`
/// beyond 2³⁰.
///
/// Found by a dozen factorizations, proved by one or two proofs. Candidates are multiples of 2⁻⁵²,
/// so that `1 + x` is exact for those below one.
fn smallest(holds: impl Fn(Rigor, f64) -> bool) -> Option<f64> {
    let exact = |x: f64| (1.0 + x) - 1.0;
    let (mut low, mut high) = (f64::EPSILON * 4.0, (1u64 << 30) as f64);
    if !holds(Rigor::Likely, high) {
        return None;
    }
    while high > 1.05 * low {
        let middle = exact((low * high).sqrt());
        if middle <= low || middle >= high {
            break;
        }
        if holds(Rigor::Likely, middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    for growth in [1.0, 1.05, 2.0, 16.0, 256.0] {
        let candidate = exact(high * growth);
        if holds(Rigor::Proved, candidate) {
            return Some(candidate);
        }
    }
    None
}

/// `V`, `S` rounded to `T` and shrunk by the smallest relative ε for which the bounds are proved to
/// hold.
///
/// `(1−ε)V, (1−ε)S` turn the condition matrix `C` into `(1−ε)C + εI ⪰ εI`; rounding to `T` then
/// takes a little off.
///
/// # Errors
/// When even ε = 1 % does not do: the weights given did not satisfy the condition to begin with.
pub(crate) fn round_certified<T: Real>(
    v: &[Mat<f64>],
    s: MatRef<'_, f64>,
    design: Bounds,
) -> Result<(Vec<Mat<T>>, Mat<T>, LayerCertificate)> {
    let (arrow, _) = condition(v, s, 1.0, 1.0);
    let mut epsilon = (2.0 * arrow.resolution()).max(2.0 * T::UNIT_ROUNDOFF);
    while epsilon < 1e-2 {
        let shrink = |a: MatRef<'_, f64>| {
            Mat::<T>::from_fn(a.nrows(), a.ncols(), |i, j| {
                T::round_from((1.0 - epsilon) * a[(i, j)])
            })
        };
        let vt: Vec<Mat<T>> = v.iter().map(|v| shrink(v.as_ref())).collect();
        let st = shrink(s);
        let stored: Vec<_> = vt.iter().map(|v| to_f64(v.as_ref())).collect();
        let (arrow, scale) = condition(&stored, to_f64(st.as_ref()).as_ref(), 1.0, 1.0);
        if let Some(margin) = arrow.prove_positive() {
            let certificate = LayerCertificate::of_condition(design, margin / scale);
            return Ok((vt, st, certificate));
        }
        epsilon *= 2.0;
    }
    Err(Error::NotCertifiable {
        what: "monotone layer".into(),
        reason: "its weights do not satisfy the condition even after shrinking by 1 %".into(),
    })
}
