//! PLNet: `f(x) = ½‖G(x) − g‖² + c`, a function with exactly one minimum, which can be computed.

use crate::base::error::{Error, Result, check_batch, check_finite};
use crate::base::real::Real;
use crate::certify::{Certificate, Proved};
use crate::layers::layer::Direction;
use crate::networks::bilipnet::BiLipNet;
use crate::networks::map::{BiLipschitz, stack};

/// A Polyak–Łojasiewicz network `f(x) = ½Σ Gᵢ(x)² + c`, or `½‖G(x) − G(x₀)‖² + c` when the
/// minimizer x₀ is known.
///
/// `½‖∇f‖² ≥ μ²(f − min f)` for all x, so every stationary point is the global minimum; `min f =
/// c`, `f(x) − c = ½‖G(x) − g‖²`, and `‖x − x*‖ ≤ ‖G(x) − g‖/μ`.
#[derive(Clone, Debug)]
pub struct PlNet<T> {
    net: BiLipNet<T>,
    offset: f64,
    minimizer: Option<Vec<T>>,
    /// `G(x₀)` for a known minimizer x₀, else zero.
    center: Vec<T>,
}

impl<T: Real> PlNet<T> {
    /// `½‖G(x)‖² + offset`.
    ///
    /// # Errors
    /// When the offset is not finite.
    pub fn new(net: BiLipNet<T>, offset: f64) -> Result<Self> {
        check_finite("offset", &[offset])?;
        let center = vec![T::zero(); net.dim()];
        Ok(PlNet {
            net,
            offset,
            minimizer: None,
            center,
        })
    }

    /// `½‖G(x) − G(minimizer)‖² + offset`: the minimum is where it is known to be.
    ///
    /// # Errors
    /// When the minimizer has another dimension or a number is not finite.
    pub fn with_minimizer(net: BiLipNet<T>, offset: f64, minimizer: Vec<T>) -> Result<Self> {
        if minimizer.len() != net.dim() {
            return Err(Error::shape("minimizer", net.dim(), minimizer.len()));
        }
        check_finite("offset", &[offset])?;
        let center = net.forward(&minimizer)?;
        Ok(PlNet {
            net,
            offset,
            minimizer: Some(minimizer),
            center,
        })
    }

    /// The network G.
    pub fn net(&self) -> &BiLipNet<T> {
        &self.net
    }

    /// The offset c, which is the minimum of f.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// The known minimizer, where there is one.
    pub fn minimizer(&self) -> Option<&[T]> {
        self.minimizer.as_deref()
    }

    /// The dimension n of x.
    pub fn dim(&self) -> usize {
        self.net.dim()
    }

    /// Proved bounds of G.
    pub fn bounds(&self) -> Proved {
        self.net.bounds()
    }

    /// What has been proved, with the PL constant `μ²`.
    pub fn certificate(&self) -> Certificate {
        self.net.certificate().with_pl_constant()
    }

    /// As [`certificate`](Self::certificate), proved again.
    pub fn verify(&self) -> Certificate {
        self.net.verify().with_pl_constant()
    }

    /// f at every row of `x`, `[batch, n] → [batch]`.
    ///
    /// # Errors
    /// On a batch whose size is no multiple of n or that holds NaN or infinity.
    pub fn value(&self, x: &[T]) -> Result<Vec<T>> {
        potential(&self.net.forward(x)?, &self.center, self.offset)
    }

    /// ∇f = Jᵀ(G − g) at every row of `x`, `[batch, n] → [batch, n]`.
    ///
    /// # Errors
    /// As for [`value`](Self::value).
    pub fn gradient(&self, x: &[T]) -> Result<Vec<T>> {
        check_batch("x", x, self.dim())?;
        let cotangent = residual(&self.net.forward(x)?, &self.center);
        stack(&self.net).product(x, &cotangent, Direction::Reverse)
    }
}

/// `½‖G − g‖² + c` row by row.
pub(crate) fn potential<T: Real>(g: &[T], center: &[T], offset: f64) -> Result<Vec<T>> {
    let half = T::round_from(0.5);
    let offset = T::round_from(offset);
    let values: Vec<T> = g
        .chunks_exact(center.len())
        .map(|row| {
            let sum: T = row.iter().zip(center).map(|(a, b)| (*a - *b) * (*a - *b)).sum();
            half * sum + offset
        })
        .collect();
    check_finite("result (numbers out of range)", &values)?;
    Ok(values)
}

/// `G − g` row by row.
pub(crate) fn residual<T: Real>(g: &[T], center: &[T]) -> Vec<T> {
    g.chunks_exact(center.len())
        .flat_map(|row| row.iter().zip(center).map(|(a, b)| *a - *b))
        .collect()
}
