//! Text that comes from files, made safe to show.

/// Text for the middle of a line: what would end the line, steer the terminal or turn the direction
/// of reading is escaped, so that a name in a file cannot forge output.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| escaped(c, steers(c))).collect()
}

/// The same for text of several lines.
pub fn shown_lines(text: &str) -> String {
    let keep = |c: char| c == '\n' || c == '\t';
    text.chars().map(|c| escaped(c, steers(c) && !keep(c))).collect()
}

fn escaped(c: char, escape: bool) -> String {
    match escape {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    }
}

/// Control characters, separators of lines, and marks that change the direction of reading.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{feff}'
        )
        // Characters that take no room, so that two names look alike.
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{e0000}'..='\u{e007f}')
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c)
}

/// Names in the middle of a line, with commas between them.
pub fn list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|n| shown(n)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_a_line_or_steer_a_terminal() {
        assert_eq!(shown("température (°C)"), "température (°C)");
        assert_eq!(shown("a\nproved: b"), "a\\nproved: b");
        assert_eq!(shown("\u{1b}[2Jx\u{7f}\u{9b}"), "\\u{1b}[2Jx\\u{7f}\\u{9b}");
        assert_eq!(shown("\u{202e}abc\u{2028}"), "\\u{202e}abc\\u{2028}");
        assert_eq!(shown("a\u{200b}\u{ad}"), "a\\u{200b}\\u{ad}");
        assert_eq!(shown_lines("a\tb\n\u{1b}"), "a\tb\n\\u{1b}");
        assert_eq!(list(&["a".into(), "b\r".into()]), "a, b\\r");
    }
}
