//! Options of `fit` that say what to make of the table.

use anyhow::{Context, Result, ensure};
use bilip_fit::{FitSettings, MissingValues};
use clap::{Args, ValueEnum};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Na {
    /// Refuse the table
    #[default]
    Error,
    /// Leave out rows with missing values
    Drop,
    /// Put the mean of the column in their place
    Mean,
}

#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct TableOptions {
    /// Columns to leave out of the inputs
    #[arg(help_heading = "Columns", long, value_delimiter = ',', value_name = "COLUMNS")]
    pub exclude: Vec<String>,
    /// Columns of words: each category but the first is a variable of 0 and 1 (color=red)
    #[arg(help_heading = "Columns", long, value_delimiter = ',', value_name = "COLUMNS")]
    pub categories: Vec<String>,
    /// Column of the rows' weights, none of them negative
    #[arg(help_heading = "Columns", long, value_name = "COLUMN")]
    pub weights: Option<String>,
    /// Missing values (NA, ?, …): error, drop (rows) or mean (of the column)
    #[arg(help_heading = "Columns", long, value_enum, default_value_t = Na::Error, hide_possible_values = true, value_name = "error|drop|mean")]
    pub na: Na,
}

impl TableOptions {
    /// Settings with these options and with lists of columns read as such.
    pub fn apply(&self, settings: FitSettings) -> Result<FitSettings> {
        let inputs = settings.inputs.as_deref();
        Ok(FitSettings {
            target: columns(&settings.target, "--target")?,
            inputs: inputs.map(|names| columns(names, "--inputs")).transpose()?,
            params: columns(&settings.params, "--params")?,
            exclude: columns(&self.exclude, "--exclude")?,
            categories: columns(&self.categories, "--categories")?,
            weights: self.weights.clone(),
            na: match self.na {
                Na::Error => MissingValues::Error,
                Na::Drop => MissingValues::Drop,
                Na::Mean => MissingValues::Mean,
            },
            ..settings
        })
    }

    /// What the checkpoints of a run are known by has nothing of these options where none is given,
    /// as in version 0.1.0, which did not have them.
    pub fn given(&self) -> String {
        match *self == TableOptions::default() {
            true => String::new(),
            false => format!("{self:?}"),
        }
    }
}

/// The columns of a list that was split at every comma: names in quotes may have commas.
fn columns(pieces: &[String], option: &str) -> Result<Vec<String>> {
    if !pieces.iter().any(|piece| piece.contains('"')) {
        return Ok(pieces.to_vec());
    }
    let text = pieces.join(",");
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut records = reader.records();
    let record = records.next().transpose().ok().flatten();
    let record = record.with_context(|| format!("{option} {text}: not a list of columns"))?;
    let quotes = text.matches('"').count();
    ensure!(
        quotes.is_multiple_of(2) && records.next().is_none(),
        "{option} {text}: a quote is not closed"
    );
    Ok(record.iter().map(str::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let pieces: Vec<String> = text.split(',').map(str::to_string).collect();
        columns(&pieces, "--target")
    }

    #[test]
    fn names_in_quotes_may_have_commas() {
        assert_eq!(read("a,b").unwrap(), ["a", "b"]);
        assert_eq!(read("\"a,b\",c").unwrap(), ["a,b", "c"]);
        assert_eq!(read("c,\"a,b\"").unwrap(), ["c", "a,b"]);
        assert_eq!(read("\"say \"\"x\"\"\",b").unwrap(), ["say \"x\"", "b"]);
        assert!(read("\"a,b").is_err());
        assert_eq!(read("2-5,a..d").unwrap(), ["2-5", "a..d"]);
    }
}
