//! The figures of every epoch, in memory and in files.

use std::path::Path;

use bilip::Bounds;
use serde::{Deserialize, Serialize};

use crate::base::{Error, Result};

/// One epoch of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Mean training loss over its batches, as seen while stepping.
    pub train_loss: f64,
    /// Loss on the validation table after it.
    pub validation_loss: Option<f64>,
    /// Learning rate of its last step.
    pub rate: f64,
    /// The bounds after it.
    pub bounds: Option<Bounds>,
}

/// The history as a CSV table.
pub(super) fn csv(history: &[Epoch]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fail = |e: &dyn std::fmt::Display| Error::Io {
        path: "history".into(),
        source: std::io::Error::other(e.to_string()),
    };
    let header = ["epoch", "train_loss", "validation_loss", "rate", "mu", "nu"];
    writer.write_record(header).map_err(|e| fail(&e))?;
    for e in history {
        let number = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        let row = [
            e.epoch.to_string(),
            e.train_loss.to_string(),
            number(e.validation_loss),
            e.rate.to_string(),
            number(e.bounds.map(|b| b.mu())),
            number(e.bounds.map(|b| b.nu())),
        ];
        writer.write_record(row).map_err(|e| fail(&e))?;
    }
    let bytes = writer.into_inner().map_err(|e| fail(&e))?;
    String::from_utf8(bytes).map_err(|e| fail(&e))
}

/// Writes the history so that there is always a whole one.
pub(super) fn write(path: &Path, history: &[Epoch]) -> Result<()> {
    let text = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
        serde_json::to_string_pretty(history).map_err(|e| Error::Io {
            path: path.display().to_string(),
            source: e.into(),
        })? + "\n"
    } else {
        csv(history)?
    };
    Ok(bilip::write_file(path, text.as_bytes())?)
}
