//! Styled text, and its width on a terminal.
//!
//! Invariant: styled text has no control characters; wide characters count as two columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::terminal::TextFormat;

/// The role of a piece of text, which determines its appearance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// Normal text.
    #[default]
    Plain,
    /// A title or column header.
    Heading,
    /// Less important: paths, branches, and figures that are a small share of the total.
    Dim,
    /// A function of own code.
    OwnCode,
    /// A large share of the total.
    Large,
    /// Half of the total or more.
    Largest,
    /// Growth.
    Grown,
    /// Decrease.
    Shrunk,
    /// The prefix of a warning.
    Warning,
    /// The prefix of an error.
    Error,
}

impl Style {
    /// The style for a share of a total: from half, a tenth, a hundredth, or less.
    pub(crate) fn of_share(part: u64, whole: u64) -> Self {
        match part as f64 / whole.max(1) as f64 {
            share if share >= 0.5 => Self::Largest,
            share if share >= 0.1 => Self::Large,
            share if share >= 0.01 => Self::Plain,
            _ => Self::Dim,
        }
    }

    /// The parameters of its escape sequence (ECMA-48, SGR).
    fn parameters(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Heading | Self::Large => "1",
            Self::Dim => "2",
            Self::OwnCode => "1;36",
            Self::Largest | Self::Grown | Self::Error => "1;31",
            Self::Shrunk => "32",
            Self::Warning => "1;33",
        }
    }
}

/// Text of several styles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Styled {
    pieces: Vec<(Style, String)>,
}

impl Styled {
    /// Text of one style.
    pub(crate) fn new(style: Style, text: impl AsRef<str>) -> Self {
        Self::default().and(style, text)
    }

    /// Appends text.
    pub(crate) fn and(mut self, style: Style, text: impl AsRef<str>) -> Self {
        let text = visible(text.as_ref());
        if !text.is_empty() {
            self.pieces.push((style, text));
        }
        self
    }

    /// Width in terminal columns.
    pub(crate) fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.width()).sum()
    }

    /// The text without styles.
    pub(crate) fn words(&self) -> String {
        self.pieces.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// Cuts the end if it is longer than `width`.
    pub(crate) fn cut(self, width: Option<usize>) -> Self {
        let Some(width) = width.filter(|width| self.width() > *width) else { return self };
        let mut left = width.saturating_sub(1);
        let mut cut = Self::default();
        for (style, text) in self.pieces {
            let kept = beginning(&text, left);
            left -= kept.width();
            let whole = kept.len() == text.len();
            cut = cut.and(style, kept);
            if !whole {
                return cut.and(style, "…");
            }
        }
        cut
    }

    /// The text with escape sequences, if `format` has colours.
    pub(crate) fn render(&self, format: TextFormat) -> String {
        let piece = |(style, text): &(Style, String)| match style.parameters() {
            parameters if format.color && !parameters.is_empty() => format!("\x1b[{parameters}m{text}\x1b[0m"),
            _ => text.clone(),
        };
        self.pieces.iter().map(piece).collect()
    }
}

impl<T: AsRef<str>> From<T> for Styled {
    fn from(text: T) -> Self {
        Self::new(Style::Plain, text)
    }
}

/// A text with control characters escaped.
pub(crate) fn visible(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let escaped = |char: char| if char.is_control() { char.escape_default().collect() } else { String::from(char) };
    text.chars().map(escaped).collect()
}

/// The longest prefix that fits.
pub(super) fn beginning(text: &str, room: usize) -> &str {
    let mut used = 0;
    let over = text.char_indices().find(|(_, char)| {
        used += char.width().unwrap_or(0);
        used > room
    });
    over.map_or(text, |(at, _)| &text[..at])
}

/// The longest suffix that fits.
pub(super) fn end(text: &str, room: usize) -> &str {
    let mut used = 0;
    let over = text.char_indices().rev().find(|(_, char)| {
        used += char.width().unwrap_or(0);
        used > room
    });
    over.map_or(text, |(at, char)| &text[at + char.len_utf8()..])
}

/// Cuts the middle if the text does not fit.
pub(super) fn without_middle(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.into();
    }
    let room = room.saturating_sub(1);
    let first = beginning(text, room.div_ceil(2));
    format!("{first}…{}", end(text, room - first.width().min(room)))
}

#[cfg(test)]
mod tests {
    use super::{Style, Styled, without_middle};
    use crate::terminal::TextFormat;

    #[test]
    fn escape_sequences_take_no_width() {
        let text = Styled::new(Style::OwnCode, "load").and(Style::Dim, " at report.py:9").and(Style::Plain, "");
        assert_eq!(text.width(), 19);
        assert_eq!(text.words(), "load at report.py:9");
        let [plain, colored] = [false, true].map(|color| text.render(TextFormat { width: None, color }));
        assert_eq!(
            (plain.as_str(), colored.as_str()),
            ("load at report.py:9", "\x1b[1;36mload\x1b[0m\x1b[2m at report.py:9\x1b[0m")
        );
        assert_eq!(
            text.cut(Some(7)).render(TextFormat { width: None, color: true }),
            "\x1b[1;36mload\x1b[0m\x1b[2m a\x1b[0m\x1b[2m…\x1b[0m"
        );
    }

    #[test]
    fn control_characters_of_names_are_shown() {
        assert_eq!(Styled::from("a\x1b[2Jb").render(TextFormat { width: None, color: true }), "a\\u{1b}[2Jb");
    }

    #[test]
    fn wide_characters_count_as_two() {
        assert_eq!(Styled::from("漢字 x").width(), 6);
        assert_eq!(without_middle("漢字漢字漢字", 8), "漢字…字");
        assert_eq!(without_middle("abcdef", 6), "abcdef");
        assert_eq!(without_middle("abcdef", 5), "ab…ef");
        assert_eq!(Styled::from("漢字漢字").cut(Some(6)).words(), "漢字…");
    }

    #[test]
    fn figures_are_weighted_by_their_share() {
        let styles = [100, 50, 49, 10, 9, 1, 0].map(|part| Style::of_share(part, 100));
        let [most, large, plain, dim] = [Style::Largest, Style::Large, Style::Plain, Style::Dim];
        assert_eq!(styles, [most, most, large, large, plain, plain, dim]);
        assert_eq!(Style::of_share(0, 0), dim);
    }
}
