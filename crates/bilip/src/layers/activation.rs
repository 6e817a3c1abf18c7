//! Scalar activations with slope in [0, 1], their derivatives and their proximal operators.
//!
//! The whole guarantee rests on `0 ≤ σ' ≤ 1`: it makes `σ = prox_f` for some convex `f` (never
//! needed explicitly), gives the incremental quadratic constraint `⟨Δv − Δz, Δz⟩ ≥ 0`, and is
//! therefore checked here, once. With a positive scaling Ψ the layer uses `σ̂(v) = ψσ(v/ψ)`, whose
//! slopes are those of σ.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::double::{Pair, times};
use crate::base::error::{Error, Result};
use crate::base::real::Real;

/// An activation whose slope stays in [0, 1].
///
/// ```
/// use bilip::Activation;
/// let relu: Activation = "relu".parse()?;
/// assert_eq!(relu.value(-2.0), 0.0);
/// assert!("gelu".parse::<Activation>().is_err()); // its slope leaves [0, 1]
/// # Ok::<(), bilip::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Activation {
    /// `max(v, 0)`.
    Relu,
    /// `v` for `v ≥ 0`, `slope · v` below, `0 ≤ slope ≤ 1`. Built by [`Activation::leaky_relu`].
    LeakyRelu(Slope),
    /// `tanh v`.
    Tanh,
    /// `1/(1 + e⁻ᵛ)`; its slope is at most ¼.
    Sigmoid,
    /// `arctan v`.
    Arctan,
    /// `ln(1 + eᵛ)`.
    Softplus,
    /// `v` for `v ≥ 0`, `eᵛ − 1` below.
    Elu,
    /// `v`.
    Identity,
}

/// The negative slope of a leaky ReLU, between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope(f64);

impl Slope {
    /// The slope as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Activation {
    /// One of each kind (leaky ReLU with the customary slope 0.01), for tests and tables.
    pub const ALL: [Activation; 8] = [
        Activation::Relu,
        Activation::LeakyRelu(Slope(0.01)),
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Arctan,
        Activation::Softplus,
        Activation::Elu,
        Activation::Identity,
    ];

    /// A leaky ReLU.
    ///
    /// # Errors
    /// Unless `0 ≤ slope ≤ 1`.
    pub fn leaky_relu(slope: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&slope) {
            Ok(Activation::LeakyRelu(Slope(slope)))
        } else {
            Err(Error::Activation {
                name: format!("leaky_relu({slope})"),
                reason: "its slope must be in [0, 1]".into(),
            })
        }
    }

    /// Whether `σ(cv) = cσ(v)` for all `c > 0`, so that a scaling Ψ changes nothing.
    pub fn is_homogeneous(&self) -> bool {
        matches!(
            self,
            Activation::Relu | Activation::LeakyRelu(_) | Activation::Identity
        )
    }

    /// `σ(v)`.
    #[inline]
    pub fn value<T: Real>(&self, v: T) -> T {
        let (zero, one) = (T::zero(), T::one());
        match self {
            Activation::Relu => v.max(zero),
            Activation::LeakyRelu(s) => {
                if v >= zero {
                    v
                } else {
                    T::round_from(s.0) * v
                }
            }
            Activation::Tanh => num_traits::Float::tanh(v),
            Activation::Sigmoid => sigmoid(v),
            Activation::Arctan => num_traits::Float::atan(v),
            // ln(1+eᵛ) without overflow and with full relative accuracy in both tails.
            Activation::Softplus => {
                v.max(zero) + num_traits::Float::ln_1p(num_traits::Float::exp(-num_traits::Float::abs(v)))
            }
            Activation::Elu => {
                if v >= zero {
                    v
                } else {
                    num_traits::Float::exp_m1(v)
                }
            }
            Activation::Identity => v * one,
        }
    }

    /// `σ'(v)`; at a kink, the derivative from the left.
    #[inline]
    pub fn derivative<T: Real>(&self, v: T) -> T {
        let (zero, one) = (T::zero(), T::one());
        match self {
            Activation::Relu => {
                if v > zero {
                    one
                } else {
                    zero
                }
            }
            Activation::LeakyRelu(s) => {
                if v > zero {
                    one
                } else {
                    T::round_from(s.0)
                }
            }
            Activation::Tanh => {
                let t = num_traits::Float::tanh(v);
                // (1−t)(1+t) keeps relative accuracy where 1−t² cancels.
                (one - t) * (one + t)
            }
            Activation::Sigmoid => sigmoid(v) * sigmoid(-v),
            Activation::Arctan => one / (one + v * v),
            Activation::Softplus => sigmoid(v),
            Activation::Elu => {
                if v > zero {
                    one
                } else {
                    num_traits::Float::exp(v)
                }
            }
            Activation::Identity => one,
        }
    }

    /// `prox_f^α(u)` for the convex `f` with `prox_f^1 = σ`: the `z = σ(v)` where `(1−α)σ(v) + αv =
    /// u`.
    ///
    /// The scalar equation is strictly increasing with slope between `min(α, 1)` and `max(α, 1)`;
    /// it is solved in closed form for ReLU, leaky ReLU and identity, otherwise by Newton's method
    /// inside a bracket, to rounding.
    ///
    /// # Panics
    /// Never; `alpha` must be positive, otherwise the result is unspecified.
    pub fn prox(&self, alpha: f64, u: f64) -> f64 {
        match self {
            Activation::Relu => u.max(0.0),
            Activation::Identity => u,
            Activation::LeakyRelu(s) => {
                if u >= 0.0 {
                    u
                } else {
                    s.0 * u / (alpha + (1.0 - alpha) * s.0)
                }
            }
            Activation::Elu if u >= 0.0 => u,
            _ if alpha == 1.0 => self.value(u),
            _ => self.value(self.prox_preimage(alpha, u)),
        }
    }

    /// The `v` with `(1−α)σ(v) + αv = u`.
    fn prox_preimage(&self, alpha: f64, u: f64) -> f64 {
        let g = |v: f64| (1.0 - alpha) * self.value(v) + alpha * v - u;
        // Any point brackets the root: |v − v*| ≤ |g(v)|/min(α,1).
        let slope = alpha.min(1.0);
        let mut v = if alpha >= 1.0 { u / alpha } else { u };
        let residual = g(v);
        let reach = residual.abs() / slope * (1.0 + 1e-12) + f64::MIN_POSITIVE;
        let (mut low, mut high) = (v - reach, v + reach);
        for _ in 0..200 {
            let residual = g(v);
            if residual == 0.0 {
                break;
            }
            if residual > 0.0 {
                high = high.min(v);
            } else {
                low = low.max(v);
            }
            let newton = v - residual / ((1.0 - alpha) * self.derivative(v) + alpha);
            let next = if newton > low && newton < high {
                newton
            } else {
                0.5 * (low + high)
            };
            if (next - v).abs() <= 2.0 * f64::EPSILON * next.abs() || low >= high {
                v = next;
                break;
            }
            v = next;
        }
        v
    }

    /// In place: `v ← σ̂(v + bias)`, and the slopes `σ̂'` to `slopes` where asked for.
    pub(crate) fn apply_column<T: Real>(
        &self,
        v: &mut [T],
        bias: &[T],
        psi: Option<&[T]>,
        slopes: Option<&mut [T]>,
    ) {
        let n = v.len();
        let bias = &bias[..n];
        if let Some(slopes) = slopes {
            for i in 0..n {
                let pre = v[i] + bias[i];
                let scale = psi.map_or(T::one(), |p| p[i]);
                slopes[i] = self.derivative(pre / scale);
                v[i] = scale * self.value(pre / scale);
            }
            return;
        }
        match (self, psi) {
            // The common case, kept branch-free so that it vectorises.
            (Activation::Relu, _) => pulp::Arch::new().dispatch(|| {
                for (v, b) in v.iter_mut().zip(bias) {
                    let pre = *v + *b;
                    *v = if pre > T::zero() { pre } else { T::zero() };
                }
            }),
            (_, None) => {
                for (v, b) in v.iter_mut().zip(bias) {
                    *v = self.value(*v + *b);
                }
            }
            (_, Some(psi)) => {
                for i in 0..n {
                    v[i] = psi[i] * self.value((v[i] + bias[i]) / psi[i]);
                }
            }
        }
    }

    /// In place: `u ← ψ prox^α(u/ψ)`.
    pub(crate) fn prox_scaled(&self, alpha: f64, u: f64, psi: Option<f64>) -> f64 {
        match psi {
            None => self.prox(alpha, u),
            Some(psi) => psi * self.prox(alpha, u / psi),
        }
    }
}

fn sigmoid<T: Real>(v: T) -> T {
    let one = T::one();
    let e = num_traits::Float::exp(-num_traits::Float::abs(v));
    if v >= T::zero() {
        one / (one + e)
    } else {
        e / (one + e)
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activation::Relu => f.write_str("relu"),
            Activation::LeakyRelu(s) => write!(f, "leaky_relu({})", s.0),
            Activation::Tanh => f.write_str("tanh"),
            Activation::Sigmoid => f.write_str("sigmoid"),
            Activation::Arctan => f.write_str("arctan"),
            Activation::Softplus => f.write_str("softplus"),
            Activation::Elu => f.write_str("elu"),
            Activation::Identity => f.write_str("identity"),
        }
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Reads `relu`, `leaky_relu`, `leaky_relu(0.2)`, `tanh`, `sigmoid`, `arctan`, `softplus`,
    /// `elu`, `identity`.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = |reason: &str| {
            Err(Error::Activation {
                name: text.chars().take(40).collect(),
                reason: reason.into(),
            })
        };
        let lower = text.trim().to_ascii_lowercase();
        match lower.as_str() {
            "relu" => Ok(Activation::Relu),
            "leaky_relu" => Activation::leaky_relu(0.01),
            "tanh" => Ok(Activation::Tanh),
            "sigmoid" => Ok(Activation::Sigmoid),
            "arctan" | "atan" => Ok(Activation::Arctan),
            "softplus" => Ok(Activation::Softplus),
            "elu" => Ok(Activation::Elu),
            "identity" | "linear" => Ok(Activation::Identity),
            "gelu" => refuse(
                "its slope ranges over [-0.13, 1.13], outside [0, 1], so no bound could be guaranteed; softplus or elu are smooth and allowed",
            ),
            "silu" | "swish" => refuse(
                "its slope ranges over [-0.10, 1.10], outside [0, 1], so no bound could be guaranteed; softplus or elu are smooth and allowed",
            ),
            "mish" | "selu" | "hardswish" | "sin" => refuse(
                "its slope leaves [0, 1], so no bound could be guaranteed; softplus or elu are smooth and allowed",
            ),
            other => {
                if let Some(slope) = other
                    .strip_prefix("leaky_relu(")
                    .and_then(|rest| rest.strip_suffix(')'))
                {
                    return match slope.trim().parse::<f64>() {
                        Ok(slope) => Activation::leaky_relu(slope),
                        Err(_) => refuse("the slope in parentheses is not a number"),
                    };
                }
                refuse(
                    "unknown; choose one of relu, leaky_relu, tanh, sigmoid, arctan, softplus, elu, identity",
                )
            }
        }
    }
}

impl TryFrom<String> for Activation {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Activation> for String {
    fn from(activation: Activation) -> String {
        activation.to_string()
    }
}

/// `ψσ(z/ψ)` of every number, in double-double arithmetic where σ is piecewise linear.
pub(crate) fn activate(activation: Activation, z: &mut Pair, psi: Option<&[f64]>) {
    for i in 0..z.hi.len() {
        let (hi, lo) = (z.hi[i], z.lo[i]);
        (z.hi[i], z.lo[i]) = match activation {
            Activation::Identity => (hi, lo),
            // After renormalization the sign of the sum is the sign of its head.
            Activation::Relu if hi > 0.0 => (hi, lo),
            Activation::Relu => (0.0, 0.0),
            Activation::LeakyRelu(_) if hi > 0.0 => (hi, lo),
            Activation::LeakyRelu(slope) => times(hi, lo, (slope.get(), 0.0)),
            smooth => {
                let psi = psi.map_or(1.0, |p| p[i]);
                (psi * smooth.value(hi / psi), smooth.derivative(hi / psi) * lo)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_stay_in_the_unit_interval_and_match_differences() {
        for act in Activation::ALL {
            for i in -400..400 {
                let v = i as f64 * 0.037 + 0.001;
                let d = act.derivative(v);
                assert!((0.0..=1.0).contains(&d), "{act} at {v}: {d}");
                let h = 1e-6;
                let fd = (act.value(v + h) - act.value(v - h)) / (2.0 * h);
                assert!((d - fd).abs() < 1e-8, "{act} at {v}: {d} against {fd}");
            }
        }
    }

    #[test]
    fn names_round_trip_and_steep_activations_are_refused() {
        for act in Activation::ALL {
            assert_eq!(act.to_string().parse::<Activation>().unwrap(), act);
        }
        for name in [
            "gelu",
            "SiLU",
            "swish",
            "nope",
            "leaky_relu(1.5)",
            "leaky_relu(x)",
            "",
        ] {
            assert!(name.parse::<Activation>().is_err(), "{name}");
        }
    }

    #[test]
    fn values_are_finite_in_the_far_tails() {
        for act in Activation::ALL {
            for v in [-1e300f64, -800.0, 800.0, 1e300] {
                assert!(act.value(v).is_finite(), "{act} at {v}");
                assert!(act.derivative(v).is_finite(), "{act} at {v}");
            }
        }
    }
}
