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
mod proved;
pub(crate) mod psd;
mod reduce;

use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

pub(crate) use norms::Norms;
pub use proved::Proved;

use crate::base::bounds::{Bounds, Claimed};
use crate::base::decimal::{at_least, at_most, json};
use crate::base::error::{Error, Result};
use crate::base::matrix::to_f64;
use crate::base::parallel;
use crate::base::real::Real;
use psd::{Arrow, Diagonal, orthogonality_defect, power_of_two_at_least};

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
    /// A convolution of bounded norm.
    Convolution,
}

/// What has been proved of one layer's stored weights.
///
/// Made by proofs alone, never read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCertificate {
    kind: LayerKind,
    design: Bounds,
    holds: bool,
    margin: f64,
    proved: Proved,
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
    pub fn design(&self) -> Bounds {
        self.design
    }

    /// For a monotone layer, a proved lower bound on the smallest eigenvalue of its condition matrix; negative (minus
    /// the defect that has to be added to repair it) when the condition is not proved. For an orthogonal layer, minus
    /// a proved bound on `‖PᵀP − I‖`. For a change of variables, zero: it is exact.
    pub fn margin(&self) -> f64 {
        self.margin
    }

    /// What is proved of the layer.
    pub fn proved(&self) -> Proved {
        self.proved
    }

    /// The same for a layer that must have a positive μ.
    ///
    /// # Errors
    /// [`Error::NotCertifiable`] when not even a positive μ can be proved.
    pub(crate) fn need_positive(&self) -> Result<()> {
        if self.proved.bounds().is_some() {
            return Ok(());
        }
        Err(Error::NotCertifiable {
            what: match self.kind {
                LayerKind::Orthogonal => "orthogonal layer".into(),
                LayerKind::MonLip => "monotone layer".into(),
                LayerKind::Scaling => "change of variables".into(),
                LayerKind::Convolution => "convolution".into(),
            },
            reason: match self.margin == -f64::MAX {
                true => "the weights are far from the condition".into(),
                false => format!("the weights miss the condition by {}", at_most(-self.margin, 2)),
            },
        })
    }

    /// That of a monotone layer whose condition is proved with a margin, so that it has the bounds of its design.
    pub(crate) fn of_condition(design: Bounds, margin: f64) -> Self {
        Self::of_interval(design, design.mu(), design.nu(), margin)
    }

    /// The same where the proved bounds may be others than those of the design.
    pub(crate) fn of_interval(design: Bounds, mu: f64, nu: f64, margin: f64) -> Self {
        let proved = Proved::new(mu, nu);
        LayerCertificate {
            kind: LayerKind::MonLip,
            design,
            holds: proved.implies(design),
            margin,
            proved,
        }
    }

    /// That of a convolution with a claimed and a proved bound on its norm.
    pub(crate) fn of_convolution(claimed: f64, norm: f64) -> Self {
        LayerCertificate {
            kind: LayerKind::Convolution,
            // A convolution claims nothing from below, for which bounds have no number; a layer's design is not empty.
            design: Bounds::new(f64::min(claimed, 1.0) * 1e-99, claimed).unwrap_or(Bounds::ISOMETRY),
            holds: norm <= claimed,
            margin: (claimed - norm).max(-f64::MAX),
            proved: Proved::new(0.0, norm),
        }
    }

    /// The certificate of a change of variables, whose bounds need no proof.
    pub(crate) fn exact_scaling(bounds: Bounds) -> Self {
        LayerCertificate {
            kind: LayerKind::Scaling,
            design: bounds,
            holds: true,
            margin: 0.0,
            proved: Proved::new(bounds.mu(), bounds.nu()),
        }
    }
}

/// What has been proved of a whole network's stored weights.
///
/// Made by proofs alone, never read from a file. Serializes to JSON with the keys `mu`, `nu` (claimed), `distortion`,
/// `holds`, `certified_mu`, `certified_nu` (proved; the string `"inf"` for an infinite one), `pl_constant` (for PL
/// networks) and `layers`.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    claim: Claimed,
    holds: bool,
    proved: Proved,
    pl_constant: Option<f64>,
    /// A Lipschitz bound of the whole, where the other bounds are those of each block.
    lipschitz: Option<f64>,
    layers: Vec<LayerCertificate>,
}

impl Certificate {
    pub(crate) fn from_layers(layers: Vec<LayerCertificate>, claim: Claimed) -> Self {
        let proved = Proved::product(layers.iter().map(|layer| layer.proved));
        Certificate {
            claim,
            holds: proved.implies(claim),
            proved,
            pl_constant: None,
            lipschitz: None,
            layers,
        }
    }

    /// That of a map of which only the blocks are bi-Lipschitz, with a Lipschitz bound of the whole.
    pub(crate) fn of_blocks(
        layers: Vec<LayerCertificate>,
        blocks: &[Proved],
        claim: Claimed,
        lipschitz: f64,
    ) -> Self {
        let low = blocks.iter().map(|b| b.mu()).fold(f64::INFINITY, f64::min);
        let high = blocks.iter().map(|b| b.nu()).fold(0.0, f64::max);
        let proved = Proved::new(low, high);
        let convolutions = (layers.iter()).filter(|l| l.kind == LayerKind::Convolution);
        Certificate {
            claim,
            holds: proved.implies(claim) && convolutions.into_iter().all(|l| l.holds),
            proved,
            pl_constant: None,
            lipschitz: Some(lipschitz),
            layers,
        }
    }

    pub(crate) fn with_pl_constant(mut self) -> Self {
        let mu = self.proved.mu();
        self.pl_constant = Some((mu * mu).next_down().max(0.0));
        self
    }

    /// The same certificate for a network whose monotone layers, in order, have other proved bounds.
    pub(crate) fn with_monotone(&self, bounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut bounds = bounds.into_iter();
        let layers = self.layers.iter().map(|layer| match layer.kind {
            LayerKind::MonLip => match (layer.holds, bounds.next()) {
                (true, Some((mu, nu))) => LayerCertificate::of_interval(layer.design, mu, nu, layer.margin),
                // A defect was turned into bounds for the gains of the design; it says nothing of others.
                _ => LayerCertificate::of_interval(layer.design, 0.0, f64::INFINITY, layer.margin),
            },
            _ => layer.clone(),
        });
        let other = Self::from_layers(layers.collect(), self.claim);
        match self.pl_constant {
            Some(_) => other.with_pl_constant(),
            None => other,
        }
    }

    /// Whether the claimed bounds are proved.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// The bounds that the network claims.
    pub fn claimed(&self) -> Claimed {
        self.claim
    }

    /// The bounds that are proved.
    pub fn proved(&self) -> Proved {
        self.proved
    }

    /// The proved Polyak–Łojasiewicz constant `μ²` of a PL network.
    pub fn pl_constant(&self) -> Option<f64> {
        self.pl_constant
    }

    /// For a feature map of images, a proved Lipschitz bound of the whole; the other bounds are then those of each of
    /// its bi-Lipschitz blocks.
    pub fn lipschitz(&self) -> Option<f64> {
        self.lipschitz
    }

    /// The layers' certificates, in order of application.
    pub fn layers(&self) -> &[LayerCertificate] {
        &self.layers
    }
}

/// A number of JSON that may be infinite.
#[derive(Serialize)]
#[serde(transparent)]
struct JsonNumber(#[serde(with = "json")] f64);

/// The JSON of claimed bounds; those of a convolution have μ = 0.
#[derive(Serialize)]
struct ClaimJson {
    mu: f64,
    nu: f64,
}

/// The JSON of a layer's certificate.
#[derive(Serialize)]
struct LayerJson {
    kind: LayerKind,
    claimed: ClaimJson,
    holds: bool,
    margin: f64,
    certified_mu: f64,
    #[serde(with = "json")]
    certified_nu: f64,
}

impl Serialize for LayerCertificate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        LayerJson {
            kind: self.kind,
            claimed: ClaimJson {
                mu: match self.kind {
                    LayerKind::Convolution => 0.0,
                    _ => self.design.mu(),
                },
                nu: self.design.nu(),
            },
            holds: self.holds,
            margin: self.margin,
            certified_mu: self.proved.mu(),
            certified_nu: self.proved.nu(),
        }
        .serialize(serializer)
    }
}

impl Serialize for Certificate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            mu: f64,
            nu: f64,
            distortion: f64,
            holds: bool,
            certified_mu: f64,
            #[serde(with = "json")]
            certified_nu: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            pl_constant: Option<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            lipschitz: Option<JsonNumber>,
            layers: &'a [LayerCertificate],
        }
        Json {
            mu: self.claim.mu(),
            nu: self.claim.nu(),
            distortion: self.claim.distortion(),
            holds: self.holds,
            certified_mu: self.proved.mu(),
            certified_nu: self.proved.nu(),
            pl_constant: self.pl_constant,
            lipschitz: self.lipschitz.map(JsonNumber),
            layers: &self.layers,
        }
        .serialize(serializer)
    }
}

impl std::fmt::Display for Certificate {
    /// Every number behind `>=` is rounded down and every number behind `<=` up, as decimals.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "claimed{}: mu >= {}, nu <= {}: {}",
            if self.lipschitz.is_some() {
                " of each block"
            } else {
                ""
            },
            at_least(self.claim.mu(), 17),
            at_most(self.claim.nu(), 17),
            if self.holds { "proved" } else { "NOT proved" }
        )?;
        let b = self.proved;
        match b.mu() > 0.0 && b.nu().is_finite() {
            true => writeln!(
                f,
                "  proved of the stored weights: mu >= {}, nu <= {}, distortion <= {}",
                at_least(b.mu(), 17),
                at_most(b.nu(), 17),
                at_most(b.distortion(), 7),
            )?,
            false => writeln!(f, "  proved of the stored weights: nothing")?,
        }
        if let Some(pl) = self.pl_constant {
            writeln!(f, "  Polyak-Lojasiewicz constant >= {}", at_least(pl, 17))?;
        }
        if let Some(lipschitz) = self.lipschitz {
            writeln!(
                f,
                "  Lipschitz bound of the features <= {}",
                at_most(lipschitz, 7)
            )?;
        }
        for (k, layer) in self.layers.iter().enumerate() {
            write!(f, "  layer {k}: ")?;
            match layer.kind {
                LayerKind::Orthogonal if layer.margin == -f64::MAX => {
                    writeln!(f, "NOT orthogonal")?;
                }
                LayerKind::Orthogonal => {
                    writeln!(f, "orthogonal, |P'P - I| <= {}", at_most(-layer.margin, 3))?;
                }
                LayerKind::MonLip if layer.margin >= 0.0 => {
                    writeln!(
                        f,
                        "monotone, smallest eigenvalue >= {}",
                        at_least(layer.margin, 3)
                    )?;
                }
                LayerKind::MonLip if layer.margin == -f64::MAX => writeln!(f, "NOT monotone")?,
                LayerKind::MonLip => {
                    writeln!(
                        f,
                        "monotone, condition missed by <= {}",
                        at_most(-layer.margin, 3)
                    )?;
                }
                LayerKind::Convolution => {
                    writeln!(
                        f,
                        "convolution, norm <= {}{}",
                        at_most(layer.proved.nu(), 7),
                        if layer.holds { "" } else { ", more than claimed" }
                    )?;
                }
                LayerKind::Scaling => {
                    let b = layer.design;
                    writeln!(f, "change of variables by {} to {}", b.mu(), b.nu())?;
                }
            }
        }
        Ok(())
    }
}

/// Every layer is proved, and their product is beyond what [`Bounds`] admit.
pub(crate) fn out_of_range() -> Error {
    Error::NotCertifiable {
        what: "network".into(),
        reason: "the product of the layers' bounds leaves the range 1e-100 to 1e100".into(),
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

/// The largest `θ` found with `I − (V+Vᵀ)/2 ⪰ θI` proved, within a factor of two; 0 when there is none above 1e-12.
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
    /// Whether the condition matrix is positive definite with these numbers on the diagonals of hidden units and
    /// border.
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

/// For weights that miss the condition: the smallest defect, and the bounds that remain, by two routes.
///
/// 1. *A larger γ.* If `I − (V+Vᵀ)/2 − SSᵀ/ρ ⪰ 0` for some `ρ > 1`, the same function is a layer with `γ' = ργ` (scale
///    `S` by `1/√ρ`), so μ stands and `ν' = μ + ργ`.
/// 2. *A defect.* With `M + δI ⪰ 0`: `⟨Δx,Δỹ⟩ ≥ ‖Δỹ‖²/γ − ½δ‖Δẑ‖²`, and `‖Δẑ‖ ≤ ζ‖Δx‖` by recursion over the layers.
///    With `κ = ½δζ²` this gives `μ' = μ − κ` and `‖Δỹ‖ ≤ (γ/2)(1 + √(1 + 4κ/γ))‖Δx‖`.
///
/// Both are proofs, so the better of each bound is taken.
///
/// `holds` says whether the condition matrix is positive with these numbers on the diagonals of hidden units and border.
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

/// The smallest number, within some ten per cent, for which a monotone property is proved; `None` beyond 2³⁰.
///
/// Found by a dozen factorizations, proved by one or two proofs. Candidates are multiples of 2⁻⁵², so that `1 + x` is
/// exact for those below one.
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
