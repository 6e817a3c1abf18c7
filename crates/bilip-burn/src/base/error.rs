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
    /// The loss is no longer a number.
    #[error(
        "the loss is no longer a number in epoch {epoch}, step {step}, at learning rate {rate:.1e}: try a smaller rate or gradient clipping"
    )]
    Diverged {
        /// The epoch, from 1.
        epoch: usize,
        /// The step, from 1.
        step: usize,
        /// The learning rate of that step.
        rate: f64,
    },
    /// A device that cannot be used.
    #[error("device {device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A checkpoint that cannot be written, or does not belong to this model.
    #[error("checkpoint: {reason}")]
    Checkpoint {
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
    /// The frozen network could not be built from the parameters.
    #[error(transparent)]
    Core(#[from] bilip::Error),
}

impl Error {
    pub(crate) fn device(device: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Error::Device {
            device: device.to_string(),
            reason: reason.into(),
        }
    }

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
