//! Proofs of (μ, ν) for the very numbers that are stored.
//!
//! A [`MonLip`](crate::MonLip) layer is μ-strongly monotone and ν-Lipschitz if `M = I − (V+Vᵀ)/2 − SSᵀ ⪰ 0`. By a Schur
//! complement that is the same as
//! ```text
//! ⎡ I − (V+Vᵀ)/2   S ⎤
//! ⎣       Sᵀ       I ⎦ ⪰ 0,
//! ```
//! whose entries are the stored numbers themselves (halved, which is exact), so nothing is lost in forming it, and
//! whose block structure makes the proof linear in depth. The construction makes `M` singular, so plain rounding
//! breaks it; [`round_certified`] shrinks `V` and `S` by a tiny relative ε first, which adds `εI`.

mod norms;
pub(crate) mod psd;
pub(crate) mod rounding_up;

use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

pub(crate) use norms::Norms;

use crate::bounds::Bounds;
use crate::error::{Error, Result};
use crate::map::LayerRef;
use crate::orthogonal::to_f64;
use crate::parallel;
use crate::real::Real;
use psd::{Arrow, orthogonality_defect, power_of_two_at_least};

/// The kind of a layer in a [`LayerCertificate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LayerKind {
    /// An orthogonal layer.
    Orthogonal,
    /// A monotone and Lipschitz layer.
    MonLip,
    /// A change of variables by powers of two.
    Scaling,
}

/// What has been proved of one layer's stored numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerCertificate {
    kind: LayerKind,
    /// The bounds the layer was designed for.
    claimed: Bounds,
    /// Whether the claimed bounds are proved.
    holds: bool,
    margin: f64,
    certified_mu: f64,
    certified_nu: f64,
}

impl LayerCertificate {
    /// The kind of layer.
    pub fn kind(&self) -> LayerKind {
        self.kind
    }

    /// Whether the bounds the layer was designed for are proved.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// The bounds the layer was designed for.
    pub fn claimed(&self) -> Bounds {
        self.claimed
    }

    /// For a monotone layer, a proved lower bound on the smallest eigenvalue of its condition matrix; negative (minus
    /// the defect that has to be added to repair it) when the condition is not proved. For an orthogonal layer, minus
    /// a proved bound on `‖PᵀP − I‖`. For a change of variables, zero: it is exact.
    pub fn margin(&self) -> f64 {
        self.margin
    }

    /// The proved bounds, when a positive μ is among them.
    ///
    /// # Errors
    /// [`Error::NotCertifiable`] when not even a positive μ can be proved.
    pub fn supported(&self) -> Result<Bounds> {
        if self.certified_mu > 0.0
            && let Ok(bounds) = Bounds::new(self.certified_mu, self.certified_nu)
        {
            return Ok(bounds);
        }
        Err(Error::NotCertifiable {
            what: match self.kind {
                LayerKind::Orthogonal => "orthogonal layer".into(),
                LayerKind::MonLip => "monotone layer".into(),
                LayerKind::Scaling => "change of variables".into(),
            },
            reason: format!("the weights miss the condition by {:.2e}", -self.margin),
        })
    }

    /// That of a monotone layer whose condition is proved with a margin, so that it has the bounds of its design.
    pub(crate) fn of_condition(design: Bounds, margin: f64) -> Self {
        Self::of_interval(design, design.mu(), design.nu(), margin)
    }

    /// The same where the proved bounds may be others than those claimed.
    pub(crate) fn of_interval(claimed: Bounds, mu: f64, nu: f64, margin: f64) -> Self {
        LayerCertificate {
            kind: LayerKind::MonLip,
            claimed,
            holds: mu >= claimed.mu() && nu <= claimed.nu(),
            margin,
            certified_mu: mu,
            certified_nu: nu,
        }
    }

    /// The certificate of a change of variables, whose bounds need no proof.
    pub(crate) fn exact_scaling(bounds: Bounds) -> Self {
        LayerCertificate {
            kind: LayerKind::Scaling,
            claimed: bounds,
            holds: true,
            margin: 0.0,
            certified_mu: bounds.mu(),
            certified_nu: bounds.nu(),
        }
    }

    /// As [`supported`](Self::supported), for a layer that could only be built because it is.
    pub(crate) fn supported_bounds(&self) -> Bounds {
        self.supported().unwrap_or(self.claimed)
    }

    /// Whether the fields of a certificate read from a file agree with each other and with the layer.
    pub(crate) fn is_consistent(&self, kind: LayerKind, design: Option<Bounds>) -> bool {
        let numbers = self.margin.is_finite()
            && self.certified_mu >= 0.0
            && self.certified_mu <= self.certified_nu
            && self.certified_nu.is_finite();
        let claim = design.is_none_or(|b| b == self.claimed);
        let verdict =
            !self.holds || (self.certified_mu >= self.claimed.mu() && self.certified_nu <= self.claimed.nu());
        self.kind == kind && numbers && claim && verdict && self.supported().is_ok()
    }
}

/// What has been proved of a whole network's stored numbers.
///
/// Serialises to JSON with the keys `mu`, `nu` (claimed), `distortion`, `holds`, `certified_mu`, `certified_nu`,
/// `pl_constant` (for PL networks) and `layers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    mu: f64,
    nu: f64,
    distortion: f64,
    holds: bool,
    certified_mu: f64,
    certified_nu: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pl_constant: Option<f64>,
    layers: Vec<LayerCertificate>,
}

impl Certificate {
    pub(crate) fn from_layers(layers: Vec<LayerCertificate>, claim: Bounds) -> Self {
        let supported = layers
            .iter()
            .map(|layer| layer.supported())
            .collect::<Result<Vec<_>>>()
            .and_then(Bounds::product);
        let (certified_mu, certified_nu) = match &supported {
            Ok(b) => (b.mu(), b.nu()),
            Err(_) => (
                0.0,
                layers
                    .iter()
                    .fold(1.0f64, |nu, l| (nu * l.certified_nu).next_up())
                    .min(f64::MAX),
            ),
        };
        let holds = supported.is_ok_and(|b| b.imply(&claim));
        Certificate {
            mu: claim.mu(),
            nu: claim.nu(),
            distortion: claim.distortion(),
            holds,
            certified_mu,
            certified_nu,
            pl_constant: None,
            layers,
        }
    }

    pub(crate) fn of_layers<T: Real>(layers: &[LayerRef<'_, T>], claim: Bounds) -> Self {
        let layers = layers
            .iter()
            .map(|layer| match layer {
                LayerRef::Orthogonal(l) => l.layer_certificate().clone(),
                LayerRef::MonLip(l) => l.layer_certificate().clone(),
                LayerRef::Scaling(l) => l.layer_certificate().clone(),
            })
            .collect();
        Self::from_layers(layers, claim)
    }

    pub(crate) fn verify_layers<T: Real>(layers: &[LayerRef<'_, T>], claim: Bounds) -> Self {
        let layers = layers
            .iter()
            .map(|layer| match layer {
                LayerRef::Orthogonal(l) => certify_orthogonal_matrix(to_f64(l.matrix()).as_ref()),
                LayerRef::MonLip(l) => {
                    let v: Vec<_> = l.v().iter().map(|v| to_f64(v.as_ref())).collect();
                    certify_monlip(&v, to_f64(l.s()).as_ref(), l.design())
                }
                LayerRef::Scaling(l) => l.layer_certificate().clone(),
            })
            .collect();
        Self::from_layers(layers, claim)
    }

    pub(crate) fn with_pl_constant(mut self) -> Self {
        self.pl_constant = Some((self.certified_mu * self.certified_mu).next_down().max(0.0));
        self
    }

    /// Whether the claimed bounds are proved.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// The claimed inverse-Lipschitz bound.
    pub fn mu(&self) -> f64 {
        self.mu
    }

    /// The claimed Lipschitz bound.
    pub fn nu(&self) -> f64 {
        self.nu
    }

    /// The proved bounds; `None` when no positive μ could be proved.
    pub fn certified(&self) -> Option<Bounds> {
        Bounds::new(self.certified_mu, self.certified_nu).ok()
    }

    /// The proved Polyak–Łojasiewicz constant `μ²` of a PL network.
    pub fn pl_constant(&self) -> Option<f64> {
        self.pl_constant
    }

    /// The layers' certificates, in order of application.
    pub fn layers(&self) -> &[LayerCertificate] {
        &self.layers
    }
}

impl std::fmt::Display for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "bounds ({}, {}), distortion {:.6}: {}",
            self.mu,
            self.nu,
            self.distortion,
            if self.holds { "proved" } else { "NOT proved" }
        )?;
        match self.certified() {
            Some(b) => writeln!(f, "  proved: mu >= {:.17e}, nu <= {:.17e}", b.mu(), b.nu())?,
            None => writeln!(f, "  proved: no bounds at all")?,
        }
        if let Some(pl) = self.pl_constant {
            writeln!(f, "  Polyak-Lojasiewicz constant >= {pl:.17e}")?;
        }
        for (k, layer) in self.layers.iter().enumerate() {
            let what = match layer.kind {
                LayerKind::Orthogonal => "orthogonal, |P'P - I| <=",
                LayerKind::MonLip if layer.margin >= 0.0 => "monotone, smallest eigenvalue >=",
                LayerKind::MonLip => "monotone, condition missed by",
                LayerKind::Scaling => {
                    let b = layer.claimed;
                    writeln!(f, "  layer {k}: change of variables by {} to {}", b.mu(), b.nu())?;
                    continue;
                }
            };
            writeln!(f, "  layer {k}: {what} {:.2e}", layer.margin.abs())?;
        }
        Ok(())
    }
}

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
    crate::cayley::check_matrix("matrix of an orthogonal layer", p)?;
    let certificate = certify_orthogonal_matrix(p);
    certificate.supported()?;
    Ok(certificate)
}

fn certify_orthogonal_matrix(p: MatRef<'_, f64>) -> LayerCertificate {
    let defect = orthogonality_defect(p).unwrap_or(f64::INFINITY);
    let (mu, nu) = if defect < 1.0 {
        (
            (1.0 - defect).next_down().sqrt().next_down().max(0.0),
            (1.0 + defect).next_up().sqrt().next_up(),
        )
    } else {
        // Columns longer than √1.5: only the Frobenius norm bounds it from above.
        (0.0, psd::frobenius_upper(p).min(f64::MAX))
    };
    LayerCertificate {
        kind: LayerKind::Orthogonal,
        claimed: Bounds::new(mu.min(1.0), nu.max(1.0)).unwrap_or(Bounds::ISOMETRY),
        holds: mu > 0.0,
        margin: -defect.min(f64::MAX),
        certified_mu: mu,
        certified_nu: nu,
    }
}

/// The condition matrix with `hidden` on the diagonal of the hidden blocks and `corner` on that of the border,
/// scaled by a power of two so that no diagonal entry exceeds one.
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
    let diagonal = |m: usize, value: f64| Mat::from_fn(m, m, |i, j| if i == j { scale * value } else { 0.0 });
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

/// The largest `θ` found with `I − (V+Vᵀ)/2 ⪰ θI` proved, within a factor of two; 0 when there is none above 1e-12.
pub(crate) fn strong_monotonicity(v: &[Mat<f64>], units: &[usize]) -> f64 {
    let arrow = Arrow {
        diagonal: units.iter().map(|m| Mat::identity(*m, *m)).collect(),
        sub: v
            .iter()
            .map(|v| Mat::from_fn(v.nrows(), v.ncols(), |i, j| -0.5 * v[(i, j)]))
            .collect(),
        border: vec![],
        corner: None,
    };
    let mut theta = 0.5;
    while theta > 1e-12 {
        if let Some(bound) = arrow.eigenvalue_bound(theta)
            && bound > 0.0
        {
            return bound;
        }
        theta *= 0.5;
    }
    0.0
}

/// Proves what bounds the stored `V`, `S` support in a layer designed for `design`.
pub(crate) fn certify_monlip(v: &[Mat<f64>], s: MatRef<'_, f64>, design: Bounds) -> LayerCertificate {
    match proved_margin(v, s) {
        Some(margin) => LayerCertificate::of_condition(design, margin),
        None => supported_by_foreign_weights(
            |hidden, corner| condition(v, s, hidden, corner).0.prove_positive().is_some(),
            || {
                let mut units = vec![v.first().map_or(s.nrows(), |v| v.ncols())];
                units.extend(v.iter().map(|v| v.nrows()));
                Norms::new(v, s, &units)
            },
            design,
        ),
    }
}

/// The same for weights that are block-diagonal in an orthonormal basis: the condition holds if it holds in every block.
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
        |hidden, corner| {
            let proved = parallel::map(count, |f| {
                let (v, s) = block(f);
                condition(&v, s.as_ref(), hidden, corner)
                    .0
                    .prove_positive()
                    .is_some()
            });
            proved.into_iter().all(|p| p)
        },
        || {
            Norms::largest(parallel::map(count, |f| {
                let (v, s) = block(f);
                let mut units = vec![v.first().map_or(s.nrows(), |v| v.ncols())];
                units.extend(v.iter().map(|v| v.nrows()));
                Norms::new(&v, s.as_ref(), &units)
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

/// For weights that miss the condition: the smallest defect, and the bounds that remain, by two routes.
///
/// 1. *A larger γ.* If `I − (V+Vᵀ)/2 − SSᵀ/ρ ⪰ 0` for some `ρ > 1`, the same function is a layer with `γ' = ργ` (scale
///    `S` by `1/√ρ`), so μ stands and `ν' = μ + ργ`.
/// 2. *A defect.* With `M + δI ⪰ 0`: `⟨Δx,Δỹ⟩ ≥ ‖Δỹ‖²/γ − ½δ‖Δẑ‖²`, and `‖Δẑ‖ ≤ ζ‖Δx‖` by recursion over the layers.
///    With `κ = ½δζ²` this gives `μ' = μ − κ` and `‖Δỹ‖ ≤ (γ/2)(1 + √(1 + 4κ/γ))‖Δx‖`.
///
/// Both are proofs, so the better of each bound is taken.
///
/// `proves` says whether the condition matrix is proved positive with these numbers on the diagonals of hidden units and border.
fn supported_by_foreign_weights(
    proves: impl Fn(f64, f64) -> bool,
    norms: impl FnOnce() -> Norms,
    design: Bounds,
) -> LayerCertificate {
    let (mu, gamma) = (design.mu(), design.gap());
    let defect = smallest(|delta| proves(1.0 + delta, 1.0));
    let mut certified_mu = 0.0;
    let mut certified_nu = f64::MAX;
    if let Some(rho) = smallest(|extra| proves(1.0, 1.0 + extra)) {
        certified_mu = mu;
        certified_nu = ((mu + (1.0 + rho) * gamma) * (1.0 + 1e-14)).min(f64::MAX);
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
        claimed: design,
        holds: false,
        margin: -defect.unwrap_or(f64::MAX),
        certified_mu,
        certified_nu: certified_nu.max(certified_mu),
    }
}

/// The smallest number, within five per cent, for which a monotone property is true; `None` beyond 2³⁰.
///
/// Candidates are multiples of 2⁻⁵², so that `1 + x` is exact for those below one.
fn smallest(holds: impl Fn(f64) -> bool) -> Option<f64> {
    let exact = |x: f64| (1.0 + x) - 1.0;
    let mut high = f64::EPSILON * 4.0;
    let mut low = 0.0;
    while !holds(high) {
        low = high;
        high *= 16.0;
        if high > (1u64 << 30) as f64 {
            return None;
        }
    }
    while high > 1.05 * low && low > 0.0 {
        let middle = exact((low * high).sqrt());
        if middle <= low || middle >= high {
            break;
        }
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// `V`, `S` rounded to `T` and shrunk by the smallest relative ε for which the bounds are proved to hold.
///
/// `(1−ε)V, (1−ε)S` turn the condition matrix `C` into `(1−ε)C + εI ⪰ εI`; rounding to `T` then takes a little off.
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
