//! The folder of checkpoints of a run.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bilip::write_file;

use crate::args;
use crate::table::Table;

/// The folder of checkpoints.
pub(super) struct Folder {
    pub path: PathBuf,
    /// What a run must share with the one that it continues.
    print: String,
}

impl Folder {
    pub fn new(args: &args::Fit, table: &Table) -> Self {
        let mut name = args.output.as_os_str().to_owned();
        name.push(".checkpoints");
        Folder {
            path: PathBuf::from(name),
            print: fingerprint(args, table),
        }
    }

    /// Makes the folder, or finds that of the same run interrupted.
    pub fn open(&self, resume: bool) -> Result<()> {
        let shown = self.path.display();
        let file = self.path.join("run");
        if self.path.exists() {
            ensure!(
                resume,
                "{shown}: an interrupted run; go on with --resume, or remove the folder to start anew"
            );
            let known = std::fs::read_to_string(&file).unwrap_or_default();
            ensure!(
                known.trim() == self.print,
                "{shown}: the interrupted run had other data or settings; repeat them, or remove the folder to start anew"
            );
        } else {
            if resume {
                eprintln!("nothing to resume: {shown} is not there; starting anew");
            }
            std::fs::create_dir_all(&self.path).with_context(|| shown.to_string())?;
            write_file(&file, self.print.as_bytes())?;
        }
        Ok(())
    }

    pub fn remove(&self) {
        // What cannot be removed is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A checksum of the data and of all settings that matter to a run.
fn fingerprint(args: &args::Fit, table: &Table) -> String {
    // What must be the same for a run to go on; where it writes its figures need not be.
    let mut settings = format!("{args:?}").replace(&format!("resume: {}", args.resume), "");
    settings = settings.replace(&format!("metrics: {:?}", args.metrics), "");
    let mut hash = crc32fast::Hasher::new();
    hash.update(settings.as_bytes());
    hash.update(&table.fingerprint());
    format!("{:08x}", hash.finalize())
}
