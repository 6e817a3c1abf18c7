//! Tables in and out: files and standard streams.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bilip::write_file;
use bilip_fit::Table;

use crate::text::{print, shown};

/// Reads a table and says what is to be known of how it was read; `-` is standard input.
pub fn read(path: &Path) -> Result<Table> {
    let table = match is_stream(path) {
        false => Table::read(path)?,
        true => {
            let mut bytes = Vec::new();
            std::io::stdin()
                .lock()
                .read_to_end(&mut bytes)
                .context("standard input")?;
            Table::from_bytes(&bytes, "standard input")?
        }
    };
    for note in table.notes() {
        eprintln!("warning: {}", shown(note));
    }
    Ok(table)
}

/// Whether a path stands for standard input, or as an output for standard output.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Whether an output goes to standard output, under whatever name.
fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]
        .iter()
        .any(|name| path == Path::new(name))
}

/// Writes text to a file or to standard output.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    match is_stdout(path) {
        true => print(text),
        false => Ok(write_file(path, text.as_bytes())?),
    }
}

fn extension(path: &Path) -> String {
    path.extension()
        .map_or(String::new(), |e| e.to_string_lossy().to_lowercase())
}

/// A table to be written, and how.
pub struct Output<'a> {
    pub names: &'a [String],
    pub values: &'a [f64],
    /// Whether the numbers are single precision, and shown as such.
    pub single: bool,
    /// A column of words before them, where words can be written.
    pub words: Option<(&'a str, &'a [String])>,
    /// Columns of their own behind them.
    pub more: Vec<(String, Column)>,
}

/// A column behind the numbers.
pub enum Column {
    Numbers(Vec<f64>),
    /// Words, and the numbers that stand for them where there are only numbers.
    Words(Vec<(&'static str, f64)>),
}

impl Column {
    fn number(&self, row: usize) -> f64 {
        match self {
            Column::Numbers(values) => values[row],
            Column::Words(values) => values[row].1,
        }
    }

    fn text(&self, row: usize) -> String {
        match self {
            Column::Numbers(values) => values[row].to_string(),
            Column::Words(values) => values[row].0.to_string(),
        }
    }
}

impl Output<'_> {
    fn csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = (self.words.iter().map(|(name, _)| *name))
            .chain(self.names.iter().map(String::as_str))
            .chain(self.more.iter().map(|(name, _)| name.as_str()));
        writer.write_record(header)?;
        for (r, row) in self.values.chunks_exact(self.names.len().max(1)).enumerate() {
            if let Some((_, words)) = self.words {
                writer.write_field(&words[r])?;
            }
            for value in row {
                match self.single {
                    true => writer.write_field((*value as f32).to_string())?,
                    false => writer.write_field(value.to_string())?,
                }
            }
            for (_, column) in &self.more {
                writer.write_field(column.text(r))?;
            }
            writer.write_record(None::<&[u8]>)?;
        }
        Ok(writer.into_inner()?)
    }

    fn npy(&self) -> Result<Vec<u8>> {
        let columns = self.names.len();
        let rows = self.values.len() / columns.max(1);
        let mut bytes = Vec::new();
        let shape = [rows as u64, (columns + self.more.len()) as u64];
        let options = npyz::WriteOptions::new().default_dtype().shape(&shape);
        use npyz::WriterBuilder;
        let mut writer = options.writer(&mut bytes).begin_nd()?;
        for (r, row) in self.values.chunks_exact(columns.max(1)).enumerate() {
            writer.extend(row.iter().copied())?;
            writer.extend(self.more.iter().map(|(_, column)| column.number(r)))?;
        }
        writer.finish()?;
        Ok(bytes)
    }

    /// Writes to a file, by its name CSV or NumPy, or as CSV to standard output.
    pub fn write(&self, path: &Path) -> Result<()> {
        match extension(path).as_str() {
            "npy" => Ok(write_file(path, &self.npy()?)?),
            _ => write_text(path, &String::from_utf8(self.csv()?)?),
        }
    }
}

/// The folder that a file is in.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether there is something that is not a file, such as a device or a pipe: written to, never
/// replaced.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file())
}

/// Where a file is once its links are followed, whether or not it is there yet.
fn place(path: &Path) -> Option<PathBuf> {
    let mut at = path.to_owned();
    // As many links as the system itself follows.
    for _ in 0..40 {
        match (at.canonicalize(), at.read_link()) {
            (Ok(real), _) => return Some(real),
            // A link to what is not there yet.
            (_, Ok(next)) => at = folder(&at).join(next),
            _ => return Some(folder(&at).canonicalize().ok()?.join(at.file_name()?)),
        }
    }
    None
}

/// Refuses an output that cannot be written, or that is one of the inputs or of the other outputs,
/// before any work is done.
pub fn check_output(output: &Path, others: &[&Path]) -> Result<()> {
    if is_stdout(output) {
        return Ok(());
    }
    let shown = output.display();
    ensure!(!output.as_os_str().is_empty(), "the name of the output is empty");
    ensure!(!output.is_dir(), "{shown}: is a folder; name a file");
    if is_special(output) {
        return Ok(());
    }
    for other in others.iter().filter(|o| !is_stream(o)) {
        ensure!(
            place(other).is_none() || place(other) != place(output),
            "{shown}: is named twice, as an output and as something else; name another output"
        );
    }
    let read_only = output.metadata().is_ok_and(|m| m.permissions().readonly());
    ensure!(!read_only, "{shown}: is read-only");
    let target = place(output);
    ensure!(
        target.is_some() || !output.is_symlink(),
        "{shown}: is a link that leads nowhere"
    );
    tempfile::Builder::new()
        .prefix(".bilip-")
        .tempfile_in(folder(&target.unwrap_or_else(|| output.to_owned())))
        .with_context(|| format!("{shown}: cannot be written"))?;
    Ok(())
}

/// As [`check_output`], for what cannot go to standard output.
pub fn check_file(output: &Path, others: &[&Path]) -> Result<()> {
    ensure!(
        !is_stream(output),
        "-: this cannot go to standard output; name a file"
    );
    check_output(output, others)
}
