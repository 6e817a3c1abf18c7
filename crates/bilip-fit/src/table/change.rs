//! A table with fewer rows, gaps filled, or more columns.

use super::Table;
use super::places::Places;

impl Table {
    /// Some of the rows, in order.
    pub(crate) fn with_rows(&self, rows: &[usize]) -> Table {
        let mut table = Table {
            values: (rows.iter())
                .flat_map(|r| &self.values[r * self.columns..(r + 1) * self.columns])
                .copied()
                .collect(),
            words: (self.words.iter())
                .map(|(k, cells)| (*k, rows.iter().map(|r| cells[*r].clone()).collect()))
                .collect(),
            places: Places::rows(),
            source: self.source.clone(),
            names: self.names.clone(),
            columns: self.columns,
            index: self.index,
            notes: self.notes.clone(),
        };
        table.forget_numbers();
        table
    }

    /// Puts the mean of a column's numbers where it has none.
    pub(crate) fn fill_with_mean(&mut self, column: usize) {
        let numbers = || (self.values.iter().skip(column).step_by(self.columns)).filter(|v| v.is_finite());
        let count = numbers().count().max(1) as f64;
        // Divided first, so that sums of huge numbers stay numbers.
        let mean = numbers().map(|v| v / count).sum::<f64>();
        let cells = self.values.iter_mut().skip(column).step_by(self.columns);
        cells.filter(|v| v.is_nan()).for_each(|v| *v = mean);
        self.forget_numbers();
    }

    /// One column more, behind the others.
    pub(crate) fn push_column(&mut self, name: String, values: &[f64]) {
        let mut names: Vec<String> = (0..self.columns).map(|k| self.name(k)).collect();
        names.push(name);
        self.values = (self.values.chunks_exact(self.columns).zip(values))
            .flat_map(|(row, value)| row.iter().chain([value]).copied())
            .collect();
        self.columns += 1;
        self.names = Some(names);
    }

    /// Forgets the words of columns in which all cells are numbers by now.
    pub(super) fn forget_numbers(&mut self) {
        let (values, columns) = (&self.values, self.columns);
        self.words
            .retain(|k, _| values.iter().skip(*k).step_by(columns).any(|v| v.is_nan()));
    }
}
