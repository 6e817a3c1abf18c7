//! Everything that can be wrong with a table or with what is asked of it.

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting out of its range, or one that does not go with the others.
    #[error("{name}{}: {reason}", value.as_ref().map(|v| format!(" = {v}")).unwrap_or_default())]
    Setting {
        /// The field of [`FitSettings`](crate::FitSettings).
        name: &'static str,
        /// Its value, where that says something.
        value: Option<String>,
        /// The rule that it breaks.
        reason: String,
    },
    /// A table that cannot be read or fitted.
    #[error("{0}")]
    Data(String),
    /// From the certified networks.
    #[error(transparent)]
    Network(#[from] bilip::Error),
    /// From training.
    #[error(transparent)]
    Training(#[from] bilip_burn::Error),
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
    pub(crate) fn setting(name: &'static str, reason: impl Into<String>) -> Self {
        Error::Setting {
            name,
            value: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn value(name: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Error::Setting {
            name,
            value: Some(value.to_string()),
            reason: reason.into(),
        }
    }

    /// The same error as one of a setting: of the columns that it names.
    pub(crate) fn of_setting(self, name: &'static str) -> Self {
        match self {
            Error::Data(reason) => Error::setting(name, reason),
            other => other,
        }
    }
}

/// Fails with [`Error::Data`] unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::error::Error::Data(format!($($text)+)));
        }
    };
}

/// Fails with [`Error::Data`].
macro_rules! bail {
    ($($text:tt)+) => {
        return Err($crate::error::Error::Data(format!($($text)+)))
    };
}

pub(crate) use {bail, ensure};
