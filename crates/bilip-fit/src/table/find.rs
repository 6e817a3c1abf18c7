//! Columns by name, by number and in ranges.

use std::ops::RangeInclusive;

use super::Table;
use crate::error::{Result, bail, ensure};
use crate::text::shown;

/// The most columns that a message lists.
const MOST_SHOWN: usize = 12;

impl Table {
    /// The index of a column given by name or, failing that, by number from 1.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, what: &str) -> Result<usize> {
        let what = what.trim();
        match self.lookup(what) {
            Some(column) => Ok(column),
            None => {
                let shown: Vec<String> = (0..self.columns.min(MOST_SHOWN))
                    .map(|k| shown(&self.name(k)))
                    .collect();
                let more = if self.columns > MOST_SHOWN { ", …" } else { "" };
                bail!(
                    "{}: no column {what:?}; there are {}{more}",
                    self.source,
                    shown.join(", ")
                )
            }
        }
    }

    /// The indices of columns given by name, by number from 1, or as ranges of positions: `2-5` by
    /// numbers, `a..d` by names or numbers, both ends included.
    ///
    /// A column that is called so comes first, so that `2-5` is the column of this name where there
    /// is one.
    ///
    /// # Errors
    /// When a column is not there or a range runs backwards.
    pub fn find_all(&self, columns: &[String]) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for what in columns {
            if let Some(column) = self.lookup(what.trim()) {
                found.push(column);
            } else if let Some(range) = self.range(what.trim())? {
                found.extend(range);
            } else {
                found.push(self.find(what)?);
            }
        }
        Ok(found)
    }

    fn lookup(&self, what: &str) -> Option<usize> {
        let named = (self.names.iter()).find_map(|names| names.iter().position(|n| n == what));
        named.or_else(|| {
            let number = what.parse::<usize>().ok()?;
            (1..=self.columns).contains(&number).then(|| number - 1)
        })
    }

    fn range(&self, what: &str) -> Result<Option<RangeInclusive<usize>>> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let numbers = what
            .split_once('-')
            .filter(|(a, b)| is_number(a.trim()) && is_number(b.trim()));
        // A name may have the dots, too.
        let names = what
            .match_indices("..")
            .map(|(k, _)| (&what[..k], &what[k + 2..]));
        for (first, last) in numbers.into_iter().chain(names) {
            if let (Some(a), Some(b)) = (self.lookup(first.trim()), self.lookup(last.trim())) {
                ensure!(
                    a <= b,
                    "{}: the columns {what:?} run backwards; {}..{} is the range",
                    self.source,
                    last.trim(),
                    first.trim()
                );
                return Ok(Some(a..=b));
            }
        }
        Ok(None)
    }
}
