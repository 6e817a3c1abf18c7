//! What can be wrong with a configuration or with trained parameters.

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong, and the facts needed to put it right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// The frozen network could not be built from the parameters.
    #[error(transparent)]
    Core(#[from] bilip::Error),
}

impl Error {
    pub(crate) fn setting(
        name: &'static str,
        value: impl std::fmt::Debug,
        reason: impl Into<String>,
    ) -> Self {
        Error::InvalidSetting {
            name,
            value: format!("{value:?}"),
            reason: reason.into(),
        }
    }
}
