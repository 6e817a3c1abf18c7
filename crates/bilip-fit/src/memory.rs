//! Runs of a search that are done, in the folder of checkpoints: an interrupted search goes on with
//! what it had.

use std::path::PathBuf;

use bilip::{Model, write_file};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::folder::Folder;
use crate::work::Fitted;

/// What a run came to: its model, none where training diverged, and its errors row by row.
pub(crate) type Outcome = (Option<Fitted>, Vec<f64>);

/// A run as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Which run it is.
    key: String,
    /// Errors row by row; none where training diverged.
    parts: Option<Vec<f64>>,
    parameters: usize,
    epochs: usize,
    train_loss: Option<f64>,
    validation_loss: Option<f64>,
}

/// The runs that are done.
pub(crate) struct Memory<'a> {
    folder: Option<&'a Folder>,
}

impl<'a> Memory<'a> {
    /// Of a folder, which is made, or is that of the same search interrupted.
    pub fn new(folder: Option<&'a Folder>, resume: bool) -> Result<Self> {
        if let Some(folder) = folder {
            folder.open(resume)?;
        }
        Ok(Memory { folder })
    }

    fn path(&self, key: &str, extension: &str) -> Option<PathBuf> {
        let name = format!("run-{:08x}.{extension}", crc32fast::hash(key.as_bytes()));
        Some(self.folder?.path.join(name))
    }

    /// What a run came to, if it is done; with its model where that is asked for.
    pub fn recall(&self, key: &str, with_model: bool) -> Option<Outcome> {
        let text = std::fs::read_to_string(self.path(key, "json")?).ok()?;
        let stored: Stored = serde_json::from_str(&text)
            .ok()
            .filter(|s: &Stored| s.key == key)?;
        let Some(parts) = stored.parts else {
            return Some((None, vec![f64::INFINITY]));
        };
        if !with_model {
            return Some((None, parts));
        }
        let model = Model::load(self.path(key, "safetensors")?).ok()?;
        let fitted = Fitted {
            model,
            parameters: stored.parameters,
            epochs: stored.epochs,
            stopped_early: false,
            train_loss: stored.train_loss.unwrap_or(f64::NAN),
            validation_loss: stored.validation_loss,
            warnings: Vec::new(),
            resumed_from: None,
        };
        Some((Some(fitted), parts))
    }

    /// Stores what a run came to, with its model where that is asked for.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn keep(&self, key: &str, (fitted, parts): &Outcome, with_model: bool) -> Result<()> {
        let (Some(path), Some(model_path)) = (self.path(key, "json"), self.path(key, "safetensors")) else {
            return Ok(());
        };
        let fitted = fitted.as_ref();
        if let Some(fitted) = fitted.filter(|_| with_model) {
            fitted.model.save(model_path)?;
        }
        let stored = Stored {
            key: key.to_string(),
            parts: Some(parts.clone()).filter(|parts| parts.iter().all(|p| p.is_finite())),
            parameters: fitted.map_or(0, |f| f.parameters),
            epochs: fitted.map_or(0, |f| f.epochs),
            train_loss: fitted.map(|f| f.train_loss).filter(|l| l.is_finite()),
            validation_loss: fitted.and_then(|f| f.validation_loss),
        };
        let text = serde_json::to_string(&stored).map_err(|e| crate::Error::Data(e.to_string()))?;
        Ok(write_file(path, text.as_bytes())?)
    }
}
