//! Decimal commas.

use super::builder::Builder;

/// The number that is written with a decimal comma, if a cell is one.
pub(super) fn with_comma(cell: &str) -> Option<f64> {
    let (whole, rest) = cell.split_once(',')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b"+-eE".contains(&b));
    if digits == 0 || !plain(whole) || !plain(rest) {
        return None;
    }
    let value: f64 = format!("{whole}.{rest}").parse().ok()?;
    value.is_finite().then_some(value)
}

/// Whether the comma may as well be there to group thousands.
fn may_be_thousands(cell: &str) -> bool {
    let Some((whole, rest)) = cell.split_once(',') else {
        return false;
    };
    let whole = whole.trim_start_matches(['+', '-']);
    (1..=3).contains(&whole.len())
        && !whole.starts_with('0')
        && rest.len() == 3
        && rest.bytes().all(|b| b.is_ascii_digit())
}

/// Reads columns with decimal commas as numbers, and says so where it might be wrong.
///
/// A column is one if it has such numbers and none with a point. `1,234` may as well be 1234: where
/// a column has no other numbers with a comma, another column must have them, or the table must be
/// separated by semicolons, as where commas are decimal, and have no decimal points at all.
pub(super) fn settle(cells: &mut Builder, separator: u8, source: &str) -> Option<String> {
    if separator == b',' {
        return None;
    }
    let columns = cells.points.len();
    let with_commas = |words: &[String]| {
        words
            .iter()
            .filter(|c| with_comma(c).is_some())
            .cloned()
            .collect::<Vec<_>>()
    };
    let found: Vec<(usize, bool, String)> = (cells.words.iter())
        .filter(|(k, _)| !cells.points[**k])
        .filter_map(|(k, words)| {
            let numbers = with_commas(words);
            let clear = numbers.iter().any(|c| !may_be_thousands(c));
            Some((*k, clear, numbers.first()?.clone()))
        })
        .collect();
    let some_clear = found.iter().any(|(_, clear, _)| *clear);
    let points = cells.points.contains(&true);
    let mut note = None;
    for (column, clear, first) in &found {
        if !clear {
            if points || !(some_clear || separator == b';') {
                continue;
            }
            if !some_clear {
                note = Some(format!(
                    "{source}: numbers like {first} are read with a decimal comma"
                ));
            }
        }
        let Some(words) = cells.words.get(column) else {
            continue;
        };
        for (value, cell) in cells.values.iter_mut().skip(*column).step_by(columns).zip(words) {
            if let Some(number) = with_comma(cell) {
                *value = number;
            }
        }
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_commas_are_told_from_other_commas() {
        for (cell, value) in [("3,25", 3.25), ("-0,5", -0.5), (",5", 0.5), ("2,5E-4", 2.5e-4)] {
            assert_eq!(with_comma(cell), Some(value), "{cell}");
        }
        for cell in ["3,", "3", "1,2,3", "1.234,5", "a,5", "1,5x", "1,e5", ",", "1,-5"] {
            assert_eq!(with_comma(cell), None, "{cell}");
        }
        assert!(may_be_thousands("1,234") && may_be_thousands("-12,000"));
        assert!(!may_be_thousands("0,234") && !may_be_thousands("1,23") && !may_be_thousands("1234,567"));
    }
}
