//! What separates the cells of a line.

use super::decimal;

/// The lines that are looked at.
const LINES: usize = 20;

/// Whether a character begins a comment where it begins a line.
pub(super) fn begins_comment(byte: u8) -> bool {
    byte == b'#' || byte == b'%'
}

/// Whether a cell is a number in a table of this separator.
pub(super) fn is_number(cell: &str, separator: u8) -> bool {
    cell.parse::<f64>().is_ok() || (separator != b',' && decimal::with_comma(cell).is_some())
}

/// Comma, semicolon, tab, bar, or spaces, however many of them.
///
/// The one that makes lines of equally many cells; of several such the one that makes more of the
/// cells numbers, then the one that the first line has more of.
pub(super) fn guess(text: &str) -> u8 {
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .filter(|l| !l.trim().is_empty() && !begins_comment(l.as_bytes()[0]))
        .take(LINES)
        .collect();
    let Some(first) = lines.first() else {
        return b',';
    };
    let count = |separator: u8| split(first, separator).len().saturating_sub(1);
    let visible = [b',', b';', b'\t', b'|'].into_iter().filter(|s| count(*s) > 0);
    let best = visible.max_by_key(|s| (rank(&lines, *s), count(*s), *s == b','));
    let spaces = || (count(b' ') > 0 && rank(&lines, b' ').0 > 0).then_some(b' ');
    best.or_else(spaces).unwrap_or(b',')
}

/// How well a separator goes with lines: whether it makes equally many cells of them, and how many
/// of 1,000 cells are numbers then.
fn rank(lines: &[&str], separator: u8) -> (u8, usize) {
    let rows: Vec<Vec<&str>> = lines.iter().map(|l| split(l, separator)).collect();
    let width = rows.last().map_or(0, Vec::len);
    let same = rows.iter().skip(1).all(|row| row.len() == width);
    let evenness = match rows[0].len() {
        first if same && first == width => 2,
        // Names of the columns, and none of the column of row names.
        first if same && first + 1 == width => 1,
        _ => return (0, 0),
    };
    let cells: usize = rows.iter().map(Vec::len).sum();
    let numbers = rows.iter().flatten().filter(|c| is_number(c, separator)).count();
    (evenness, 1_000 * numbers / cells.max(1))
}

/// The cells of a line, roughly: a quote protects what is behind it until the next.
fn split(line: &str, separator: u8) -> Vec<&str> {
    let mut quoted = false;
    let cells = line.trim_matches(' ').split(move |c: char| {
        quoted ^= c == '"';
        !quoted && c == char::from(separator)
    });
    let cells = cells.map(|c| c.trim().trim_matches('"'));
    cells.filter(|c| separator != b' ' || !c.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_are_told_from_what_cells_have() {
        for (text, separator) in [
            ("a,b\n1,2\n", b','),
            ("a;b\n1;2\n", b';'),
            ("a;b\n1,5;2,5\n", b';'),
            // Without a header, with more commas than semicolons.
            ("3,14;2,71;1,41\n2,5;3,5;1\n", b';'),
            ("time, s;temperature, C\n1,5;2,5\n", b';'),
            ("a\tb\n1,5\t2\n", b'\t'),
            ("a|b\n1|2\n", b'|'),
            ("\"a;b\",c\n1,2\n", b','),
            ("# made by x; y; z\na,b\n1,2\n", b','),
            ("name,tags,x\na,b;c,1\nd,e;f,2\n", b','),
            ("a b  c\n 1 2  3\n", b' '),
            ("a b\nr1 1 2\nr2 3 4\n", b' '),
            // One column whose name has a space.
            ("oven temperature\n1\n2\n", b','),
            ("x\n1\n", b','),
            ("", b','),
        ] {
            assert_eq!(char::from(guess(text)), char::from(separator), "{text:?}");
        }
    }
}
