//! Printing.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use bilip_fit::text::shown_lines;
pub use bilip_fit::text::{list, shown};

/// Prints to standard output; a closed pipe is not an error. A terminal gets no control characters.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let safe;
    let text = match out.is_terminal() {
        true => {
            safe = shown_lines(text);
            &safe
        }
        false => text,
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}
