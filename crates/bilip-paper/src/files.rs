//! Files of an experiment: written atomically.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |source| Error::Io {
        path: path.display().to_string(),
        source,
    }
}

/// Writes a file beside its place and moves it there; the folder is made where it is missing.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    Ok(bilip::write_file(path, bytes)?)
}

pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(io(path))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::config(path.display().to_string(), e.to_string()))?;
    write(path, (text + "\n").as_bytes())
}

/// As [`write_json`], on one line: for what only programs read.
pub(crate) fn write_json_line(path: &Path, value: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string(value).map_err(|e| Error::config(path.display().to_string(), e.to_string()))?;
    write(path, (text + "\n").as_bytes())
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read(path)?).map_err(|e| Error::config(path.display().to_string(), e.to_string()))
}

/// Writes a figure as `NAME.svg`.
pub(crate) fn write_figure(folder: &Path, name: &str, figure: &bilip_plot::Figure) -> Result<()> {
    write(&folder.join(format!("{name}.svg")), figure.svg().as_bytes())
}
