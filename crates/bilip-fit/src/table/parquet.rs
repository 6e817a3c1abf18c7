//! Parquet files, without their nested columns.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::Table;
use super::builder::Builder;
use super::header::check_names;
use crate::error::{Error, Result, ensure};

/// What pandas calls an index that has no name.
const INDEX: &str = "__index_level_0__";

pub(super) fn read(bytes: &[u8], source: String) -> Result<Table> {
    let damaged = || Error::Data(format!("{source}: the Parquet file is damaged or cut short"));
    // The reader has assertions about what it reads, so that a damaged file can be a panic.
    let table = catch_unwind(AssertUnwindSafe(|| rows(bytes, &source)));
    table.unwrap_or_else(|_| Err(damaged()))
}

fn rows(bytes: &[u8], source: &str) -> Result<Table> {
    let problem = |e: parquet::errors::ParquetError| {
        // Its own words may have several lines.
        let text = e.to_string();
        let line = text.lines().next().unwrap_or_default();
        Error::Data(match line.split_once("Disabled feature at compile time: ") {
            Some((_, name)) => {
                format!("{source}: compression by {name} is not read; write it with snappy, gzip or zstd")
            }
            None => format!("{source}: not a Parquet file that can be read: {line}"),
        })
    };
    let file = SerializedFileReader::new(Bytes::copy_from_slice(bytes)).map_err(problem)?;
    let schema = file.metadata().file_metadata().schema_descr().root_schema_ptr();
    let mut names: Vec<String> = schema.get_fields().iter().map(|f| f.name().to_string()).collect();
    ensure!(!names.is_empty(), "{source}: there are no columns");
    check_names(&names, source)?;
    let mut cells = Builder::new(names.len());
    for row in file.get_row_iter(None).map_err(problem)? {
        let row = row.map_err(problem)?;
        ensure!(
            row.len() == names.len(),
            "{source}: the Parquet file is damaged or cut short"
        );
        for (_, field) in row.get_column_iter() {
            cell(&mut cells, field);
        }
    }
    ensure!(cells.rows() > 0, "{source}: there are no rows of numbers");
    // Last, where pandas puts it; the order of the others is that of the file.
    let index = names.iter().position(|n| n == INDEX);
    if let Some(k) = index
        && !names.iter().any(|n| n == "index")
    {
        names[k] = "index".into();
    }
    let mut table = cells.finish(source.to_string(), Some(names));
    table.index = index;
    Ok(table)
}

fn cell(cells: &mut Builder, field: &Field) {
    match field {
        Field::Null => cells.text(""),
        Field::Bool(v) => cells.number(f64::from(u8::from(*v))),
        Field::Byte(v) => cells.number(f64::from(*v)),
        Field::Short(v) => cells.number(f64::from(*v)),
        Field::Int(v) => cells.number(f64::from(*v)),
        Field::Long(v) => cells.number(*v as f64),
        Field::UByte(v) => cells.number(f64::from(*v)),
        Field::UShort(v) => cells.number(f64::from(*v)),
        Field::UInt(v) => cells.number(f64::from(*v)),
        Field::ULong(v) => cells.number(*v as f64),
        Field::Float16(v) => cells.number(f64::from(*v)),
        Field::Float(v) => cells.number(f64::from(*v)),
        Field::Double(v) => cells.number(*v),
        Field::Str(v) => cells.text(v.trim()),
        // Decimals are numbers as text, times and what is nested are words.
        other => cells.text(&other.to_string()),
    }
}
