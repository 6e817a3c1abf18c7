//! Tables of numbers and words, from CSV and NumPy files or from memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result, bail, ensure};
use crate::text::shown;

/// Rows of finite numbers; columns with other cells are an error only where they are needed as
/// numbers.
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
    /// Where it came from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Number of columns.
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
    ///
    /// # Errors
    /// When there is none.
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
    /// A header must have their names, unless the model has none of its own; without a header all
    /// columns are taken in order, or those whose numbers the model knows.
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
    pub(crate) fn fingerprint(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.columns)
            .flat_map(|k| (self.name(k) + ",").into_bytes())
            .collect();
        bytes.extend(self.values.iter().flat_map(|v| v.to_le_bytes()));
        let cells = self.words.values().flat_map(|w| &w.cells);
        bytes.extend(cells.flat_map(|c| c.bytes().chain([b',']).collect::<Vec<_>>()));
        bytes
    }

    /// Reads a table from a `.csv` or `.npy` file.
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
        let extension = extension(path);
        ensure!(
            !["parquet", "xlsx", "xls", "feather", "npz"].contains(&extension.as_str()),
            "{source}: .{extension} files are not read; convert it to .csv or .npy"
        );
        let mut file = std::fs::File::open(path).map_err(io)?;
        ensure!(
            !file.metadata().map_err(io)?.is_dir(),
            "{source}: is a folder, not a table"
        );
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        ensure!(
            extension != "npy" || bytes.is_empty() || bytes.starts_with(NPY),
            "{source}: not a NumPy file, whatever its name says"
        );
        Table::from_bytes(&bytes, &source)
    }

    /// Reads the contents of a CSV or NumPy file; `source` is what messages call it.
    ///
    /// # Errors
    /// When it is no table.
    pub fn from_bytes(bytes: &[u8], source: &str) -> Result<Table> {
        ensure!(!bytes.is_empty(), "{source}: the file is empty");
        match bytes.starts_with(NPY) {
            true => read_npy(bytes, source.to_string()),
            false => read_csv(bytes, source.to_string()),
        }
    }

    /// A table of numbers, row-major, with names of its columns or without.
    ///
    /// # Errors
    /// When the numbers do not make rows, are not finite, or names are missing or there twice.
    pub fn new(names: Option<Vec<String>>, columns: usize, values: Vec<f64>) -> Result<Table> {
        let source = "table";
        ensure!(
            columns > 0 && !values.is_empty() && values.len().is_multiple_of(columns),
            "{source}: {} numbers are no rows of {columns}",
            values.len()
        );
        if let Some(names) = &names {
            ensure!(
                names.len() == columns,
                "{source}: {} names for {columns} columns",
                names.len()
            );
            check_names(names, source)?;
        }
        if let Some(k) = values.iter().position(|v| !v.is_finite()) {
            bail!(
                "{source}, row {}, column {}: {} is not a finite number; leave the row out",
                k / columns + 1,
                k % columns + 1,
                values[k]
            );
        }
        Ok(Table {
            source: source.into(),
            names,
            columns,
            values,
            words: BTreeMap::new(),
        })
    }
}

/// What a NumPy file begins with.
const NPY: &[u8] = b"\x93NUMPY";

/// The names of a model's variables.
#[derive(Clone, Debug)]
pub struct Variables {
    /// The names.
    pub names: Vec<String>,
    /// Whether they are ours for want of better ones.
    pub unnamed: bool,
}

fn extension(path: &Path) -> String {
    path.extension()
        .map_or(String::new(), |e| e.to_string_lossy().to_lowercase())
}

fn read_csv(bytes: &[u8], source: String) -> Result<Table> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Error::Data(format!("{source}: neither text nor a NumPy file")))?
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
        let record = record.map_err(|e| Error::Data(format!("{source}: {e}")))?;
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

/// The names of the columns, if the first line is one of names and not of numbers with one of them
/// damaged.
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
    check_names(&names, source)?;
    Ok(names)
}

fn check_names(names: &[String], source: &str) -> Result<()> {
    for (k, name) in names.iter().enumerate() {
        ensure!(!name.is_empty(), "{source}: column {} has no name", k + 1);
        ensure!(
            !names[..k].contains(name),
            "{source}: two columns are called {name:?}; rename one"
        );
    }
    Ok(())
}

fn read_npy(bytes: &[u8], source: String) -> Result<Table> {
    fn all<T: npyz::Deserialize>(file: npyz::NpyFile<&[u8]>, to: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        let items = file.data::<T>().map_err(|e| Error::Data(format!("{e}")))?;
        let mut values = Vec::new();
        for item in items {
            values.push(to(item.map_err(|_| Error::Data("the file is cut short".into()))?));
        }
        Ok(values)
    }
    let open = || {
        npyz::NpyFile::new(bytes)
            .map_err(|e| Error::Data(format!("{source}: not a NumPy file that can be read: {e}")))
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
                .ok_or_else(|| Error::Data(format!("{source}: an array of shape {shape:?} cannot be")))?,
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
        other => Err(Error::Data(format!(
            "numbers of type {other} are not read; use float64"
        ))),
    }
    .map_err(|e| Error::Data(format!("{source}: {e}")))?;
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
