//! Bounds that a proof has shown, as a type that only a proof can make.

use crate::base::bounds::{Bounds, Claimed};

/// Bounds `μ‖Δx‖ ≤ ‖ΔG‖ ≤ ν‖Δx‖` that are **proved** of the stored weights: `0 ≤ μ ≤ ν ≤ ∞`.
///
/// Only the proofs of this crate make values of this type. [`Bounds`] are numbers that somebody
/// chose (a design), [`Claimed`] is what a network or a file says of itself; neither converts to
/// this. `μ = 0` and `ν = ∞` say that nothing was proved on that side: error bounds that divide by
/// μ are then infinite, not wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proved {
    mu: f64,
    nu: f64,
}

impl Proved {
    /// What is true of every map.
    pub(super) const NOTHING: Proved = Proved {
        mu: 0.0,
        nu: f64::INFINITY,
    };

    /// What is true of every isometry.
    pub(super) const ISOMETRY: Proved = Proved { mu: 1.0, nu: 1.0 };

    /// For proofs alone. Numbers too small or too large for products to be trusted count as
    /// nothing.
    pub(super) fn new(mu: f64, nu: f64) -> Self {
        let mu = if (1e-280..=1e280).contains(&mu) { mu } else { 0.0 };
        let nu = if nu.is_nan() || nu > 1e280 {
            f64::INFINITY
        } else {
            nu
        };
        match mu <= nu {
            true => Proved { mu, nu },
            false => Proved::NOTHING,
        }
    }

    /// The inverse-Lipschitz bound μ; 0 where none is proved.
    pub fn mu(&self) -> f64 {
        self.mu
    }

    /// The Lipschitz bound ν; infinite where none is proved.
    pub fn nu(&self) -> f64 {
        self.nu
    }

    /// `ν/μ`, rounded up; infinite unless both are proved.
    pub fn distortion(&self) -> f64 {
        match self.mu > 0.0 {
            true => (self.nu / self.mu).next_up(),
            false => f64::INFINITY,
        }
    }

    /// The two numbers as a plain pair, when there is a positive μ and a finite ν, both within
    /// 1e±100.
    pub fn bounds(&self) -> Option<Bounds> {
        Bounds::new(self.mu, self.nu).ok()
    }

    /// Whether a claim follows: `μ ≥ claim.μ` and `ν ≤ claim.ν`.
    pub fn implies(&self, claim: impl Into<Claimed>) -> bool {
        let claim = claim.into();
        self.mu >= claim.mu() && self.nu <= claim.nu()
    }

    /// The claim, if it follows: the same statement in rounder numbers. Otherwise what is proved,
    /// unchanged.
    pub(crate) fn as_claimed(self, claim: Claimed) -> Self {
        match self.implies(claim) {
            true => Proved {
                mu: claim.mu(),
                nu: claim.nu(),
            },
            false => self,
        }
    }

    /// Bounds of this map followed by another, rounded outwards where the products are not exact.
    pub fn then(&self, next: &Proved) -> Proved {
        // A fused multiply-add gives the error of the product exactly, within the range that `new`
        // admits.
        let product = |a: f64, b: f64| (a * b, a.mul_add(b, -(a * b)));
        let (mu, below) = product(self.mu, next.mu);
        let nu = match self.nu.is_finite() && next.nu.is_finite() {
            true => {
                let (nu, above) = product(self.nu, next.nu);
                if above > 0.0 { nu.next_up() } else { nu }
            }
            false => f64::INFINITY,
        };
        Proved::new(if below < 0.0 { mu.next_down() } else { mu }, nu)
    }

    /// Bounds of maps applied after one another.
    pub fn product(maps: impl IntoIterator<Item = Proved>) -> Proved {
        maps.into_iter()
            .reduce(|product, next| product.then(&next))
            .unwrap_or(Proved::ISOMETRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_proved_is_zero_or_infinite_and_stays_so() {
        let nothing = Proved::NOTHING;
        let some = Proved::new(0.5, 2.0);
        assert_eq!(nothing.then(&some), Proved::NOTHING);
        assert_eq!(Proved::new(f64::NAN, f64::NAN), nothing);
        assert_eq!(Proved::new(3.0, 2.0), nothing);
        assert_eq!(Proved::new(1e-300, 1e300), nothing);
        assert!(nothing.bounds().is_none() && nothing.distortion().is_infinite());
        assert!(some.implies(Bounds::new(0.4, 2.0).unwrap()));
        assert!(!nothing.implies(Bounds::new(1e-100, 1e100).unwrap()));
    }

    #[test]
    fn products_are_rounded_outwards() {
        let third = Proved::new(1.0 / 3.0, 1.0 / 3.0);
        let ninth = third.then(&third);
        // 2⁵⁴/3 is no whole number: the exact product is strictly between neighboring numbers.
        assert!(ninth.mu() < ninth.nu());
        let exact = Proved::new(0.5, 4.0).then(&Proved::new(0.25, 2.0));
        assert_eq!((exact.mu(), exact.nu()), (0.125, 8.0));
    }
}
