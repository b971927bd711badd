//! Messages to the person at the terminal.
//!
//! Invariant: messages go to standard error; write errors are ignored.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::terminal::{Color, TextFormat};
use crate::text::{Style, Styled, TextTable, entry, paragraph};

static FORMAT: OnceLock<TextFormat> = OnceLock::new();

/// Sets the colour mode; called before the first message.
pub(crate) fn color(color: Color) {
    let _ = FORMAT.set(TextFormat::of_messages(color));
}

/// The text format of messages.
pub(crate) fn format() -> TextFormat {
    *FORMAT.get_or_init(|| TextFormat::of_messages(Color::Auto))
}

/// Prints a line unchanged.
pub(crate) fn line(text: impl Display) {
    let _ = try_line(text);
}

/// Prints a line unchanged.
///
/// # Errors
/// Nobody reads it any more.
pub(crate) fn try_line(text: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "{text}")
}

/// Prints a sentence, wrapped to the terminal's width.
pub(crate) fn note(text: impl Display) {
    paragraph(&text.to_string(), format()).iter().for_each(line);
}

/// Prints a label and a figure.
pub(crate) fn labelled(label: &str, text: impl Display) {
    const COLUMNS: usize = 14;
    entry(&format!("  {label}"), COLUMNS, &text.to_string(), format()).iter().for_each(line);
}

/// Prints the rows of a table, indented below a figure.
pub(crate) fn rows(table: &TextTable) {
    table.indented(2, format()).iter().for_each(line);
}

/// Prints a warning.
pub(crate) fn warning(text: impl Display) {
    with_prefix(Style::Warning, "warning:", &text.to_string());
}

/// Prints an error.
pub(crate) fn error(text: impl Display) {
    with_prefix(Style::Error, "error:", &text.to_string());
}

/// Prints a sentence that begins with this word, wrapped to the terminal's width.
fn with_prefix(style: Style, word: &str, text: &str) {
    let mut first = true;
    for lines in text.split('\n') {
        let whole = if first { format!("{word} {lines}") } else { lines.into() };
        for broken in paragraph(&whole, format()) {
            let begin = broken.strip_prefix(word).filter(|_| std::mem::take(&mut first));
            line(begin.map_or_else(|| broken.clone(), |rest| Styled::new(style, word).render(format()) + rest));
        }
    }
}
