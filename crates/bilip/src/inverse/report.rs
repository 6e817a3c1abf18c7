//! The answer of an inverse, and how each row of it went.

use serde::{Deserialize, Serialize};

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The certified error is within the tolerance.
    Converged,
    /// The iteration limit came first; the bound says how far it got.
    MaxIterations,
    /// The error cannot be certified any smaller in f64: it is dominated by rounding. The bound is
    /// still valid.
    PrecisionLimit,
    /// No progress: Newton's line search found no smaller residual, or a step size outside its
    /// range made the iteration grow. The bound is still valid.
    Stalled,
    /// The numbers of this row leave the range of f64 on the way: there is no answer, x is NaN and
    /// the bound infinite.
    OutOfRange,
}

impl Status {
    /// The name as in JSON: `converged`, `max_iterations`, `precision_limit`, `stalled` or
    /// `out_of_range`.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Converged => "converged",
            Status::MaxIterations => "max_iterations",
            Status::PrecisionLimit => "precision_limit",
            Status::Stalled => "stalled",
            Status::OutOfRange => "out_of_range",
        }
    }
}

/// One recorded iteration of one row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracePoint {
    /// Index of the layer being inverted.
    pub layer: usize,
    /// Iterations done in that layer.
    pub iteration: usize,
    /// `‖F(x̂) − y‖/μ` of that layer: a bound on the error of the layer's own input, rounding not
    /// included.
    #[serde(with = "crate::base::decimal::json")]
    pub error: f64,
}

/// How one row of an inverse went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowReport {
    /// How it ended.
    pub status: Status,
    /// Iterations, summed over the layers.
    pub iterations: usize,
    /// `‖G(x̂) − y‖` as computed.
    #[serde(with = "crate::base::decimal::json")]
    pub residual: f64,
    /// A proved bound on `‖G(x̂) − y‖`, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub residual_bound: f64,
    /// A proved bound on `‖x̂ − G⁻¹(y)‖`, rounding included.
    #[serde(with = "crate::base::decimal::json")]
    pub error_bound: f64,
    /// Error against iteration, where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<TracePoint>,
}

/// The answer of an inverse: x for every row, and how each row went.
#[derive(Clone, Debug)]
pub struct Inverse {
    /// x, `[batch, n]`.
    pub x: Vec<f64>,
    /// One report a row.
    pub rows: Vec<RowReport>,
}

impl Inverse {
    /// Whether every row reached the tolerance.
    pub fn converged(&self) -> bool {
        self.rows.iter().all(|row| row.status == Status::Converged)
    }

    /// The largest error bound of any row; 0 for an empty batch.
    pub fn max_error_bound(&self) -> f64 {
        self.rows.iter().map(|row| row.error_bound).fold(0.0, f64::max)
    }

    /// The largest number of iterations any row took; 0 for an empty batch.
    pub fn max_iterations(&self) -> usize {
        self.rows.iter().map(|row| row.iterations).max().unwrap_or(0)
    }
}

impl RowReport {
    pub(super) fn out_of_range() -> Self {
        RowReport {
            status: Status::OutOfRange,
            iterations: 0,
            residual: f64::INFINITY,
            residual_bound: f64::INFINITY,
            error_bound: f64::INFINITY,
            trace: Vec::new(),
        }
    }
}
