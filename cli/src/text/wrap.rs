//! Wraps sentences at the terminal's width.
//!
//! Invariant: words are never broken, so that paths can be copied.

use unicode_width::UnicodeWidthStr;

use super::styled::{Style, Styled, visible};
use crate::terminal::TextFormat;

/// A sentence, wrapped to lines.
pub(crate) fn paragraph(text: &str, format: TextFormat) -> Vec<String> {
    broken(&visible(text), format.width)
}

/// A label of `columns` columns and a text; further lines of the text are indented.
pub(crate) fn entry(label: &str, columns: usize, text: &str, format: TextFormat) -> Vec<String> {
    let room = format.width.map(|width| width.saturating_sub(columns));
    let indented = |(number, line): (usize, &String)| match number {
        0 => format!("{label:columns$}{line}"),
        _ => format!("{:columns$}{line}", ""),
    };
    broken(&visible(text), room).iter().enumerate().map(indented).collect()
}

fn broken(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room.filter(|room| text.width() > *room) else { return vec![text.into()] };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

impl TextFormat {
    /// A heading.
    pub(crate) fn heading(self, text: &str) -> String {
        let line = |line: &String| Styled::new(Style::Heading, line).render(self);
        paragraph(text, self).iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{entry, paragraph};
    use crate::terminal::TextFormat;

    #[test]
    fn sentences_are_broken_at_words() {
        let format = TextFormat { width: Some(20), color: false };
        assert_eq!(
            paragraph("150 MB in 143 arenas held by Python", format),
            ["150 MB in 143 arenas", "held by Python"]
        );
        assert_eq!(
            paragraph("in /a/path/that/is/copied.bin, whole", format),
            ["in", "/a/path/that/is/copied.bin,", "whole"]
        );
        assert_eq!(
            entry("Peak", 6, "311 MB in 15,433 allocations", format),
            ["Peak  311 MB in", "      15,433", "      allocations"]
        );
        assert_eq!(entry("Peak", 6, "311 MB, 漢字漢字漢字", format), ["Peak  311 MB,", "      漢字漢字漢字"]);
    }

    #[test]
    fn pipes_get_whole_lines() {
        let format = TextFormat { width: None, color: false };
        assert_eq!(paragraph("150 MB in 143 arenas  held by Python", format), ["150 MB in 143 arenas  held by Python"]);
    }
}
