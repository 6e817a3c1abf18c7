//! Checkpoints: what a run needs to go on as if it had never stopped.
//!
//! A file holds a magic number, a checksum, a JSON header and the records of model and optimizer. It is written to a
//! temporary name and renamed; the last two are kept, so that a damaged one never costs more than one interval.

use std::io::Write;
use std::path::{Path, PathBuf};

use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"BILIPCK1";

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    folder: PathBuf,
}

/// What a checkpoint file holds.
pub(crate) struct Loaded<S> {
    pub(crate) state: S,
    model: Vec<u8>,
    optimizer: Vec<u8>,
}

impl<S> Loaded<S> {
    pub(crate) fn model<R: Record<B>, B: Backend>(&mut self, device: &B::Device) -> Result<R> {
        read(std::mem::take(&mut self.model), device)
    }

    pub(crate) fn optimizer<R: Record<B>, B: Backend>(&mut self, device: &B::Device) -> Result<R> {
        read(std::mem::take(&mut self.optimizer), device)
    }
}

fn recorder() -> BinBytesRecorder<FullPrecisionSettings, Vec<u8>> {
    BinBytesRecorder::default()
}

fn read<R: Record<B>, B: Backend>(bytes: Vec<u8>, device: &B::Device) -> Result<R> {
    recorder().load(bytes, device).map_err(|e| Error::Checkpoint {
        reason: format!("a record cannot be read: {e}"),
    })
}

impl Checkpoints {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let io = |source| Error::Io {
            path: folder.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(io)?;
        Ok(Checkpoints {
            folder: folder.to_owned(),
        })
    }

    /// Checkpoint files, oldest first.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let io = |source| Error::Io {
            path: self.folder.display().to_string(),
            source,
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name = path
                .file_name()
                .map_or(String::new(), |n| n.to_string_lossy().into_owned());
            if name.starts_with("epoch-") && name.ends_with(".checkpoint") {
                files.push(path);
            }
        }
        // Numbers are padded, so the order of names is the order of epochs.
        files.sort();
        Ok(files)
    }

    pub(crate) fn save<S: Serialize, B: Backend>(
        &self,
        epoch: usize,
        state: &S,
        model: impl Record<B>,
        optimizer: impl Record<B>,
    ) -> Result<()> {
        let fail = |e: &dyn std::fmt::Display| Error::Checkpoint {
            reason: format!("cannot be written: {e}"),
        };
        let header = serde_json::to_vec(state).map_err(|e| fail(&e))?;
        let model = recorder().record(model, ()).map_err(|e| fail(&e))?;
        let optimizer = recorder().record(optimizer, ()).map_err(|e| fail(&e))?;
        let mut body = Vec::with_capacity(header.len() + model.len() + optimizer.len() + 24);
        for part in [&header, &model, &optimizer] {
            body.extend((part.len() as u64).to_le_bytes());
            body.extend(part);
        }
        let path = self.folder.join(format!("epoch-{epoch:09}.checkpoint"));
        let io = |source| Error::Io {
            path: path.display().to_string(),
            source,
        };
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(io)?;
        file.write_all(MAGIC).map_err(io)?;
        file.write_all(&crc32fast::hash(&body).to_le_bytes())
            .map_err(io)?;
        file.write_all(&body).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        file.persist(&path).map_err(|e| io(e.error))?;
        let files = self.files()?;
        for old in &files[..files.len().saturating_sub(2)] {
            // A file that cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(old);
        }
        Ok(())
    }

    /// The newest checkpoint that is whole, and a warning for each newer one that is not.
    pub(crate) fn newest<S: DeserializeOwned>(&self) -> Result<(Option<Loaded<S>>, Vec<String>)> {
        let mut warnings = Vec::new();
        for path in self.files()?.into_iter().rev() {
            match parse(&path) {
                Ok(loaded) => return Ok((Some(loaded), warnings)),
                Err(reason) => warnings.push(format!(
                    "{}: {reason}; falling back to the one before it",
                    path.display()
                )),
            }
        }
        Ok((None, warnings))
    }
}

fn parse<S: DeserializeOwned>(path: &Path) -> std::result::Result<Loaded<S>, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let body = bytes.strip_prefix(MAGIC).ok_or("not a checkpoint")?;
    let (sum, body) = body.split_first_chunk::<4>().ok_or("cut short")?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err("damaged (the checksum does not match)".into());
    }
    let mut rest = body;
    let mut part = || -> std::result::Result<&[u8], String> {
        let (length, tail) = rest.split_first_chunk::<8>().ok_or("cut short")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|e| e.to_string())?;
        let (part, tail) = tail.split_at_checked(length).ok_or("cut short")?;
        rest = tail;
        Ok(part)
    };
    let state = serde_json::from_slice(part()?).map_err(|e| e.to_string())?;
    Ok(Loaded {
        state,
        model: part()?.to_vec(),
        optimizer: part()?.to_vec(),
    })
}
