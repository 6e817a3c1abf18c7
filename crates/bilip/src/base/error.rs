//! Everything that can be wrong with what a caller passes in.

use super::bounds::Claimed;
use super::decimal::{at_least, at_most};
use super::real::Real;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong, where, and the facts needed to put it right.
///
/// Not converging is never an error: solvers report it as a [`Status`](crate::Status) with its
/// numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A vector, batch or matrix has the wrong size.
    #[error("{what}: expected {expected}, found {found}")]
    ShapeMismatch {
        /// The argument or tensor concerned.
        what: String,
        /// The size that would fit.
        expected: String,
        /// The size that was given.
        found: String,
    },
    /// NaN or infinity where a finite number is needed.
    #[error("{what}: entry {index} is not a finite number")]
    NonFinite {
        /// The argument or tensor concerned.
        what: String,
        /// Index of the first offending entry, in storage order.
        index: usize,
    },
    /// A setting outside its range.
    #[error("{name} = {value}: {reason}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The rule it breaks.
        reason: String,
    },
    /// An activation whose slope leaves [0, 1], or one that does not exist.
    #[error("activation '{name}' cannot be used: {reason}")]
    Activation {
        /// The name asked for.
        name: String,
        /// Why it is refused.
        reason: String,
    },
    /// Some bounds are proved, but not those that are claimed.
    #[error("the bounds that it claims, mu = {} and nu = {}, are not proved for its weights; proved are mu >= {} and nu <= {}",
        claimed.mu(), claimed.nu(), at_least(*proved_mu, 6), at_most(*proved_nu, 6))]
    ClaimNotProved {
        /// What is claimed.
        claimed: Claimed,
        /// The μ that is proved.
        proved_mu: f64,
        /// The ν that is proved.
        proved_nu: f64,
    },
    /// No (μ, ν) could be proved for the weights.
    #[error("{what}: no bi-Lipschitz bound can be proved: {reason}")]
    NotCertifiable {
        /// The layer concerned.
        what: String,
        /// What the proof ran into.
        reason: String,
    },
    /// A model file that is damaged, hostile, or of another kind or version.
    #[error("model file: {reason}")]
    ModelFile {
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused to read or write.
    #[error("{path}: {source}")]
    Io {
        /// The file concerned.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn shape(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Error::ShapeMismatch {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(crate) fn setting(name: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Error::InvalidSetting {
            name,
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    pub(crate) fn file(reason: impl Into<String>) -> Self {
        Error::ModelFile {
            reason: reason.into(),
        }
    }
}

/// Fails on the first NaN or infinity in `values`.
pub(crate) fn check_finite<T: Real>(what: &str, values: &[T]) -> Result<()> {
    match values.iter().position(|v| !num_traits::Float::is_finite(*v)) {
        None => Ok(()),
        Some(index) => Err(Error::NonFinite {
            what: what.to_string(),
            index,
        }),
    }
}

/// Number of rows of a row-major batch with `n` columns, all entries finite.
pub(crate) fn check_batch<T: Real>(what: &str, values: &[T], n: usize) -> Result<usize> {
    if !values.len().is_multiple_of(n) {
        return Err(Error::shape(
            what,
            format!("a multiple of {n} numbers (rows of {n})"),
            values.len(),
        ));
    }
    check_finite(what, values)?;
    Ok(values.len() / n)
}

/// Checks the size of a second batch that goes with the first, all entries finite.
pub(crate) fn check_rows<T: Real>(what: &str, values: &[T], rows: usize, n: usize) -> Result<()> {
    if values.len() != rows * n {
        return Err(Error::shape(
            what,
            format!("{rows} rows of {n}"),
            format!("{} numbers", values.len()),
        ));
    }
    check_finite(what, values)
}
