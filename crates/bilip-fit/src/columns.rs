//! Which columns of a table are what, and a table of numbers of them: rows without missing values,
//! categories as variables, nothing constant among the inputs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::{Error, Result, bail, ensure};
use crate::settings::FitSettings;
use crate::standard::is_constant;
use crate::table::{Table, indicator};
use crate::text::{list, shown};

/// More categories than this are no categories.
const MOST_CATEGORIES: usize = 1_000;

/// What to do with missing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingValues {
    /// Refuse the table.
    #[default]
    Error,
    /// Leave out the rows that have one in a column that is used.
    Drop,
    /// Put the mean of the column's other numbers in their place, for inputs and parameters; rows
    /// without a target, weight or category are left out.
    Mean,
}

/// The columns of a fit, in a table that has numbers in all of them.
pub(crate) struct Chosen<'a> {
    /// The table, changed where it had to be.
    pub table: Cow<'a, Table>,
    pub inputs: Vec<usize>,
    pub parameters: Vec<usize>,
    pub targets: Vec<usize>,
    /// A weight for each row, if there is a column of them.
    pub weights: Option<Vec<f64>>,
    /// The categories of columns of words, the first of each without a variable.
    pub categories: BTreeMap<String, Vec<String>>,
    /// What the user should know of it.
    pub warnings: Vec<String>,
}

/// The columns that settings name.
struct Roles {
    inputs: Vec<usize>,
    parameters: Vec<usize>,
    targets: Vec<usize>,
    weights: Option<usize>,
    categories: Vec<usize>,
}

/// Finds the columns of a fit and makes them numbers. `classes` says that the target is a column of
/// classes, of which nothing is asked but that none is missing.
pub(crate) fn choose<'a>(settings: &FitSettings, table: &'a Table, classes: bool) -> Result<Chosen<'a>> {
    let mut warnings = Vec::new();
    let mut roles = roles(settings, table, &mut warnings)?;
    check_words(&roles, table)?;
    let mut table = without_gaps(settings, Cow::Borrowed(table), &roles, classes, &mut warnings)?;
    let weights = roles.weights.map(|k| weights(&table, k)).transpose()?;
    let categories = categories(&table, &roles)?;
    drop_constants(settings, &table, &mut roles, &categories, &mut warnings)?;
    encode(&mut table, &mut roles, &categories)?;
    ensure!(
        !roles.inputs.is_empty() || warnings.is_empty(),
        "no columns are left for the inputs; {}",
        warnings.join("; ")
    );
    Ok(Chosen {
        inputs: roles.inputs,
        parameters: roles.parameters,
        targets: roles.targets,
        weights,
        categories: (categories.into_iter())
            .filter(|c| c.names.len() > 1)
            .map(|c| (c.column, c.names))
            .collect(),
        table,
        warnings,
    })
}

impl FitSettings {
    /// The weights of a table's rows, if a column of them is named.
    ///
    /// # Errors
    /// When it is not there, or has cells that are no weights.
    pub fn row_weights(&self, table: &Table) -> Result<Option<Vec<f64>>> {
        let find = |name: &String| table.find(name).and_then(|k| weights(table, k));
        let weights = self.weights.as_ref().map(find).transpose();
        weights.map_err(|e| e.of_setting("weights"))
    }
}

/// A column of weights: not negative, and not all zero.
fn weights(table: &Table, column: usize) -> Result<Vec<f64>> {
    let weights = table.select(&[column])?;
    let name = table.name(column);
    if let Some(negative) = weights.iter().find(|w| **w < 0.0) {
        let reason = format!("column {name} has a negative weight, {negative}");
        return Err(Error::setting("weights", reason));
    }
    if weights.iter().all(|w| *w == 0.0) {
        return Err(Error::setting(
            "weights",
            format!("all weights of column {name} are 0"),
        ));
    }
    Ok(weights)
}

fn roles(settings: &FitSettings, table: &Table, warnings: &mut Vec<String>) -> Result<Roles> {
    let find =
        |names: &[String], setting: &'static str| table.find_all(names).map_err(|e| e.of_setting(setting));
    let targets = find(&settings.target, "target")?;
    let parameters = find(&settings.params, "params")?;
    let excluded = find(&settings.exclude, "exclude")?;
    let categories = find(&settings.categories, "categories")?;
    let weights = match &settings.weights {
        Some(name) => Some(table.find(name).map_err(|e| e.of_setting("weights"))?),
        None => None,
    };
    let taken: Vec<usize> = targets
        .iter()
        .chain(&parameters)
        .chain(&weights)
        .copied()
        .collect();
    let inputs: Vec<usize> = match &settings.inputs {
        Some(names) => find(names, "inputs")?,
        None => {
            let index = table
                .index()
                .filter(|k| !taken.contains(k) && !excluded.contains(k));
            warnings.extend(index.map(|k| {
                let number = k + 1;
                format!("column {number} has no name and is left out of the inputs; name it by its number to use it")
            }));
            (0..table.columns())
                .filter(|k| !taken.contains(k) && table.index() != Some(*k))
                .collect()
        }
    };
    let inputs: Vec<usize> = inputs.into_iter().filter(|k| !excluded.contains(k)).collect();
    let mut seen = Vec::new();
    for k in inputs.iter().chain(&taken) {
        let name = table.name(*k);
        ensure!(
            !seen.contains(k),
            "column {name:?} is named twice among inputs, parameters, targets and weights"
        );
        seen.push(*k);
    }
    for k in &categories {
        if !inputs.contains(k) && !parameters.contains(k) {
            let reason = format!("column {:?} is neither an input nor a parameter", table.name(*k));
            return Err(Error::setting("categories", reason));
        }
    }
    Ok(Roles {
        inputs,
        parameters,
        targets,
        weights,
        categories,
    })
}

/// Refuses words where numbers are needed, and says what to do with them.
fn check_words(roles: &Roles, table: &Table) -> Result<()> {
    for k in roles.inputs.iter().chain(&roles.parameters) {
        if roles.categories.contains(k) {
            continue;
        }
        if let Some(reason) = table.first_word(*k) {
            let name = shown(&table.name(*k));
            let advice = match reason.ends_with("is not a number") {
                true => format!(
                    "; --categories {name} makes variables of its words, --exclude {name} leaves it out"
                ),
                false => String::new(),
            };
            bail!("{reason}{advice}");
        }
    }
    Ok(())
}

/// The table without missing values in the columns that are used.
fn without_gaps<'a>(
    settings: &FitSettings,
    mut table: Cow<'a, Table>,
    roles: &Roles,
    classes: bool,
    warnings: &mut Vec<String>,
) -> Result<Cow<'a, Table>> {
    let is_words = |k: &usize| roles.categories.contains(k) || (classes && roles.targets.contains(k));
    let used = (roles.inputs.iter())
        .chain(&roles.parameters)
        .chain(&roles.targets)
        .chain(&roles.weights);
    // Columns with gaps: which rows, and whether their mean can be put there.
    let gaps: Vec<(usize, Vec<usize>, bool)> = used
        .map(|k| {
            let number = !is_words(k) && !roles.targets.contains(k) && roles.weights != Some(*k);
            (*k, table.missing_rows(*k, is_words(k)), number)
        })
        .filter(|(_, rows, _)| !rows.is_empty())
        .collect();
    let first = (gaps.iter()).min_by_key(|(k, rows, _)| (rows[0], *k));
    let Some(first) = first.map(|(k, rows, _)| table.gap(rows[0], *k)) else {
        return Ok(table);
    };
    let filled = |number: bool| number && settings.na == MissingValues::Mean;
    let mut gone = vec![false; table.rows()];
    for (_, rows, number) in &gaps {
        rows.iter().for_each(|r| gone[*r] |= !filled(*number));
    }
    let (all, left_out) = (table.rows(), gone.iter().filter(|g| **g).count());
    if settings.na == MissingValues::Error {
        let count: usize = gaps.iter().map(|(_, rows, _)| rows.len()).sum();
        bail!(
            "{first}; {} in {}: --na drop leaves out {}, --na mean puts in the means of inputs",
            counted(count, "missing value"),
            counted(left_out, "row"),
            if left_out == 1 {
                "the row".into()
            } else {
                format!("the {left_out} rows")
            },
        );
    }
    if left_out > 0 {
        let names: Vec<String> = gaps.iter().map(|(k, ..)| table.name(*k)).collect();
        ensure!(
            left_out < all,
            "{first}, and something is missing in every row; --exclude leaves out columns with missing values ({})",
            list(&names)
        );
        warnings.push(format!(
            "{left_out} of {all} rows are left out for missing values, the first: {first}"
        ));
        let kept: Vec<usize> = (0..all).filter(|r| !gone[*r]).collect();
        table = Cow::Owned(table.with_rows(&kept));
    }
    let fill: Vec<usize> = (gaps.iter().filter(|(.., number)| filled(*number)))
        .map(|(k, ..)| *k)
        .filter(|k| !table.missing_rows(*k, false).is_empty())
        .collect();
    let mut count = 0;
    for k in &fill {
        let rows = table.missing_rows(*k, false).len();
        ensure!(
            rows < table.rows(),
            "{}, column {}: all values are missing; --exclude leaves it out",
            table.source(),
            table.name(*k)
        );
        count += rows;
        table.to_mut().fill_with_mean(*k);
    }
    if !fill.is_empty() {
        let names: Vec<String> = fill.iter().map(|k| table.name(*k)).collect();
        warnings.push(format!(
            "{} replaced by the mean of the column ({})",
            counted(count, "missing value"),
            list(&names)
        ));
    }
    Ok(table)
}

/// `1 row`, `2 rows`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A column of words, as categories.
struct Category {
    at: usize,
    column: String,
    /// The category of every row.
    rows: Vec<f64>,
    names: Vec<String>,
}

fn categories(table: &Table, roles: &Roles) -> Result<Vec<Category>> {
    let mut found: Vec<Category> = Vec::new();
    for k in &roles.categories {
        if found.iter().any(|c| c.at == *k) {
            continue;
        }
        let (rows, names) = table.classes(*k)?;
        let column = table.name(*k);
        if names.len() > MOST_CATEGORIES || 2 * names.len() > rows.len() {
            let reason = format!(
                "{column} has {} different values in {} rows, too many for categories",
                names.len(),
                rows.len()
            );
            return Err(Error::setting("categories", reason));
        }
        found.push(Category {
            at: *k,
            column,
            rows,
            names,
        });
    }
    Ok(found)
}

/// Leaves constant columns out of inputs that were not named one by one.
fn drop_constants(
    settings: &FitSettings,
    table: &Table,
    roles: &mut Roles,
    categories: &[Category],
    warnings: &mut Vec<String>,
) -> Result<()> {
    let chosen = settings.inputs.is_some();
    if table.rows() < 2 {
        // Nothing can be said of one row, and it is too few.
        return Ok(());
    }
    for (columns, what, named) in [
        (&mut roles.inputs, "input", chosen),
        (&mut roles.parameters, "parameter", true),
    ] {
        let mut kept = Vec::new();
        for k in columns.iter() {
            let category = categories.iter().find(|c| c.at == *k);
            let alike = match category {
                Some(category) => (category.names.len() < 2).then(|| category.names.join("")),
                // Columns as they are, and those named one by one, are refused later if at all.
                None if named || settings.no_standardize => None,
                None => {
                    let column = table.select(&[*k])?;
                    is_constant(&column).then(|| column[0].to_string())
                }
            };
            let name = shown(&table.name(*k));
            match alike {
                None => kept.push(*k),
                Some(value) if named => {
                    bail!("{what} column {name}: its values are all alike ({value}); leave it out")
                }
                Some(value) => warnings.push(format!(
                    "input column {name}: its values are all alike ({value}); it is left out"
                )),
            }
        }
        *columns = kept;
    }
    Ok(())
}

/// Puts the variables of categories in the place of columns of words.
///
/// One variable for each category but the first: with one for the first, too, they would always
/// sum to 1, and the guarantee would be about a direction in which no two rows differ.
fn encode(table: &mut Cow<'_, Table>, roles: &mut Roles, categories: &[Category]) -> Result<()> {
    for category in categories.iter().filter(|c| c.names.len() > 1) {
        let mut variables = Vec::new();
        for (k, name) in category.names.iter().enumerate().skip(1) {
            let name = indicator(&category.column, name);
            ensure!(
                (0..table.columns()).all(|c| table.name(c) != name),
                "two columns are called {name:?}, one of them a category of {}; rename one",
                category.column
            );
            let is = |row: &f64| if *row == k as f64 { 1.0 } else { 0.0 };
            let values: Vec<f64> = category.rows.iter().map(is).collect();
            variables.push(table.columns());
            table.to_mut().push_column(name, &values);
        }
        for columns in [&mut roles.inputs, &mut roles.parameters] {
            if let Some(place) = columns.iter().position(|k| *k == category.at) {
                columns.splice(place..=place, variables.iter().copied());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ModelKind;

    fn table(text: &str) -> Table {
        Table::from_bytes(text.as_bytes(), "t.csv").unwrap()
    }

    fn settings() -> FitSettings {
        FitSettings::new(ModelKind::PlNet, &["y"])
    }

    fn names(table: &Table, columns: &[usize]) -> Vec<String> {
        columns.iter().map(|k| table.name(*k)).collect()
    }

    #[test]
    fn weights_go_with_the_rows_that_are_left() {
        let table = table("a,w,y\n1,0.5,1\n2,1,NA\n3,2,3\n,3,4\n");
        let settings = FitSettings {
            weights: Some("w".into()),
            na: MissingValues::Drop,
            ..settings()
        };
        let chosen = choose(&settings, &table, false).unwrap();
        assert_eq!(chosen.weights, Some(vec![0.5, 2.0]));
        assert_eq!(names(&chosen.table, &chosen.inputs), ["a"]);
        assert_eq!(chosen.table.select(&[0, 2]).unwrap(), [1.0, 1.0, 3.0, 3.0]);
        assert_eq!(
            settings.row_weights(&table).unwrap(),
            Some(vec![0.5, 1.0, 2.0, 3.0])
        );
        let filled = FitSettings {
            na: MissingValues::Mean,
            ..settings
        };
        let chosen = choose(&filled, &table, false).unwrap();
        // The mean of the rows that are left, 1 and 3.
        assert_eq!(
            chosen.table.select(&[0, 2]).unwrap(),
            [1.0, 1.0, 3.0, 3.0, 2.0, 4.0]
        );
    }

    #[test]
    fn what_is_no_weight_is_refused() {
        for (cells, message) in [
            (["1", "-2"], "negative weight, -2"),
            (["0", "0"], "are 0"),
            (["1", "inf"], "inf is not a finite number"),
            (["1", ""], "the cell is empty"),
            (["1", "x"], "\"x\" is not a number"),
        ] {
            let table = table(&format!("a,w,y\n1,{},1\n2,{},2\n", cells[0], cells[1]));
            let settings = FitSettings {
                weights: Some("w".into()),
                ..settings()
            };
            let error = settings.row_weights(&table).unwrap_err().to_string();
            assert!(
                error.starts_with("weights: ") && error.contains(message),
                "{error}"
            );
        }
    }

    #[test]
    fn categories_stand_where_their_column_stood() {
        let rows: String = (0..12)
            .map(|k| {
                format!(
                    "{k},{},{},{},{}\n",
                    ["u", "v"][k % 2],
                    k * k,
                    [3, 1, 20][k % 3],
                    k
                )
            })
            .collect();
        let table = table(&format!("a,side,b,zone,y\n{rows}"));
        let settings = FitSettings {
            categories: vec!["zone".into(), "side".into()],
            params: vec!["zone".into()],
            ..settings()
        };
        let chosen = choose(&settings, &table, false).unwrap();
        assert_eq!(names(&chosen.table, &chosen.inputs), ["a", "side=v", "b"]);
        assert_eq!(names(&chosen.table, &chosen.parameters), ["zone=3", "zone=20"]);
        assert_eq!(chosen.categories["zone"], ["1", "3", "20"]);
        let zones = chosen.table.select(&chosen.parameters).unwrap();
        assert_eq!(zones[..6], [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        // The table of the run is the one that was given.
        assert_eq!(table.columns(), 5);
    }

    #[test]
    fn constant_columns_are_left_out_unless_they_are_named() {
        let rows: String = (0..12).map(|k| format!("{k},5,{}\n", k * k)).collect();
        let table = table(&format!("a,five,y\n{rows}"));
        let chosen = choose(&settings(), &table, false).unwrap();
        assert_eq!(names(&chosen.table, &chosen.inputs), ["a"]);
        assert!(chosen.warnings[0].contains("five") && chosen.warnings.len() == 1);
        let named = FitSettings {
            inputs: Some(vec!["a".into(), "five".into()]),
            ..settings()
        };
        assert_eq!(choose(&named, &table, false).unwrap().inputs, [0, 1]);
        let as_they_are = FitSettings {
            no_standardize: true,
            ..settings()
        };
        assert_eq!(choose(&as_they_are, &table, false).unwrap().inputs, [0, 1]);
        let none = FitSettings {
            exclude: vec!["a".into()],
            ..settings()
        };
        let error = choose(&none, &table, false).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("no columns are left") && e.contains("five")));
    }
}
