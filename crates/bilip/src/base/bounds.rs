//! Bi-Lipschitz bounds as somebody chose them, and as somebody claims them. Proved ones are another
//! type, [`Proved`](crate::Proved).

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};

/// A pair `0 < μ ≤ ν`, both within 1e±100, for `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖`: the numbers a layer is
/// *designed* with.
///
/// Nothing is proved by having them: see [`Proved`](crate::Proved).
///
/// ```
/// use bilip::Bounds;
/// let bounds = Bounds::new(0.1, 10.0)?;
/// assert_eq!(bounds.distortion(), 100.0);
/// assert!(Bounds::new(2.0, 1.0).is_err());
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawBounds", into = "RawBounds")]
pub struct Bounds {
    mu: f64,
    nu: f64,
}

#[derive(Serialize, Deserialize)]
struct RawBounds {
    mu: f64,
    nu: f64,
}

impl TryFrom<RawBounds> for Bounds {
    type Error = Error;
    fn try_from(raw: RawBounds) -> Result<Self> {
        Bounds::new(raw.mu, raw.nu)
    }
}

impl From<Bounds> for RawBounds {
    fn from(b: Bounds) -> Self {
        RawBounds { mu: b.mu, nu: b.nu }
    }
}

impl Bounds {
    /// The isometry's bounds, `(1, 1)`.
    pub const ISOMETRY: Bounds = Bounds { mu: 1.0, nu: 1.0 };

    /// Inverse-Lipschitz bound `mu` and Lipschitz bound `nu`.
    ///
    /// # Errors
    /// Unless `1e-100 ≤ mu ≤ nu ≤ 1e100`: beyond, squares and quotients would leave the range of
    /// f64 and take the proofs with them.
    pub fn new(mu: f64, nu: f64) -> Result<Self> {
        if !(1e-100..=1e100).contains(&mu) {
            return Err(Error::setting(
                "mu",
                mu,
                "must be a number between 1e-100 and 1e100",
            ));
        }
        if nu.is_nan() || nu > 1e100 {
            return Err(Error::setting("nu", nu, "must be a number of at most 1e100"));
        }
        if nu < mu {
            return Err(Error::setting(
                "nu",
                nu,
                format!("must not be smaller than mu = {mu}"),
            ));
        }
        Ok(Bounds { mu, nu })
    }

    /// Bounds from any two of `μ`, `ν` and the distortion `τ = ν/μ`; from `τ` alone, `μ = 1/√τ` and
    /// `ν = √τ`.
    ///
    /// # Errors
    /// On fewer facts than that, on values out of range, and on three values that contradict each
    /// other.
    pub fn from_parts(mu: Option<f64>, nu: Option<f64>, distortion: Option<f64>) -> Result<Self> {
        if let Some(tau) = distortion
            && !(tau >= 1.0 && tau.is_finite())
        {
            return Err(Error::setting("distortion", tau, "must be at least 1"));
        }
        match (mu, nu, distortion) {
            (Some(mu), Some(nu), None) => Bounds::new(mu, nu),
            (Some(mu), None, Some(tau)) => Bounds::new(mu, mu * tau),
            (None, Some(nu), Some(tau)) => Bounds::new(nu / tau, nu),
            (None, None, Some(tau)) => Bounds::new(1.0 / tau.sqrt(), tau.sqrt()),
            (Some(mu), Some(nu), Some(tau)) => {
                let bounds = Bounds::new(mu, nu)?;
                if (bounds.distortion() / tau - 1.0).abs() > 1e-9 {
                    return Err(Error::setting(
                        "distortion",
                        tau,
                        format!("contradicts nu/mu = {}", bounds.distortion()),
                    ));
                }
                Ok(bounds)
            }
            _ => Err(Error::setting(
                "bounds",
                "incomplete",
                "give mu and nu, one of them with the distortion, or the distortion alone",
            )),
        }
    }

    /// The inverse-Lipschitz bound μ.
    pub fn mu(&self) -> f64 {
        self.mu
    }

    /// The Lipschitz bound ν.
    pub fn nu(&self) -> f64 {
        self.nu
    }

    /// `γ = ν − μ`.
    pub fn gap(&self) -> f64 {
        self.nu - self.mu
    }

    /// The distortion `τ = ν/μ`.
    pub fn distortion(&self) -> f64 {
        self.nu / self.mu
    }

    /// Bounds of the composition of two maps that have these, rounded outwards where a product is
    /// inexact.
    ///
    /// # Errors
    /// When a product leaves the range.
    pub fn compose(&self, other: &Bounds) -> Result<Bounds> {
        // A fused multiply-add gives the error of the product exactly.
        let product = |a: f64, b: f64| (a * b, a.mul_add(b, -(a * b)));
        let (mu, below) = product(self.mu, other.mu);
        let (nu, above) = product(self.nu, other.nu);
        Bounds::new(
            if below < 0.0 { mu.next_down() } else { mu },
            if above > 0.0 { nu.next_up() } else { nu },
        )
    }

    /// Bounds of maps applied after one another; those of a single map are its own.
    ///
    /// # Errors
    /// As for [`compose`](Self::compose).
    pub fn product(maps: impl IntoIterator<Item = Bounds>) -> Result<Bounds> {
        let mut maps = maps.into_iter();
        let first = maps.next().unwrap_or(Bounds::ISOMETRY);
        maps.try_fold(first, |product, next| product.compose(&next))
    }
}

/// Bounds that a network or a model file *says* it has. Anybody may claim anything; a proof is a
/// [`Proved`](crate::Proved), and a claim never converts to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Claimed(Bounds);

impl Claimed {
    /// The claimed inverse-Lipschitz bound.
    pub fn mu(&self) -> f64 {
        self.0.mu
    }

    /// The claimed Lipschitz bound.
    pub fn nu(&self) -> f64 {
        self.0.nu
    }

    /// The claimed distortion.
    pub fn distortion(&self) -> f64 {
        self.0.distortion()
    }

    /// The two numbers.
    pub fn bounds(&self) -> Bounds {
        self.0
    }
}

impl From<Bounds> for Claimed {
    fn from(bounds: Bounds) -> Self {
        Claimed(bounds)
    }
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.mu, self.nu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_or_missing_parts_are_errors() {
        assert!(Bounds::from_parts(Some(0.1), Some(10.0), Some(100.0)).is_ok());
        assert!(Bounds::from_parts(Some(0.1), Some(10.0), Some(50.0)).is_err());
        assert!(Bounds::from_parts(Some(0.1), None, None).is_err());
        assert!(Bounds::from_parts(None, None, Some(0.5)).is_err());
        assert!(Bounds::from_parts(Some(f64::NAN), Some(1.0), None).is_err());
        let b = Bounds::from_parts(None, Some(4.0), Some(8.0)).unwrap();
        assert_eq!((b.mu(), b.nu()), (0.5, 4.0));
    }

    #[test]
    fn serde_refuses_what_new_refuses() {
        assert!(serde_json::from_str::<Bounds>(r#"{"mu":2.0,"nu":1.0}"#).is_err());
        assert!(serde_json::from_str::<Bounds>(r#"{"mu":-1.0,"nu":1.0}"#).is_err());
    }
}
