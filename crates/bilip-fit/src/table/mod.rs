//! Tables of numbers and words, from files or from memory.
//!
//! [`Table::read`] takes tables as they come: CSV with whatever separator, decimal comma, comments
//! and encoding, compressed or not, NumPy arrays, Parquet. A table keeps what its cells say;
//! whether a missing value or a word is an error depends on who asks for the column.

mod builder;
mod cells;
mod change;
mod decimal;
mod delimited;
mod encoding;
mod find;
mod gzip;
mod header;
mod matching;
mod missing;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
mod places;
mod read;
mod separator;

use std::collections::BTreeMap;

use crate::error::{Result, bail, ensure};
use header::check_names;
use places::Places;

pub use matching::Variables;
pub(crate) use matching::indicator;

/// Rows of finite numbers; columns with other cells are an error only where they are needed as
/// numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it came from, for messages.
    source: String,
    /// The header, where there is one.
    names: Option<Vec<String>>,
    columns: usize,
    /// Row-major; NaN where a cell is not a finite number.
    values: Vec<f64>,
    /// The cells of columns that are not all numbers.
    words: BTreeMap<usize, Vec<String>>,
    /// The column that numbers or names the rows, where the file has one without a name.
    index: Option<usize>,
    /// Where rows are in the file.
    places: Places,
    /// What the user should know of how the file was read.
    notes: Vec<String>,
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

    /// The column of row names that has no name of its own, as pandas and R write it; it is called
    /// `index` and is no input unless asked for.
    pub fn index(&self) -> Option<usize> {
        self.index
    }

    /// What the user should know of how the file was read, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Everything that makes this table what it is, in bytes.
    pub(crate) fn fingerprint(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.columns)
            .flat_map(|k| (self.name(k) + ",").into_bytes())
            .collect();
        bytes.extend(self.values.iter().flat_map(|v| v.to_le_bytes()));
        let cells = self.words.values().flatten();
        bytes.extend(cells.flat_map(|c| c.bytes().chain([b',']).collect::<Vec<_>>()));
        bytes
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
            index: None,
            places: Places::rows(),
            notes: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
