//! Tables as text: cells between separators, a line for each row.

use csv::StringRecord;

use super::Table;
use super::builder::Builder;
use super::header::{FirstLine, Header, first_line};
use super::separator::{begins_comment, guess, is_number};
use super::{decimal, encoding};
use crate::error::{Error, Result, ensure};

pub(super) fn read(bytes: &[u8], source: String) -> Result<Table> {
    let (text, note) = encoding::text(bytes, &source)?;
    let mut notes = Vec::from_iter(note);
    let separator = guess(&text);
    let mut reader = csv_reader(&text, separator, Some(b'#'));
    let mut lines = Lines::new(&text);
    let mut header: Option<Header> = None;
    let mut rows: Option<Builder> = None;
    let mut record = StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|e| Error::Data(format!("{source}: {e}")))?
    {
        let start = record.position().map_or(0, |p| p.byte() as usize);
        if !lines.advance(start) {
            continue;
        }
        let line = lines.line;
        let mut cells = cells_of(&record, separator);
        let width = (rows.as_ref().map(|r| r.points.len())).or(header.as_ref().map(|h| h.names.len()));
        if cells.iter().all(|c| c.is_empty()) && cells.len() < 2 && width != Some(1) {
            // A line of blanks.
            continue;
        }
        if rows.is_none() && header.is_none() {
            header = lines.commented_header(&cells, separator, &source);
            if header.is_some() {
                notes.push(format!("{source}: the names of columns are those in a comment"));
            } else {
                let (names, doubt) = match first_line(&cells, separator) {
                    FirstLine::Names => (true, None),
                    FirstLine::Row => (false, None),
                    FirstLine::Either { names: true } => (true, Some("as names of columns, not as a row")),
                    FirstLine::Either { names: false } => (false, Some("as a row, not as names of columns")),
                };
                notes.extend(
                    doubt.map(|how| format!("{source}, line {line}: has numbers and words; read {how}")),
                );
                if names {
                    header = Some(Header::new(&cells, &source)?);
                    continue;
                }
            }
        }
        if rows.is_none()
            && let Some(header) = &mut header
        {
            header.fit(&cells, separator);
        }
        if header
            .as_ref()
            .is_some_and(|h| h.trailing && cells.len() == h.names.len() + 1)
            && let Some(last) = cells.pop()
        {
            ensure!(
                last.is_empty(),
                "{source}, line {line}: column {} has no name",
                cells.len() + 1
            );
        }
        let columns = header.as_ref().map_or(cells.len(), |h| h.names.len());
        let rows = rows.get_or_insert_with(|| Builder::new(columns));
        let columns = rows.points.len();
        ensure!(
            cells.len() == columns,
            "{source}, line {line}: {} cells where {columns} are expected{}",
            cells.len(),
            match columns == 1 && decimal::with_comma(&cells.join(",")).is_some() {
                true => "; decimal commas need another separator of columns, such as ;",
                false => "",
            }
        );
        rows.places.push(rows.rows(), line);
        for cell in cells {
            rows.text(cell);
        }
    }
    let Some(mut rows) = rows else {
        return Err(Error::Data(format!("{source}: there are no rows of numbers")));
    };
    notes.extend(decimal::settle(&mut rows, separator, &source));
    let index = header.as_ref().is_some_and(|h| h.index);
    let mut table = rows.finish(source, header.map(|h| h.names)).with_index(index);
    table.forget_numbers();
    table.notes = notes;
    Ok(table)
}

fn csv_reader(text: &str, separator: u8, comment: Option<u8>) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(separator)
        .comment(comment)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes())
}

/// The cells of a line; many spaces are one.
fn cells_of(record: &StringRecord, separator: u8) -> Vec<&str> {
    record
        .iter()
        .filter(|cell| separator != b' ' || !cell.is_empty())
        .collect()
}

/// Where the reader is in the text, and the last comment on the way.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: u64,
    comment: Option<&'a str>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Lines {
            text,
            at: 0,
            line: 1,
            comment: None,
        }
    }

    /// Moves on to the record that begins behind `from`; false if it is a comment.
    fn advance(&mut self, from: usize) -> bool {
        let bytes = self.text.as_bytes();
        let rest_of_line = |start: usize| {
            let length = bytes[start..].iter().position(|b| matches!(b, b'\n' | b'\r'));
            length.map_or(bytes.len(), |n| start + n)
        };
        let mut start = from;
        // What the reader has skipped.
        while let Some(b'\n' | b'\r' | b'#') = bytes.get(start) {
            if bytes[start] == b'#' {
                let end = rest_of_line(start);
                self.comment = self.text.get(start..end);
                start = end;
            } else {
                start += 1;
            }
        }
        self.line += line_ends(&bytes[self.at..start]);
        self.at = start;
        let is_comment = bytes.get(start).is_some_and(|b| begins_comment(*b));
        if is_comment {
            self.comment = self.text.get(start..rest_of_line(start));
        }
        !is_comment
    }

    /// The last comment as the header of a table that has none, if it has a name for each cell of
    /// the first row; NumPy and gnuplot write so.
    fn commented_header(&self, row: &[&str], separator: u8, source: &str) -> Option<Header> {
        if row.len() < 2 || !row.iter().any(|c| is_number(c, separator)) {
            return None;
        }
        let comment = self.comment?;
        // The sign is a part of the name where nothing is between them.
        let bare = comment[1..]
            .starts_with([' ', '\t'])
            .then(|| comment[1..].trim_start());
        bare.into_iter().chain([comment]).find_map(|text| {
            let mut record = StringRecord::new();
            csv_reader(text, separator, None).read_record(&mut record).ok()?;
            let cells = cells_of(&record, separator);
            let names =
                cells.len() == row.len() && !cells.iter().any(|c| c.is_empty() || is_number(c, separator));
            names.then(|| Header::new(&cells, source).ok()).flatten()
        })
    }
}

/// Ends of lines, of whatever system.
fn line_ends(bytes: &[u8]) -> u64 {
    let ends = (0..bytes.len())
        .filter(|k| bytes[*k] == b'\n' || (bytes[*k] == b'\r' && bytes.get(k + 1) != Some(&b'\n')));
    ends.count() as u64
}
