//! Certificates: what proofs have found, and how it is shown.

use serde::{Deserialize, Serialize};

use super::Proved;
use crate::base::bounds::{Bounds, Claimed};
use crate::base::decimal::{at_least, at_most, json};
use crate::base::error::{Error, Result};

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
    pub(super) kind: LayerKind,
    pub(super) design: Bounds,
    pub(super) holds: bool,
    pub(super) margin: f64,
    pub(super) proved: Proved,
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

    /// For a monotone layer, a proved lower bound on the smallest eigenvalue of its condition
    /// matrix; negative (minus the defect that has to be added to repair it) when the condition is
    /// not proved. For an orthogonal layer, minus a proved bound on `‖PᵀP − I‖`. For a change of
    /// variables, zero: it is exact.
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

    /// That of a monotone layer whose condition is proved with a margin, so that it has the bounds
    /// of its design.
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
            // A convolution claims nothing from below, for which bounds have no number; a layer's
            // design is not empty.
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
/// Made by proofs alone, never read from a file. Serializes to JSON with the keys `mu`, `nu`
/// (claimed), `distortion`, `holds`, `certified_mu`, `certified_nu` (proved; the string `"inf"` for
/// an infinite one), `pl_constant` (for PL networks) and `layers`.
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

    /// That of a map of which only the blocks are bi-Lipschitz, with a Lipschitz bound of the
    /// whole.
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

    /// The same certificate for a network whose monotone layers, in order, have other proved
    /// bounds.
    pub(crate) fn with_monotone(&self, bounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut bounds = bounds.into_iter();
        let layers = self.layers.iter().map(|layer| match layer.kind {
            LayerKind::MonLip => match (layer.holds, bounds.next()) {
                (true, Some((mu, nu))) => LayerCertificate::of_interval(layer.design, mu, nu, layer.margin),
                // A defect was turned into bounds for the gains of the design; it says nothing of
                // others.
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

    /// For a feature map of images, a proved Lipschitz bound of the whole; the other bounds are
    /// then those of each of its bi-Lipschitz blocks.
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
