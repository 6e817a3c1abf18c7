//! Where the rows of a table are in its file.

/// Rows by number, or the lines of a text file that they are in.
#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct Places {
    /// Rows whose line is not the one after that of the row before, with their lines; empty for
    /// files without lines.
    jumps: Vec<(usize, u64)>,
}

impl Places {
    /// Of a file without lines.
    pub fn rows() -> Self {
        Places::default()
    }

    /// The line of the next row.
    pub fn push(&mut self, row: usize, line: u64) {
        let expected = self.jumps.last().map(|(r, l)| l + (row - r) as u64);
        if expected != Some(line) {
            self.jumps.push((row, line));
        }
    }

    /// A row, for messages.
    pub fn of(&self, row: usize) -> String {
        let after = self.jumps.partition_point(|(r, _)| *r <= row);
        match after.checked_sub(1).map(|k| self.jumps[k]) {
            Some((first, line)) => format!("line {}", line + (row - first) as u64),
            None => format!("row {}", row + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_across_gaps() {
        let mut places = Places::rows();
        assert_eq!(places.of(4), "row 5");
        for (row, line) in [2, 3, 4, 7, 8, 20].into_iter().enumerate() {
            places.push(row, line);
        }
        assert_eq!(places.jumps.len(), 3);
        let lines: Vec<String> = (0..6).map(|r| places.of(r)).collect();
        assert_eq!(
            lines,
            ["line 2", "line 3", "line 4", "line 7", "line 8", "line 20"]
        );
    }
}
