//! Sentences that are broken at words where the terminal ends.
//!
//! Invariant: a word, such as a path that somebody copies, is never broken.

use unicode_width::UnicodeWidthStr;

use super::styled::{Style, Styled, visible};
use crate::terminal::Look;

/// A sentence in as many lines as it needs.
pub(crate) fn paragraph(text: &str, look: Look) -> Vec<String> {
    broken(&visible(text), look.width)
}

/// A figure behind its label, which has so many columns: what does not fit into the line goes on below itself.
pub(crate) fn entry(label: &str, columns: usize, text: &str, look: Look) -> Vec<String> {
    let room = look.width.map(|width| width.saturating_sub(columns));
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

impl Look {
    /// A heading.
    pub(crate) fn heading(self, text: &str) -> String {
        let line = |line: &String| Styled::new(Style::Heading, line).render(self);
        paragraph(text, self).iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{entry, paragraph};
    use crate::terminal::Look;

    #[test]
    fn sentences_are_broken_at_words() {
        let look = Look { width: Some(20), color: false };
        assert_eq!(paragraph("150 MB in 143 arenas held by Python", look), ["150 MB in 143 arenas", "held by Python"]);
        assert_eq!(
            paragraph("in /a/path/that/is/copied.bin, whole", look),
            ["in", "/a/path/that/is/copied.bin,", "whole"]
        );
        assert_eq!(
            entry("Peak", 6, "311 MB in 15,433 allocations", look),
            ["Peak  311 MB in", "      15,433", "      allocations"]
        );
        assert_eq!(entry("Peak", 6, "311 MB, 漢字漢字漢字", look), ["Peak  311 MB,", "      漢字漢字漢字"]);
    }

    #[test]
    fn pipes_get_whole_lines() {
        let look = Look { width: None, color: false };
        assert_eq!(paragraph("150 MB in 143 arenas  held by Python", look), ["150 MB in 143 arenas  held by Python"]);
    }
}
