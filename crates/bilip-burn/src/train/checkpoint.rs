//! Checkpoints: what a run needs to go on as if it had never stopped.
//!
//! A checkpoint is a safetensors file: the tensors `model` and `optimizer` hold Burn's records as
//! bytes, the metadata the state of the run as JSON and a checksum. It is written to a temporary
//! name and renamed; the last two are kept, so that a damaged one never costs more than one
//! interval.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::backend::Backend;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Serialize, de::DeserializeOwned};

use crate::base::{Error, Result};

/// What checkpoints of version 0.1 start with: then a checksum, and three parts behind their
/// lengths.
const VERSION_0_1: &[u8; 8] = b"BILIPCK1";

/// The format of the files, with its version.
const FORMAT: &str = "bilip-checkpoint-2";

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
            // `.checkpoint` is what version 0.1 wrote.
            if name.starts_with("epoch-") && (name.ends_with(".safetensors") || name.ends_with(".checkpoint"))
            {
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
        let state = serde_json::to_string(state).map_err(|e| fail(&e))?;
        let records = [
            ("model", recorder().record(model, ()).map_err(|e| fail(&e))?),
            (
                "optimizer",
                recorder().record(optimizer, ()).map_err(|e| fail(&e))?,
            ),
        ];
        let sum = checksum(&state, records.iter().map(|(_, bytes)| bytes.as_slice()));
        let metadata = HashMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("state".to_string(), state),
            ("crc32".to_string(), sum.to_string()),
        ]);
        let mut views = Vec::new();
        for (name, bytes) in &records {
            let view = TensorView::new(Dtype::U8, vec![bytes.len()], bytes).map_err(|e| fail(&e))?;
            views.push((*name, view));
        }
        let bytes = safetensors::serialize(views, Some(metadata)).map_err(|e| fail(&e))?;
        let path = self.folder.join(format!("epoch-{epoch:09}.safetensors"));
        bilip::write_file(&path, &bytes)?;
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
    if let Some(rest) = bytes.strip_prefix(VERSION_0_1) {
        return parse_version_0_1(rest);
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|e| format!("not a checkpoint ({e})"))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
    let metadata = header.metadata().as_ref().ok_or("not a checkpoint")?;
    let entry = |key: &str| metadata.get(key).ok_or(format!("{key} is missing"));
    if entry("format")? != FORMAT {
        return Err("not a checkpoint, or one of a later version".into());
    }
    let record = |name: &str| {
        let view = file.tensor(name).map_err(|e| e.to_string())?;
        Ok::<_, String>(view.data().to_vec())
    };
    let (state, model, optimizer) = (entry("state")?, record("model")?, record("optimizer")?);
    if entry("crc32")? != &checksum(state, [&model[..], &optimizer[..]].into_iter()).to_string() {
        return Err("damaged (the checksum does not match)".into());
    }
    Ok(Loaded {
        state: serde_json::from_str(state).map_err(|e| e.to_string())?,
        model,
        optimizer,
    })
}

fn checksum<'a>(state: &str, records: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(state.as_bytes());
    records.for_each(|bytes| hasher.update(bytes));
    hasher.finalize()
}

fn parse_version_0_1<S: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<Loaded<S>, String> {
    let (sum, body) = bytes.split_first_chunk::<4>().ok_or("cut short")?;
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
