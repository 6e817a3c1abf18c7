//! The folder of checkpoints of a run.

use std::path::{Path, PathBuf};

use bilip::write_file;

use crate::error::{Error, Result, ensure};
use crate::table::Table;

/// The folder of checkpoints.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// What a run must share with the one that it continues.
    print: String,
}

impl Folder {
    pub(crate) fn new(path: &Path, settings: &str, table: &Table, reversed: bool) -> Self {
        let mut hash = crc32fast::Hasher::new();
        hash.update(settings.as_bytes());
        hash.update(&table.fingerprint());
        if reversed {
            // Version 0.1.0 trained such a run on other targets.
            hash.update(b"reversed");
        }
        Folder {
            path: path.to_owned(),
            print: format!("{:08x}", hash.finalize()),
        }
    }

    /// Makes the folder, or finds that of the same run interrupted.
    pub(crate) fn open(&self, resume: bool) -> Result<()> {
        let shown = self.path.display();
        let file = self.path.join("run");
        if self.path.exists() {
            ensure!(
                resume,
                "{shown}: an interrupted run; go on with --resume, or remove the folder to start again"
            );
            let known = std::fs::read_to_string(&file).unwrap_or_default();
            ensure!(
                known.trim() == self.print,
                "{shown}: the interrupted run had other data or settings; repeat them, or remove the folder to start again"
            );
            return Ok(());
        }
        std::fs::create_dir_all(&self.path).map_err(|source| Error::Io {
            path: shown.to_string(),
            source,
        })?;
        Ok(write_file(&file, self.print.as_bytes())?)
    }

    pub(crate) fn remove(&self) {
        // What cannot be removed is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
