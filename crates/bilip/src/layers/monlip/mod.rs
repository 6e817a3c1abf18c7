//! The monotone and Lipschitz layer: a feed-through network with `μ` and `ν` guaranteed by its
//! weights.
//!
//! In the coordinates that make Theorem 3.1 a statement about two matrices,
//! ```text
//! ẑ_k = σ̂(V_k ẑ_{k−1} + √(2γ) S_k x + b̂_k),   σ̂(v) = Ψσ(Ψ⁻¹v),   y = μx + √(γ/2) Σ S_kᵀ ẑ_k + b_y,
//! ```
//! the layer is μ-strongly monotone and ν-Lipschitz with `ν = μ + γ` if `I − (V+Vᵀ)/2 − SSᵀ ⪰ 0`.

mod evaluate;
mod free;
mod kernel;
mod monotone;

use std::sync::Arc;

use faer::{Mat, MatRef};

pub use free::{MonLipFree, RandomLayer};

use crate::base::bounds::{Bounds, Claimed};
use crate::base::error::{Error, Result, check_finite};
use crate::base::matrix::{check_matrix, to_f64};
use crate::base::parallel::Late;
use crate::base::real::Real;
use crate::base::rounding::MAX_UNITS;
use crate::certify::{self, LayerCertificate, Norms, certify_monlip};
use crate::layers::activation::Activation;
use crate::layers::layer::Layer;

/// A μ-strongly monotone, ν-Lipschitz layer `Rⁿ → Rⁿ` in explicit form.
///
/// Built from free parameters by [`MonLip::from_free`], which rounds the weights so that the bounds
/// hold *exactly* for the numbers stored, or from explicit weights of any origin by
/// [`MonLip::from_explicit`], which proves what bounds they support.
/// [`bounds`](crate::BiLipschitz::bounds) are always proved ones.
#[derive(Clone, Debug)]
pub struct MonLip<T> {
    pub(crate) weights: Arc<MonLipWeights<T>>,
    hidden_bias: Vec<T>,
}

/// Everything but the hidden bias, which partial networks replace row by row.
#[derive(Debug)]
pub(crate) struct MonLipWeights<T> {
    pub(crate) n: usize,
    pub(crate) units: Vec<usize>,
    /// Where each hidden layer starts among all hidden units.
    pub(crate) offsets: Vec<usize>,
    pub(crate) design: Bounds,
    pub(crate) activation: Activation,
    /// `V_2 … V_L`, each `m_k × m_{k−1}`.
    pub(crate) v: Vec<Mat<T>>,
    /// `S`, `m × n`.
    pub(crate) s: Mat<T>,
    pub(crate) psi: Option<Vec<T>>,
    pub(crate) output_bias: Vec<T>,
    certificate: Late<LayerCertificate>,
    norms: Late<Norms>,
    /// See [`MonLip::strong_monotonicity`].
    strong: Late<f64>,
}

/// Explicit weights of a [`MonLip`] layer, as stored in a model file.
#[derive(Clone, Debug)]
pub struct MonLipExplicit<T> {
    /// The (μ, ν) that define `γ = ν − μ` in the layer's formula.
    pub bounds: Bounds,
    /// The activation σ.
    pub activation: Activation,
    /// `V_2 … V_L`, each `m_k × m_{k−1}`; empty for a single hidden layer.
    pub v: Vec<Mat<T>>,
    /// `S`, `m × n`, its row blocks belonging to the hidden layers.
    pub s: Mat<T>,
    /// The scaling ψ of each hidden unit, positive; `None` means one.
    pub psi: Option<Vec<T>>,
    /// Hidden biases b̂, all layers after one another.
    pub hidden_bias: Vec<T>,
    /// Output bias b_y.
    pub output_bias: Vec<T>,
}

/// The three constants of a layer's formula as another program would store them:
/// `ẑ_k = σ̂(V_k ẑ_{k−1} + input·S_k x + b̂_k)`, `y = skip·x + output·Σ S_kᵀ ẑ_k + b_y`.
///
/// In exact arithmetic `skip = μ`, `input = √(2γ)` and `output = √(γ/2)`; rounded they define
/// another function. Where the condition on `V` and `S` holds, that function has the bounds `(skip,
/// skip + input·output)`: with `γ' = input·output` and `c = input/√(2γ')` its hidden part is
/// `H_γ'(cx)/c`, which is as monotone and as Lipschitz as `H_γ'`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormulaConstants<T> {
    /// The factor of x in the output.
    pub skip: T,
    /// The factor of `S x` in front of the activation.
    pub input: T,
    /// The factor of `Sᵀẑ` in the output.
    pub output: T,
}

impl<T: Real> FormulaConstants<T> {
    /// μ up and ν down to numbers that `T` has, so that the bounds of the design hold for these
    /// constants too; to nearest where the two are too close for that.
    fn inside(design: Bounds) -> Self {
        let nearest = |value: f64| T::round_from(value);
        let mut skip = nearest(design.mu());
        if skip.as_f64() < design.mu() {
            skip = skip.next_up();
        }
        let input = nearest((2.0 * design.gap()).sqrt());
        // As near to ν as the roundings of `bounds` and of the constants allow: of ν in f64, of the
        // product in T.
        for steps in [0.0, 1.0, 2.0, 4.0, 8.0] {
            let slack = steps * (f64::EPSILON * design.nu() + T::UNIT_ROUNDOFF * design.gap());
            let output = nearest((design.nu() - skip.as_f64() - slack) / input.as_f64());
            let inside = FormulaConstants { skip, input, output };
            let (mu, nu) = inside.bounds();
            if output > T::zero() && mu >= design.mu() && nu <= design.nu() {
                return inside;
            }
        }
        FormulaConstants {
            skip: nearest(design.mu()),
            input,
            output: nearest((0.5 * design.gap()).sqrt()),
        }
    }

    /// `skip` and `skip + input·output`, the latter rounded up.
    fn bounds(&self) -> (f64, f64) {
        let product = (self.input.as_f64() * self.output.as_f64()).next_up();
        (self.skip.as_f64(), (self.skip.as_f64() + product).next_up())
    }
}

impl<T: Real> MonLipExplicit<T> {
    /// Hidden widths `m_1 … m_L`, after checking that all parts fit together.
    ///
    /// # Errors
    /// On shapes that do not fit, numbers that are not finite, ψ ≤ 0, or ν = μ.
    pub fn check(&self) -> Result<Vec<usize>> {
        let (m, n) = self.s.shape();
        if n == 0 || m == 0 {
            return Err(Error::shape(
                "S",
                "at least one hidden unit and one input",
                format!("{m}×{n}"),
            ));
        }
        if m + n > MAX_UNITS {
            return Err(Error::shape(
                "S",
                format!("at most {MAX_UNITS} rows and columns"),
                m + n,
            ));
        }
        if self.bounds.gap() <= 0.0 {
            return Err(Error::setting(
                "nu",
                self.bounds.nu(),
                format!(
                    "must be larger than mu = {} in a monotone layer",
                    self.bounds.mu()
                ),
            ));
        }
        let mut units = match self.v.first() {
            None => vec![m],
            Some(first) => vec![first.ncols()],
        };
        for (k, v) in self.v.iter().enumerate() {
            let previous = units[k];
            if v.ncols() != previous || v.nrows() == 0 || previous == 0 {
                return Err(Error::shape(
                    format!("V_{}", k + 2),
                    format!("{previous} columns and at least one row"),
                    format!("{}×{}", v.nrows(), v.ncols()),
                ));
            }
            check_matrix(&format!("V_{}", k + 2), v.as_ref())?;
            units.push(v.nrows());
        }
        if units.iter().sum::<usize>() != m {
            return Err(Error::shape(
                "S",
                format!("{} rows", units.iter().sum::<usize>()),
                m,
            ));
        }
        check_matrix("S", self.s.as_ref())?;
        if self.hidden_bias.len() != m {
            return Err(Error::shape("hidden bias", m, self.hidden_bias.len()));
        }
        if self.output_bias.len() != n {
            return Err(Error::shape("output bias", n, self.output_bias.len()));
        }
        check_finite("hidden bias", &self.hidden_bias)?;
        check_finite("output bias", &self.output_bias)?;
        if let Some(psi) = &self.psi {
            if psi.len() != m {
                return Err(Error::shape("psi", m, psi.len()));
            }
            check_psi(psi)?;
        }
        Ok(units)
    }
}

/// Within its range v/ψ and ψσ(v/ψ) lose nothing to underflow that the error bounds do not count.
pub(crate) fn check_psi<T: Real>(psi: &[T]) -> Result<()> {
    check_finite("psi", psi)?;
    match psi.iter().find(|p| !(1e-100..=1e100).contains(&p.as_f64())) {
        Some(bad) => Err(Error::setting(
            "psi",
            bad,
            "every scaling must be positive, between 1e-100 and 1e100",
        )),
        None => Ok(()),
    }
}

impl<T: Real> MonLip<T> {
    /// A layer from explicit weights of any origin; what bounds they support is proved here.
    ///
    /// When the weights satisfy the condition for `explicit.bounds`, those are the layer's bounds.
    /// Otherwise the layer gets the bounds its defect still leaves, see [`LayerCertificate`].
    ///
    /// # Errors
    /// On weights that do not fit together, and when no positive μ can be proved.
    pub fn from_explicit(explicit: MonLipExplicit<T>) -> Result<Self> {
        explicit.check()?;
        let v: Vec<_> = explicit.v.iter().map(|v| to_f64(v.as_ref())).collect();
        let certificate = certify_monlip(&v, to_f64(explicit.s.as_ref()).as_ref(), explicit.bounds);
        certificate.need_positive()?;
        Self::assemble(explicit, Late::of(certificate))
    }

    /// A layer of which nothing is proved yet: that happens when its bounds are first asked for.
    pub(crate) fn unproved(explicit: MonLipExplicit<T>) -> Result<Self> {
        Self::assemble(explicit, Late::empty())
    }

    pub(crate) fn assemble(explicit: MonLipExplicit<T>, certificate: Late<LayerCertificate>) -> Result<Self> {
        let units = explicit.check()?;
        let mut offsets = Vec::with_capacity(units.len());
        let mut at = 0;
        for m in &units {
            offsets.push(at);
            at += m;
        }
        Ok(MonLip {
            hidden_bias: explicit.hidden_bias,
            weights: Arc::new(MonLipWeights {
                n: explicit.s.ncols(),
                units,
                offsets,
                design: explicit.bounds,
                activation: explicit.activation,
                v: explicit.v,
                s: explicit.s,
                // σ̂ = σ for a positively homogeneous σ: Ψ would only cost time and rounding.
                psi: explicit.psi.filter(|_| !explicit.activation.is_homogeneous()),
                output_bias: explicit.output_bias,
                certificate,
                norms: Late::empty(),
                strong: Late::empty(),
            }),
        })
    }

    /// Hidden widths `m_1 … m_L`.
    pub fn units(&self) -> &[usize] {
        &self.weights.units
    }

    /// Number of hidden units `m = Σ m_k`.
    pub fn hidden(&self) -> usize {
        self.weights.s.nrows()
    }

    /// The activation σ.
    pub fn activation(&self) -> Activation {
        self.weights.activation
    }

    /// The (μ, ν) in the layer's formula. The layer's proved [`bounds`](crate::BiLipschitz::bounds)
    /// equal them unless the weights came from elsewhere and fall short.
    pub fn design(&self) -> Bounds {
        self.weights.design
    }

    /// `V_{k}` for `k = 2 … L`, in order.
    pub fn v(&self) -> &[Mat<T>] {
        &self.weights.v
    }

    /// `S`, `m × n`.
    pub fn s(&self) -> MatRef<'_, T> {
        self.weights.s.as_ref()
    }

    /// The scaling ψ of each hidden unit, where there is one.
    pub fn psi(&self) -> Option<&[T]> {
        self.weights.psi.as_deref()
    }

    /// Hidden biases b̂.
    pub fn hidden_bias(&self) -> &[T] {
        &self.hidden_bias
    }

    /// Output bias b_y.
    pub fn output_bias(&self) -> &[T] {
        &self.weights.output_bias
    }

    /// What is proved of the stored weights; the proof is made when it is first asked for.
    pub fn layer_certificate(&self) -> &LayerCertificate {
        self.weights.certificate.get_or_compute(|| self.prove_again())
    }

    /// The same layer with other hidden biases; the weights are shared, not copied.
    ///
    /// # Errors
    /// On a bias of another size or with entries that are not finite.
    pub fn with_hidden_bias(&self, bias: Vec<T>) -> Result<Self> {
        if bias.len() != self.hidden() {
            return Err(Error::shape("hidden bias", self.hidden(), bias.len()));
        }
        check_finite("hidden bias", &bias)?;
        Ok(MonLip {
            weights: self.weights.clone(),
            hidden_bias: bias,
        })
    }

    /// The explicit weights, copied out.
    pub fn to_explicit(&self) -> MonLipExplicit<T> {
        let w = &self.weights;
        MonLipExplicit {
            bounds: w.design,
            activation: w.activation,
            v: w.v.clone(),
            s: w.s.clone(),
            psi: w.psi.clone(),
            hidden_bias: self.hidden_bias.clone(),
            output_bias: w.output_bias.clone(),
        }
    }

    /// The same layer with its stored numbers converted, exactly, to `f64`.
    pub fn to_f64(&self) -> MonLip<f64> {
        let w = &self.weights;
        let wide = |values: &[T]| values.iter().map(|v| v.as_f64()).collect::<Vec<_>>();
        MonLip {
            hidden_bias: wide(&self.hidden_bias),
            weights: Arc::new(MonLipWeights {
                n: w.n,
                units: w.units.clone(),
                offsets: w.offsets.clone(),
                design: w.design,
                activation: w.activation,
                v: w.v.iter().map(|v| to_f64(v.as_ref())).collect(),
                s: to_f64(w.s.as_ref()),
                psi: w.psi.as_deref().map(wide),
                output_bias: wide(&w.output_bias),
                certificate: w.certificate.clone(),
                norms: w.norms.clone(),
                strong: w.strong.clone(),
            }),
        }
    }

    /// Rigorous norms of the stored weights, computed once.
    pub(crate) fn norms(&self) -> &Norms {
        let w = &self.weights;
        w.norms.get_or_compute(|| {
            let v: Vec<_> = w.v.iter().map(|v| to_f64(v.as_ref())).collect();
            Norms::new(&v, to_f64(w.s.as_ref()).as_ref(), &w.units)
        })
    }

    /// The largest `θ` found with `I − (V+Vᵀ)/2 ⪰ θI` proved, within a factor of two; 0 when there
    /// is none above 1e-12. Computed once.
    pub(crate) fn strong_monotonicity(&self) -> f64 {
        let w = &self.weights;
        *w.strong.get_or_compute(|| {
            let v: Vec<_> = w.v.iter().map(|v| to_f64(v.as_ref())).collect();
            certify::strong_monotonicity(&v, &w.units)
        })
    }

    /// The constants of the formula for a program that stores them in this layer's precision.
    pub fn formula_constants(&self) -> FormulaConstants<T> {
        FormulaConstants::inside(self.weights.design)
    }

    /// Bounds of the layer evaluated with [`formula_constants`](Self::formula_constants), if its
    /// condition is proved.
    pub(crate) fn bounds_of_constants(&self) -> (f64, f64) {
        self.formula_constants().bounds()
    }

    /// `√(2γ)` and `√(γ/2)`.
    pub(crate) fn gains(&self) -> (f64, f64) {
        let gamma = self.weights.design.gap();
        ((2.0 * gamma).sqrt(), (0.5 * gamma).sqrt())
    }

    pub(crate) fn claimed(&self) -> Claimed {
        self.weights.design.into()
    }
}
