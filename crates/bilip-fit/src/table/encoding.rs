//! From the bytes of a text file to its text.

use std::borrow::Cow;

use crate::error::{Result, bail, ensure};
use crate::text::shown;

/// The characters of Windows-1252 for the bytes 0x80 to 0x9f; `\0` where it has none. All other
/// bytes are those of Latin-1, which are the first characters of Unicode.
const WINDOWS: [char; 32] = [
    '€', '\0', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\0', 'Ž', '\0', '\0', '‘', '’', '“',
    '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\0', 'ž', 'Ÿ',
];

/// The text of a file, and what to say of how it was read.
///
/// What is not UTF-8 is read as Windows-1252, of which Latin-1 is a part for text, with a note: that
/// is what spreadsheets write in Western Europe and America. A wrong guess changes names and words
/// alone, for numbers are the same bytes in all of them. Files in UTF-16 are known by their mark.
///
/// # Errors
/// When it is no text.
pub(super) fn text<'a>(bytes: &'a [u8], source: &str) -> Result<(Cow<'a, str>, Option<String>)> {
    let text: Cow<str> = match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes, source)?.into(),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes, source)?.into(),
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => text.trim_start_matches('\u{feff}').into(),
            Err(error) => return windows(bytes, error.valid_up_to(), source),
        },
    };
    if text.contains('\0') {
        ensure!(
            !(has_zeros(bytes, 0) || has_zeros(bytes, 1)),
            "{source}: looks like UTF-16 without its mark; save it as UTF-8"
        );
        bail!("{source}: neither text nor another table that is known");
    }
    Ok((text, None))
}

/// Whether every second byte is zero, as in UTF-16 of plain English.
fn has_zeros(bytes: &[u8], first: usize) -> bool {
    bytes.len() >= 4 && bytes.iter().skip(first).step_by(2).all(|b| *b == 0)
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16, source: &str) -> Result<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let text: Result<String, _> = char::decode_utf16(pairs.iter().map(|b| unit(*b))).collect();
    match text {
        Ok(text) if rest.is_empty() => Ok(text),
        _ => bail!("{source}: begins like text in UTF-16 and is damaged; save it as UTF-8"),
    }
}

/// Text in Windows-1252; `first` is the first byte that is not UTF-8.
fn windows<'a>(bytes: &[u8], first: usize, source: &str) -> Result<(Cow<'a, str>, Option<String>)> {
    let character = |b: &u8| match b {
        0x80..=0x9f => WINDOWS[usize::from(b - 0x80)],
        b => char::from(*b),
    };
    let text: String = bytes.iter().map(character).collect();
    ensure!(
        !text
            .chars()
            .any(|c| c.is_control() && !"\t\n\r\u{b}\u{c}".contains(c)),
        "{source}: neither text nor another table that is known"
    );
    // The word around the first of these bytes, for users to see whether it is right.
    let is_end = |b: &u8| b.is_ascii() && !b.is_ascii_alphanumeric();
    let start = bytes[..first].iter().rposition(is_end).map_or(0, |k| k + 1);
    let end = bytes[first..]
        .iter()
        .position(is_end)
        .map_or(bytes.len(), |k| first + k);
    let word: String = bytes[start..end].iter().map(character).take(40).collect();
    let note = format!(
        "{source}: not UTF-8; read as Windows-1252 (Latin-1), with words like {:?}",
        shown(&word)
    );
    Ok((text.into(), Some(note)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latin_1_and_windows_are_read_with_a_note() {
        let (read, note) = text(b"temp\xe9rature,\x80,b\n1,2,3\n", "t.csv").unwrap();
        assert_eq!(read, "température,€,b\n1,2,3\n");
        assert_eq!(
            note.unwrap(),
            "t.csv: not UTF-8; read as Windows-1252 (Latin-1), with words like \"température\""
        );
        let (read, note) = text("\u{feff}température\n".as_bytes(), "t").unwrap();
        assert!(read == "température\n" && note.is_none());
    }

    #[test]
    fn utf_16_is_read_by_its_mark_and_named_without() {
        for (mark, unit) in [
            ([0xff, 0xfe], u16::to_le_bytes as fn(u16) -> [u8; 2]),
            ([0xfe, 0xff], u16::to_be_bytes),
        ] {
            let body: Vec<u8> = "é\t𝒳\n1\t2\n".encode_utf16().flat_map(unit).collect();
            let bytes = [&mark[..], &body].concat();
            assert_eq!(text(&bytes, "t").unwrap().0, "é\t𝒳\n1\t2\n");
            let error = text(&bytes[..bytes.len() - 1], "t").unwrap_err().to_string();
            assert!(error.contains("UTF-16"), "{error}");
            let ascii: Vec<u8> = "a\t1\n".encode_utf16().flat_map(unit).collect();
            let error = text(&ascii, "t").unwrap_err().to_string();
            assert!(error.contains("UTF-16 without its mark"), "{error}");
        }
    }

    #[test]
    fn binary_files_are_no_text() {
        for bytes in [&b"a\0b"[..], b"\xe9\x01\x02", b"\x90\xc3\xc3\xc3", b"\x81abc"] {
            let error = text(bytes, "t").unwrap_err().to_string();
            assert!(error.contains("neither text nor"), "{error}");
        }
    }
}
