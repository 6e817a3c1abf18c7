//! A table while its cells come in, row by row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::Table;
use super::places::Places;

/// Cells, in the order of rows.
pub(super) struct Builder {
    columns: usize,
    pub values: Vec<f64>,
    pub words: BTreeMap<usize, Vec<String>>,
    /// The columns that have a number with a decimal point.
    pub points: Vec<bool>,
    pub places: Places,
}

impl Builder {
    pub fn new(columns: usize) -> Self {
        Builder {
            columns,
            values: Vec::new(),
            words: BTreeMap::new(),
            points: vec![false; columns],
            places: Places::rows(),
        }
    }

    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// The next cell, as text.
    pub fn text(&mut self, cell: &str) {
        match cell.parse::<f64>() {
            Ok(value) if value.is_finite() => {
                let column = self.values.len() % self.columns;
                self.points[column] |= cell.contains('.');
                if let Some(cells) = self.words.get_mut(&column) {
                    cells.push(cell.to_string());
                }
                self.values.push(value);
            }
            _ => self.word(cell.to_string()),
        }
    }

    /// The next cell, as a number.
    pub fn number(&mut self, value: f64) {
        if !value.is_finite() {
            return self.word(value.to_string());
        }
        let column = self.values.len() % self.columns;
        if let Some(cells) = self.words.get_mut(&column) {
            cells.push(value.to_string());
        }
        self.values.push(value);
    }

    /// The next cell, which is not a finite number.
    fn word(&mut self, cell: String) {
        let column = self.values.len() % self.columns;
        let cells = match self.words.entry(column) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let before = self.values.iter().skip(column).step_by(self.columns);
                entry.insert(before.map(f64::to_string).collect())
            }
        };
        cells.push(cell);
        self.values.push(f64::NAN);
    }

    /// The table.
    pub fn finish(self, source: String, names: Option<Vec<String>>) -> Table {
        Table {
            source,
            names,
            columns: self.columns,
            values: self.values,
            words: self.words,
            index: None,
            places: self.places,
            notes: Vec::new(),
        }
    }
}
