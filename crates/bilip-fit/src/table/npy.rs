//! NumPy arrays.

use super::Table;
use super::builder::Builder;
use crate::error::{Error, Result, bail, ensure};

/// What a NumPy file begins with.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

pub(super) fn read(bytes: &[u8], source: String) -> Result<Table> {
    fn all<T: npyz::Deserialize>(file: npyz::NpyFile<&[u8]>, to: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        let items = file.data::<T>().map_err(|e| Error::Data(format!("{e}")))?;
        let mut values = Vec::new();
        for item in items {
            values.push(to(item.map_err(|_| Error::Data("the file is cut short".into()))?));
        }
        Ok(values)
    }
    let open = || {
        npyz::NpyFile::new(bytes)
            .map_err(|e| Error::Data(format!("{source}: not a NumPy file that can be read: {e}")))
    };
    let file = open()?;
    let shape: Vec<usize> = file.shape().iter().map(|d| *d as usize).collect();
    let (rows, columns) = match shape[..] {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        // Images and the like: one row each.
        [rows, ref rest @ ..] if file.order() == npyz::Order::C => (
            rows,
            (rest.iter().try_fold(1usize, |n, d| n.checked_mul(*d)))
                .ok_or_else(|| Error::Data(format!("{source}: an array of shape {shape:?} cannot be")))?,
        ),
        _ => bail!("{source}: an array of shape {shape:?}, where a table of rows and columns is needed"),
    };
    let by_columns = file.order() == npyz::Order::Fortran;
    let dtype = file.dtype().descr();
    let kind = dtype.trim_matches(|c| "'\"<>|=".contains(c)).to_string();
    let values = match kind.as_str() {
        "f8" => all::<f64>(file, |v| v),
        "f4" => all::<f32>(file, f64::from),
        "i8" => all::<i64>(file, |v| v as f64),
        "i4" => all::<i32>(file, f64::from),
        other => Err(Error::Data(format!(
            "numbers of type {other} are not read; use float64"
        ))),
    }
    .map_err(|e| Error::Data(format!("{source}: {e}")))?;
    ensure!(rows > 0 && columns > 0, "{source}: there are no rows of numbers");
    ensure!(
        rows.checked_mul(columns) == Some(values.len()),
        "{source}: the file is cut short"
    );
    let mut cells = Builder::new(columns);
    for k in 0..rows * columns {
        cells.number(match by_columns {
            true => values[(k % columns) * rows + k / columns],
            false => values[k],
        });
    }
    Ok(cells.finish(source, None))
}
