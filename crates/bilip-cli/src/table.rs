//! Tables of numbers: CSV and NumPy, files and standard streams.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bilip::write_file;

use crate::text::{print, shown};

/// Rows of finite numbers; columns with other cells are an error only where they are needed as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it came from, for messages.
    source: String,
    /// The header, where there is one.
    names: Option<Vec<String>>,
    columns: usize,
    /// Row-major.
    values: Vec<f64>,
    /// Columns that are not all numbers.
    words: BTreeMap<usize, Words>,
}

/// A column with cells that are not numbers.
#[derive(Clone, Debug, PartialEq)]
struct Words {
    cells: Vec<String>,
    /// What is wrong with the first of them.
    reason: String,
}

impl Table {
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The name of a column: its header, or its number.
    pub fn name(&self, column: usize) -> String {
        match &self.names {
            Some(names) => names[column].clone(),
            None => (column + 1).to_string(),
        }
    }

    /// The index of a column given by name or, failing that, by number from 1.
    pub fn find(&self, what: &str) -> Result<usize> {
        let what = what.trim();
        if let Some(names) = &self.names
            && let Some(k) = names.iter().position(|n| n == what)
        {
            return Ok(k);
        }
        match what.parse::<usize>() {
            Ok(k) if (1..=self.columns).contains(&k) => Ok(k - 1),
            _ => {
                let shown: Vec<String> = (0..self.columns.min(12)).map(|k| shown(&self.name(k))).collect();
                let more = if self.columns > 12 { ", …" } else { "" };
                bail!(
                    "{}: no column {what:?}; there are {}{more}",
                    self.source,
                    shown.join(", ")
                )
            }
        }
    }

    /// Some of the columns, row-major.
    ///
    /// # Errors
    /// When a cell of them is not a finite number.
    pub fn select(&self, columns: &[usize]) -> Result<Vec<f64>> {
        if let Some(words) = columns.iter().find_map(|c| self.words.get(c)) {
            bail!("{}", words.reason);
        }
        Ok(self
            .values
            .chunks_exact(self.columns)
            .flat_map(|row| columns.iter().map(|c| row[*c]))
            .collect())
    }

    /// A column as classes: the class of every row, and the classes' names in order.
    ///
    /// # Errors
    /// When a cell is empty.
    pub fn classes(&self, column: usize) -> Result<(Vec<f64>, Vec<String>)> {
        let cells = match self.words.get(&column) {
            Some(words) => {
                ensure!(
                    words.cells.iter().all(|cell| !cell.is_empty()),
                    "{}, column {}: there are empty cells; fill them or leave the rows out",
                    self.source,
                    self.name(column)
                );
                words.cells.clone()
            }
            None => self.select(&[column])?.iter().map(f64::to_string).collect(),
        };
        let mut names = cells.clone();
        // Numbers by size, words by letter.
        let number = |name: &String| name.parse::<f64>().unwrap_or(f64::INFINITY);
        names.sort_by(|a, b| number(a).total_cmp(&number(b)).then_with(|| a.cmp(b)));
        names.dedup();
        let rows = cells
            .iter()
            .map(|cell| {
                names
                    .iter()
                    .position(|n| n == cell)
                    .map_or(f64::NAN, |k| k as f64)
            })
            .collect();
        Ok((rows, names))
    }

    /// The columns of a model's variables, or `None` when they are not there.
    ///
    /// A header must have their names, unless the model has none of its own; without a header all columns are taken in
    /// order, or those whose numbers the model knows.
    ///
    /// # Errors
    /// When a cell of them is not a finite number.
    pub fn matching(&self, variables: &Variables) -> Result<Option<Vec<f64>>> {
        self.places(variables)
            .map(|columns| self.select(&columns))
            .transpose()
    }

    fn places(&self, variables: &Variables) -> Option<Vec<usize>> {
        let names = &variables.names;
        let in_order = || (self.columns == names.len()).then(|| (0..self.columns).collect());
        match &self.names {
            Some(header) => {
                let found: Option<Vec<usize>> =
                    names.iter().map(|n| header.iter().position(|h| h == n)).collect();
                match found {
                    Some(found) => Some(found),
                    None if variables.unnamed => in_order(),
                    None => None,
                }
            }
            None => in_order().or_else(|| {
                names
                    .iter()
                    .map(|n| {
                        n.parse::<usize>()
                            .ok()?
                            .checked_sub(1)
                            .filter(|k| *k < self.columns)
                    })
                    .collect()
            }),
        }
    }

    /// Everything that makes this table what it is, in bytes.
    pub fn fingerprint(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.columns)
            .flat_map(|k| (self.name(k) + ",").into_bytes())
            .collect();
        bytes.extend(self.values.iter().flat_map(|v| v.to_le_bytes()));
        let cells = self.words.values().flat_map(|w| &w.cells);
        bytes.extend(cells.flat_map(|c| c.bytes().chain([b',']).collect::<Vec<_>>()));
        bytes
    }

    /// Reads a table; `-` is standard input.
    pub fn read(path: &Path) -> Result<Table> {
        let source = if is_stream(path) {
            "standard input".to_string()
        } else {
            path.display().to_string()
        };
        let mut bytes = Vec::new();
        if is_stream(path) {
            std::io::stdin()
                .lock()
                .read_to_end(&mut bytes)
                .context("standard input")?;
        } else {
            let extension = extension(path);
            ensure!(
                !["parquet", "xlsx", "xls", "feather", "npz"].contains(&extension.as_str()),
                "{source}: .{extension} files are not read; convert it to .csv or .npy"
            );
            let mut file = std::fs::File::open(path).with_context(|| source.clone())?;
            ensure!(
                !file.metadata().with_context(|| source.clone())?.is_dir(),
                "{source}: is a folder, not a table"
            );
            file.read_to_end(&mut bytes).with_context(|| source.clone())?;
        }
        ensure!(!bytes.is_empty(), "{source}: the file is empty");
        let table = if bytes.starts_with(b"\x93NUMPY") {
            read_npy(&bytes, source)?
        } else if extension(path) == "npy" {
            bail!("{source}: not a NumPy file, whatever its name says");
        } else {
            read_csv(&bytes, source)?
        };
        Ok(table)
    }
}

/// The names of a model's variables.
#[derive(Clone, Debug)]
pub struct Variables {
    pub names: Vec<String>,
    /// Whether they are ours for want of better ones.
    pub unnamed: bool,
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

fn read_csv(bytes: &[u8], source: String) -> Result<Table> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| anyhow::anyhow!("{source}: neither text nor a NumPy file"))?
        .trim_start_matches('\u{feff}');
    let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("");
    let delimiter = [b',', b';', b'\t']
        .into_iter()
        .max_by_key(|d| (first.bytes().filter(|b| b == d).count(), *d == b','))
        .unwrap_or(b',');
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut names: Option<Vec<String>> = None;
    let mut columns = 0;
    let mut values: Vec<f64> = Vec::new();
    let mut words = BTreeMap::new();
    for (k, record) in reader.records().enumerate() {
        let record = record.map_err(|e| anyhow::anyhow!("{source}: {e}"))?;
        let line = record.position().map_or(k as u64 + 1, |p| p.line());
        if k == 0 {
            columns = record.len();
            if record.iter().any(|cell| cell.parse::<f64>().is_err()) {
                names = Some(header(&record, &source, line)?);
                continue;
            }
        }
        ensure!(
            record.len() == columns,
            "{source}, line {line}: {} cells where {columns} are expected",
            record.len()
        );
        for (j, cell) in record.iter().enumerate() {
            let column = match &names {
                Some(names) => names[j].clone(),
                None => (j + 1).to_string(),
            };
            let at = || format!("{source}, line {line}, column {column}");
            let value = match cell.parse::<f64>() {
                _ if cell.is_empty() => Err(format!(
                    "{}: the cell is empty; fill it or leave the row out",
                    at()
                )),
                Err(_) => Err(format!("{}: {cell:?} is not a number", at())),
                Ok(v) if !v.is_finite() => Err(format!(
                    "{}: {cell} is not a finite number; leave the row out",
                    at()
                )),
                Ok(v) => Ok(v),
            };
            if let Err(reason) = &value
                && let Entry::Vacant(entry) = words.entry(j)
            {
                let before = values.iter().skip(j).step_by(columns);
                entry.insert(Words {
                    cells: before.map(f64::to_string).collect(),
                    reason: reason.clone(),
                });
            }
            if let Some(words) = words.get_mut(&j) {
                words.cells.push(cell.to_string());
            }
            values.push(value.unwrap_or(f64::NAN));
        }
    }
    ensure!(!values.is_empty(), "{source}: there are no rows of numbers");
    Ok(Table {
        source,
        names,
        columns,
        values,
        words,
    })
}

/// The names of the columns, if the first line is one of names and not of numbers with one of them spoilt.
fn header(record: &csv::StringRecord, source: &str, line: u64) -> Result<Vec<String>> {
    let names: Vec<String> = record.iter().map(str::to_string).collect();
    let missing =
        |cell: &str| ["", "na", "n/a", "null", "none", "?", "-"].contains(&cell.to_lowercase().as_str());
    let numbers = names.iter().filter(|n| n.parse::<f64>().is_ok());
    let whole = numbers.clone().all(|n| n.parse::<u32>().is_ok());
    let words = names.iter().find(|n| n.parse::<f64>().is_err());
    if numbers.count() > 0
        && let Some(word) = words
    {
        // Whole numbers are names that programs give to columns; others are data.
        ensure!(
            whole && !names.iter().all(|n| n.parse::<f64>().is_ok() || missing(n)),
            "{source}, line {line}: {word:?} is not a number, and the line is not a header"
        );
    }
    for (k, name) in names.iter().enumerate() {
        ensure!(!name.is_empty(), "{source}: column {} has no name", k + 1);
        ensure!(
            !names[..k].contains(name),
            "{source}: two columns are called {name:?}; rename one"
        );
    }
    Ok(names)
}

fn read_npy(bytes: &[u8], source: String) -> Result<Table> {
    fn all<T: npyz::Deserialize>(file: npyz::NpyFile<&[u8]>, to: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        let items = file.data::<T>().map_err(|e| anyhow::anyhow!("{e}"))?;
        let mut values = Vec::new();
        for item in items {
            values.push(to(item.map_err(|_| anyhow::anyhow!("the file is cut short"))?));
        }
        Ok(values)
    }
    let open = || {
        npyz::NpyFile::new(bytes)
            .map_err(|e| anyhow::anyhow!("{source}: not a NumPy file that can be read: {e}"))
    };
    let file = open()?;
    let shape: Vec<usize> = file.shape().iter().map(|d| *d as usize).collect();
    let (rows, columns) = match shape[..] {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        // Images and the like: one row each.
        [rows, ref rest @ ..] if file.order() == npyz::Order::C => (
            rows,
            (rest.iter().try_fold(1usize, |n, d| n.checked_mul(*d)))
                .with_context(|| format!("{source}: an array of shape {shape:?} cannot be"))?,
        ),
        _ => bail!("{source}: an array of shape {shape:?}, where a table of rows and columns is needed"),
    };
    let by_columns = file.order() == npyz::Order::Fortran;
    let dtype = file.dtype().descr();
    let kind = dtype.trim_matches(|c| "'\"<>|=".contains(c)).to_string();
    let values = match kind.as_str() {
        "f8" => all::<f64>(file, |v| v),
        "f4" => all::<f32>(file, f64::from),
        "i8" => all::<i64>(file, |v| v as f64),
        "i4" => all::<i32>(file, f64::from),
        other => Err(anyhow::anyhow!(
            "numbers of type {other} are not read; use float64"
        )),
    }
    .map_err(|e| anyhow::anyhow!("{source}: {e}"))?;
    ensure!(rows > 0 && columns > 0, "{source}: there are no rows of numbers");
    ensure!(
        rows.checked_mul(columns) == Some(values.len()),
        "{source}: the file is cut short"
    );
    let values: Vec<f64> = if by_columns {
        (0..rows * columns)
            .map(|k| values[(k % columns) * rows + k / columns])
            .collect()
    } else {
        values
    };
    if let Some(k) = values.iter().position(|v| !v.is_finite()) {
        bail!(
            "{source}, row {}, column {}: {} is not a finite number; leave the row out",
            k / columns + 1,
            k % columns + 1,
            values[k]
        );
    }
    Ok(Table {
        source,
        names: None,
        columns,
        values,
        words: BTreeMap::new(),
    })
}

/// A cell of words, in quotes where a comma or quote in it needs them.
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_string(),
    }
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
    fn csv(&self) -> String {
        let mut text = String::new();
        let mut writer = csv::Writer::from_writer(Vec::new());
        // Names of columns may need quotes; numbers never do.
        let header = (self.words.iter().map(|(name, _)| *name))
            .chain(self.names.iter().map(String::as_str))
            .chain(self.more.iter().map(|(name, _)| name.as_str()));
        if writer.write_record(header).is_ok()
            && let Ok(bytes) = writer.into_inner()
        {
            text += &String::from_utf8_lossy(&bytes);
        }
        for (r, row) in self.values.chunks_exact(self.names.len().max(1)).enumerate() {
            if let Some((_, words)) = self.words {
                text += &quoted(&words[r]);
                text.push(',');
            }
            for (k, value) in row.iter().enumerate() {
                if k > 0 {
                    text.push(',');
                }
                if self.single {
                    text += &(*value as f32).to_string();
                } else {
                    text += &value.to_string();
                }
            }
            for (_, column) in &self.more {
                text.push(',');
                text += &column.text(r);
            }
            text.push('\n');
        }
        text
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
            _ => write_text(path, &self.csv()),
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

/// Whether there is something that is not a file, such as a device or a pipe: written to, never replaced.
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

/// Refuses an output that cannot be written, or that is one of the inputs or of the other outputs, before any work is
/// done.
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
