//! What stands for a missing value.

/// Where numbers are expected.
const AMONG_NUMBERS: [&str; 12] = [
    "", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "?", "-", ".",
];

/// Where words are: a class may well be called "-" or "None".
const AMONG_WORDS: [&str; 8] = ["", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"];

fn is_one_of(cell: &str, list: &[&str]) -> bool {
    // None of them is longer, and most cells are numbers.
    cell.len() <= 4 && list.iter().any(|m| cell.eq_ignore_ascii_case(m))
}

/// Whether a cell of a column of numbers stands for a missing value.
pub(super) fn number(cell: &str) -> bool {
    is_one_of(cell, &AMONG_NUMBERS)
}

/// Whether a cell of a column of classes or categories stands for a missing value.
pub(super) fn word(cell: &str) -> bool {
    is_one_of(cell, &AMONG_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minus_is_a_missing_number_and_a_class() {
        for cell in ["", "NA", "NaN", "null", "NULL", "?", "N/A"] {
            assert!(number(cell) && word(cell), "{cell:?}");
        }
        for cell in ["-", ".", "None"] {
            assert!(number(cell) && !word(cell), "{cell:?}");
        }
        for cell in ["0", "-1", "inf", "x", "nano"] {
            assert!(!number(cell) && !word(cell), "{cell:?}");
        }
    }
}
