//! What can go wrong with an experiment.

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be used.
    #[error("{what}: {reason}")]
    Config {
        /// The file or setting.
        what: String,
        /// The rule it breaks.
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
    /// Training failed.
    #[error(transparent)]
    Burn(#[from] bilip_burn::Error),
    /// A certified network could not be built or used.
    #[error(transparent)]
    Core(#[from] bilip::Error),
}

impl Error {
    pub(crate) fn config(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Config {
            what: what.into(),
            reason: reason.into(),
        }
    }
}
