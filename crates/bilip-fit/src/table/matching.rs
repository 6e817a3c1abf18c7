//! The columns of a table that are a model's variables.

use std::collections::BTreeMap;

use super::{Table, missing};
use crate::error::{Result, bail};
use crate::text::list;

/// The names of a model's variables.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// The names.
    pub names: Vec<String>,
    /// Whether they are ours for want of better ones.
    pub unnamed: bool,
    /// The columns of words behind variables such as `color=red`, with their categories in order;
    /// the first has no variable: it is where all others are 0.
    pub categories: BTreeMap<String, Vec<String>>,
}

/// The variable that is 1 where a column of words has a category, and 0 elsewhere.
pub(crate) fn indicator(column: &str, category: &str) -> String {
    format!("{column}={category}")
}

/// A column that variables come from.
struct Origin<'a> {
    name: &'a str,
    /// Its variables.
    names: &'a [String],
    /// Its categories, if it is one of words.
    categories: Option<&'a [String]>,
}

/// Where an origin is in a table.
enum Found {
    /// Columns of numbers, one for each variable.
    Numbers(Vec<usize>),
    /// A column of words.
    Words(usize),
}

impl Variables {
    /// The columns that the variables come from, in order.
    fn origins(&self) -> Vec<Origin<'_>> {
        let mut origins = Vec::new();
        let mut rest = &self.names[..];
        while let [name, ..] = rest {
            let words = self.categories.iter().find(|(column, categories)| {
                let count = categories.len().saturating_sub(1);
                count > 0
                    && rest.len() >= count
                    && (rest.iter().zip(&categories[1..])).all(|(n, c)| *n == indicator(column, c))
            });
            let origin = match words {
                Some((column, categories)) => Origin {
                    name: column,
                    names: &rest[..categories.len() - 1],
                    categories: Some(categories),
                },
                None => Origin {
                    name,
                    names: &rest[..1],
                    categories: None,
                },
            };
            rest = &rest[origin.names.len()..];
            origins.push(origin);
        }
        origins
    }

    /// The names of the columns that the variables come from, in order: those of the variables, but
    /// a column of words once.
    pub fn columns(&self) -> Vec<String> {
        self.origins().iter().map(|o| o.name.to_string()).collect()
    }

    /// The variables of one row given by the cells of its columns, words included; `None` when
    /// there are not as many cells as columns.
    ///
    /// # Errors
    /// When a cell is neither a number nor one of the column's categories.
    pub fn row(&self, cells: &[&str]) -> Result<Option<Vec<f64>>> {
        let origins = self.origins();
        if origins.len() != cells.len() {
            return Ok(None);
        }
        let mut values = Vec::new();
        for (origin, cell) in origins.iter().zip(cells) {
            let cell = cell.trim();
            match (origin.categories, cell.parse::<f64>()) {
                (Some(categories), number) => {
                    let label = number.map_or(cell.to_string(), |n| n.to_string());
                    values.extend(encoded(&label, categories, origin.name)?);
                }
                (None, Ok(value)) => values.push(value),
                (None, Err(_)) => bail!("{}: {cell:?} is not a number", origin.name),
            }
        }
        Ok(Some(values))
    }
}

/// The variables of a category.
fn encoded(label: &str, categories: &[String], at: &str) -> Result<Vec<f64>> {
    let Some(which) = categories.iter().position(|c| c == label) else {
        bail!(
            "{at}: {label:?} is none of the model's categories ({})",
            list(categories)
        );
    };
    Ok((1..categories.len())
        .map(|k| if k == which { 1.0 } else { 0.0 })
        .collect())
}

impl Table {
    /// The columns of a model's variables, or `None` when they are not there.
    ///
    /// A header must have their names, unless the model has none of its own; without a header all
    /// columns are taken in order, or those whose numbers the model knows. Variables of categories
    /// are found as they are, or made of their column of words.
    ///
    /// # Errors
    /// When a cell of them is not a finite number, or not one of the model's categories.
    pub fn matching(&self, variables: &Variables) -> Result<Option<Vec<f64>>> {
        let origins = variables.origins();
        let Some(found) = self.places_of(variables, &origins) else {
            return Ok(None);
        };
        // A column for each variable.
        let mut columns: Vec<Vec<f64>> = Vec::new();
        for (origin, found) in origins.iter().zip(found) {
            match found {
                Found::Numbers(numbers) => {
                    for k in numbers {
                        columns.push(self.select(&[k])?);
                    }
                }
                Found::Words(k) => columns.extend(self.encode(k, origin.categories.unwrap_or(&[]))?),
            }
        }
        let row = |r: usize| columns.iter().map(move |c| c[r]);
        Ok(Some((0..self.rows()).flat_map(row).collect()))
    }

    /// Whether the table has the columns of a model's variables, by their names.
    pub fn has(&self, variables: &Variables) -> bool {
        let has = |name: &str| (0..self.columns).any(|k| self.name(k) == *name);
        variables
            .origins()
            .iter()
            .all(|o| o.names.iter().all(|n| has(n)) || (o.categories.is_some() && has(o.name)))
    }

    fn places_of(&self, variables: &Variables, origins: &[Origin]) -> Option<Vec<Found>> {
        let usable: Vec<usize> = (0..self.columns).filter(|k| self.index != Some(*k)).collect();
        let in_order = || {
            let mut rest = usable.iter().copied();
            let words = origins.iter().any(|o| o.categories.is_some()) && !self.words.is_empty();
            if usable.len() == variables.names.len() && !words {
                // Categories as the numbers that they are for the model.
                let numbers = |o: &Origin| Found::Numbers(rest.by_ref().take(o.names.len()).collect());
                return Some(origins.iter().map(numbers).collect());
            }
            (usable.len() == origins.len()).then(|| {
                let of = |(o, k): (&Origin, &usize)| found_in(o, *k);
                origins.iter().zip(&usable).map(of).collect()
            })
        };
        match &self.names {
            Some(header) => {
                let position = |name: &str| header.iter().position(|h| h == name);
                let find = |o: &Origin| {
                    let numbers: Option<Vec<usize>> = o.names.iter().map(|n| position(n)).collect();
                    let words = || o.categories.and(position(o.name)).map(Found::Words);
                    numbers.map(Found::Numbers).or_else(words)
                };
                let found: Option<Vec<Found>> = origins.iter().map(find).collect();
                found.or_else(|| if variables.unnamed { in_order() } else { None })
            }
            None => in_order().or_else(|| {
                let by_number = |o: &Origin| {
                    let k = o.name.parse::<usize>().ok()?.checked_sub(1)?;
                    (k < self.columns).then(|| found_in(o, k))
                };
                origins.iter().map(by_number).collect()
            }),
        }
    }

    /// The variables of a column of words, one column each.
    fn encode(&self, column: usize, categories: &[String]) -> Result<Vec<Vec<f64>>> {
        let mut columns = vec![Vec::new(); categories.len().saturating_sub(1)];
        for (row, label) in self.labels(column).iter().enumerate() {
            if missing::word(label) && !categories.contains(label) {
                bail!("{}; fill it or leave the row out", self.gap(row, column));
            }
            let values = encoded(label, categories, &self.at(row, column))?;
            for (column, value) in columns.iter_mut().zip(values) {
                column.push(value);
            }
        }
        Ok(columns)
    }
}

/// An origin that is one column.
fn found_in(origin: &Origin, column: usize) -> Found {
    match origin.categories {
        Some(_) => Found::Words(column),
        None => Found::Numbers(vec![column]),
    }
}
