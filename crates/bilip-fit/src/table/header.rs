//! Whether a table begins with the names of its columns, and what they are.

use super::separator::is_number;
use super::{Table, missing};
use crate::error::{Result, ensure};

/// What the first line of a table is.
#[derive(Debug, PartialEq)]
pub(super) enum FirstLine {
    /// Names of columns.
    Names,
    /// Names or a row: there are numbers and words in it.
    Either {
        /// What it is taken for.
        names: bool,
    },
    /// A row.
    Row,
}

/// Tells names from a row.
pub(super) fn first_line(cells: &[&str], separator: u8) -> FirstLine {
    let numbers: Vec<&&str> = (cells.iter().filter(|c| is_number(c, separator))).collect();
    let words = (cells.iter()).any(|c| !is_number(c, separator) && !missing::number(c));
    match (numbers.is_empty(), words) {
        (true, _) => FirstLine::Names,
        (false, false) if are_counted(cells) => FirstLine::Names,
        (false, false) => FirstLine::Row,
        // Whole numbers that grow, such as years, are names that programs give to columns; others
        // are data.
        (false, true) => {
            let whole: Option<Vec<u32>> = numbers.iter().map(|n| n.parse().ok()).collect();
            let distinct = (1..cells.len()).all(|k| !cells[..k].contains(&cells[k]));
            FirstLine::Either {
                names: distinct && whole.is_some_and(|n| n.is_sorted()),
            }
        }
    }
}

/// Whether cells are an empty one and 0, 1, 2, … (or 1, 2, …): a table of pandas whose columns have no names.
fn are_counted(cells: &[&str]) -> bool {
    let [first, rest @ ..] = cells else {
        return false;
    };
    let from = usize::from(rest.first() == Some(&"1"));
    first.is_empty() && (rest.iter().enumerate()).all(|(k, cell)| cell.parse() == Ok(from + k))
}

/// The names of the columns of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    pub names: Vec<String>,
    /// Whether the first is that of a column without a name.
    pub index: bool,
    /// Whether lines end in a separator with nothing behind it.
    pub trailing: bool,
}

impl Header {
    /// Of the cells of a line.
    ///
    /// # Errors
    /// When names are there twice, or missing but in the first column.
    pub fn new(cells: &[&str], source: &str) -> Result<Header> {
        let mut names: Vec<String> = cells.iter().map(|c| c.to_string()).collect();
        let trailing = names.len() > 1 && names.last().is_some_and(String::is_empty);
        if trailing {
            names.pop();
        }
        let index = names.len() > 1 && names[0].is_empty();
        if index {
            names[0] = unused(&names);
        }
        check_names(&names, source)?;
        Ok(Header {
            names,
            index,
            trailing,
        })
    }

    /// Fits the names to the first row: there may be none for the names of rows, or a separator at
    /// the end of lines.
    pub fn fit(&mut self, row: &[&str], separator: u8) {
        if row.len() != self.names.len() + 1 || self.index || self.trailing {
            return;
        }
        if row.last().is_some_and(|c| c.is_empty()) {
            self.trailing = true;
        } else if self.names.len() > 1 || separator != b',' {
            // A single name over `3,14` is that of numbers with a decimal comma.
            self.names.insert(0, unused(&self.names));
            self.index = true;
        }
    }
}

/// What a column without a name is called.
fn unused(names: &[String]) -> String {
    let mut name = "index".to_string();
    while names.contains(&name) {
        name.push('_');
    }
    name
}

/// Refuses names that are missing or there twice.
pub(super) fn check_names(names: &[String], source: &str) -> Result<()> {
    for (k, name) in names.iter().enumerate() {
        ensure!(!name.is_empty(), "{source}: column {} has no name", k + 1);
        ensure!(
            !names[..k].contains(name),
            "{source}: two columns are called {name:?}; rename one"
        );
    }
    Ok(())
}

impl Table {
    /// Marks the first column as one of row names.
    pub(super) fn with_index(mut self, index: bool) -> Table {
        self.index = index.then_some(0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_rows() {
        let either = |names| FirstLine::Either { names };
        for (cells, expected) in [
            (&["a", "b"][..], FirstLine::Names),
            (&["", "a", "b"], FirstLine::Names),
            (&["", "0", "1", "2"], FirstLine::Names),
            (&["", "1", "2"], FirstLine::Names),
            (&["", "1", "3"], FirstLine::Row),
            (&["1", "NA", "3"], FirstLine::Row),
            (&["1", "2"], FirstLine::Row),
            (&["Na", "Mg"], FirstLine::Names),
            (&["name", "2019", "2020"], either(true)),
            (&["5.1", "3.5", "setosa"], either(false)),
            (&["39", "x", "77516", "y", "13"], either(false)),
            (&["1", "x", "1"], either(false)),
        ] {
            assert_eq!(first_line(cells, b','), expected, "{cells:?}");
        }
        assert_eq!(first_line(&["3,14", "2"], b';'), FirstLine::Row);
    }

    #[test]
    fn a_column_without_a_name_is_called_index() {
        let header = Header::new(&["", "index", "a", ""], "t").unwrap();
        assert_eq!(header.names, ["index_", "index", "a"]);
        assert!(header.index && header.trailing);
        assert!(Header::new(&["a", "", "b"], "t").is_err());
        let mut header = Header::new(&["a", "b"], "t").unwrap();
        header.fit(&["r1", "1", "2"], b',');
        assert!(header.index && header.names.len() == 3);
        let mut header = Header::new(&["a", "b"], "t").unwrap();
        header.fit(&["1", "2", ""], b',');
        assert!(!header.index && header.trailing && header.names.len() == 2);
    }
}
