//! Tables from files.

use std::io::Read;
use std::path::Path;

use super::{Table, delimited, gzip, npy};
use crate::error::{Error, Result, bail, ensure};

/// What a Parquet file begins with.
const PARQUET: &[u8] = b"PAR1";

/// Files that are known and not read: what they begin with, what they are, and what to do.
const NOT_READ: [(&[u8], &str, &str); 7] = [
    (
        b"PK\x03\x04",
        "a zip archive (.xlsx and .npz files are, too)",
        "save the table as .csv or .npy",
    ),
    (b"\xd0\xcf\x11\xe0", "an old Excel file", "save the table as .csv"),
    (
        b"\x28\xb5\x2f\xfd",
        "compressed with zstd",
        "unpack it, or use gzip",
    ),
    (b"BZh", "compressed with bzip2", "unpack it, or use gzip"),
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it, or use gzip"),
    (b"\x89HDF", "an HDF5 file", "convert it to .csv or .npy"),
    (b"ARROW1", "a Feather file", "convert it to .csv or .npy"),
];

/// The end of a file's name, without that of its compression.
fn extension(path: &Path) -> String {
    let of = |path: &Path| {
        path.extension()
            .map_or(String::new(), |e| e.to_string_lossy().to_lowercase())
    };
    match of(path).as_str() {
        "gz" => of(&path.with_extension("")),
        other => other.to_string(),
    }
}

impl Table {
    /// Reads a table from a file: CSV, NumPy or Parquet, compressed by gzip or not.
    ///
    /// # Errors
    /// When the file cannot be read or is no table.
    pub fn read(path: impl AsRef<Path>) -> Result<Table> {
        let path = path.as_ref();
        let source = path.display().to_string();
        let io = |error| Error::Io {
            path: source.clone(),
            source: error,
        };
        let mut file = std::fs::File::open(path).map_err(io)?;
        ensure!(
            !file.metadata().map_err(io)?.is_dir(),
            "{source}: is a folder, not a table"
        );
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let bytes = unpacked(bytes, &source)?;
        // A name that promises what the file is not says more of what went wrong than its bytes.
        for (end, start, what) in [("npy", npy::MAGIC, "NumPy"), ("parquet", PARQUET, "Parquet")] {
            ensure!(
                extension(path) != end || bytes.is_empty() || bytes.starts_with(start),
                "{source}: not a {what} file, whatever its name says"
            );
        }
        from_contents(&bytes, &source)
    }

    /// Reads the contents of a file that [`Table::read`] reads; `source` is what messages call it.
    ///
    /// # Errors
    /// When it is no table.
    pub fn from_bytes(bytes: &[u8], source: &str) -> Result<Table> {
        match bytes.starts_with(gzip::MAGIC) {
            true => from_contents(&gzip::unpacked(bytes, source, gzip::MOST_BYTES)?, source),
            false => from_contents(bytes, source),
        }
    }
}

fn unpacked(bytes: Vec<u8>, source: &str) -> Result<Vec<u8>> {
    match bytes.starts_with(gzip::MAGIC) {
        true => gzip::unpacked(&bytes, source, gzip::MOST_BYTES),
        false => Ok(bytes),
    }
}

fn from_contents(bytes: &[u8], source: &str) -> Result<Table> {
    ensure!(!bytes.is_empty(), "{source}: the file is empty");
    if let Some((_, what, advice)) = NOT_READ.iter().find(|(start, ..)| bytes.starts_with(start)) {
        bail!("{source}: is {what}; {advice}");
    }
    if bytes.starts_with(npy::MAGIC) {
        return npy::read(bytes, source.to_string());
    }
    #[cfg(feature = "parquet")]
    if bytes.starts_with(PARQUET) {
        return super::parquet::read(bytes, source.to_string());
    }
    ensure!(
        !bytes.starts_with(PARQUET),
        "{source}: Parquet files are read by programs built with --features parquet; convert it to .csv or .npy"
    );
    delimited::read(bytes, source.to_string())
}
