//! What the columns of a table hold: numbers, classes, missing values.

use super::{Table, decimal, missing};
use crate::error::{Result, bail};

impl Table {
    /// Some of the columns, row-major.
    ///
    /// # Errors
    /// When a cell of them is not a finite number.
    pub fn select(&self, columns: &[usize]) -> Result<Vec<f64>> {
        for column in columns {
            if let Some(reason) = self.first_word(*column) {
                bail!("{reason}");
            }
            if let Some(row) = self.missing_rows(*column, false).first() {
                bail!("{}; fill it or leave the row out", self.gap(*row, *column));
            }
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
    /// When a cell is empty or stands for a missing value.
    pub fn classes(&self, column: usize) -> Result<(Vec<f64>, Vec<String>)> {
        if let Some(row) = self.missing_rows(column, true).first() {
            bail!("{}; fill it or leave the row out", self.gap(*row, column));
        }
        let cells = self.labels(column);
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

    /// The cells of a column as classes or categories: equal numbers are the same however they are
    /// written.
    pub(super) fn labels(&self, column: usize) -> Vec<String> {
        // Zero has a sign that nobody means.
        let label = |value: f64| (value + 0.0).to_string();
        match self.words.get(&column) {
            Some(cells) => cells
                .iter()
                .map(|cell| match cell.parse::<f64>() {
                    Ok(value) if value.is_finite() => label(value),
                    _ => cell.clone(),
                })
                .collect(),
            None => {
                let values = self.values.iter().skip(column).step_by(self.columns);
                values.map(|v| label(*v)).collect()
            }
        }
    }

    /// The rows in which a column has no value, as numbers or as words.
    pub(crate) fn missing_rows(&self, column: usize, words: bool) -> Vec<usize> {
        let Some(cells) = self.words.get(&column) else {
            return Vec::new();
        };
        (0..cells.len())
            .filter(|row| match words {
                true => missing::word(&cells[*row]),
                false => self.is_word(*row, column) && missing::number(&cells[*row]),
            })
            .collect()
    }

    /// What is wrong with the first cell of a column that is neither a number nor missing.
    pub(crate) fn first_word(&self, column: usize) -> Option<String> {
        let cells = self.words.get(&column)?;
        let row = (0..cells.len()).find(|r| self.is_word(*r, column) && !missing::number(&cells[*r]))?;
        let (at, cell) = (self.at(row, column), &cells[row]);
        Some(if decimal::with_comma(cell).is_some() {
            format!(
                "{at}: {cell:?} may be a decimal comma or a separator of thousands; write it with a decimal point"
            )
        } else if cell.parse::<f64>().is_ok() {
            format!("{at}: {cell} is not a finite number; leave the row out")
        } else {
            format!("{at}: {cell:?} is not a number")
        })
    }

    /// What is missing in a cell.
    pub(crate) fn gap(&self, row: usize, column: usize) -> String {
        let at = self.at(row, column);
        match self.words.get(&column).map(|cells| cells[row].as_str()) {
            None | Some("") => format!("{at}: the cell is empty"),
            Some(cell) => format!("{at}: {cell} stands for a missing value"),
        }
    }

    /// A cell, for messages.
    pub(super) fn at(&self, row: usize, column: usize) -> String {
        format!(
            "{}, {}, column {}",
            self.source,
            self.places.of(row),
            self.name(column)
        )
    }

    fn is_word(&self, row: usize, column: usize) -> bool {
        self.values[row * self.columns + column].is_nan()
    }
}
