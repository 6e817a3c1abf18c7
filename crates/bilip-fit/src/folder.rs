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
    /// The same of a run of version 0.1.0, where it trained another model.
    before: Option<String>,
}

impl Folder {
    /// `offset_network`: whether the value of the minimum depends on the parameters.
    pub(crate) fn new(
        path: &Path,
        settings: &str,
        table: &Table,
        reversed: bool,
        offset_network: bool,
    ) -> Self {
        let mut hash = crc32fast::Hasher::new();
        hash.update(settings.as_bytes());
        hash.update(&table.fingerprint());
        if reversed {
            // Version 0.1.0 trained such a run on other targets.
            hash.update(b"reversed");
        }
        let before = offset_network.then(|| format!("{:08x}", hash.clone().finalize()));
        if offset_network {
            // Version 0.1.0 trained such a run with one value for all parameters.
            hash.update(b"offset network");
        }
        Folder {
            path: path.to_owned(),
            print: format!("{:08x}", hash.finalize()),
            before,
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
                self.before.as_deref() != Some(known.trim()),
                "{shown}: the interrupted run trains one minimum value for all parameters; go on with --constant-offset, or remove the folder to start again"
            );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_one_minimum_value_is_not_continued_with_many() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.checkpoints");
        let table = Table::new(None, 1, vec![1.0, 2.0]).unwrap();
        let folder = |offset_network| Folder::new(&path, "settings", &table, false, offset_network);
        folder(false).open(false).unwrap();
        let error = folder(true).open(true).unwrap_err().to_string();
        assert!(error.contains("--constant-offset"), "{error}");
        folder(false).open(true).unwrap();
        folder(true).remove();
        folder(true).open(false).unwrap();
        folder(true).open(true).unwrap();
        let error = folder(false).open(true).unwrap_err().to_string();
        assert!(error.contains("other data or settings"), "{error}");
    }
}
