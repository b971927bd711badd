//! Labels of code in text: function, location, and the library function that own code called.
//!
//! Invariant: the own-code function is cut last, and line numbers are never cut.

use unicode_width::UnicodeWidthStr;

use super::styled::{Style, Styled, without_middle};
use crate::units::plural;

/// Separates own code from the function that it called.
const VIA: &str = ", via ";
/// Separates the first and last call of a chain.
const THEN: &str = " → ";
/// Separates a function from its location.
const AT: &str = " at ";
/// Minimum width for the called function; with less it is omitted.
const LEAST_VIA: usize = 12;
/// Minimum width for locations; with less they are omitted.
const LEAST_PLACE: usize = 24;

/// A function with its location, and related texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    /// Prefix: the branches of a tree.
    before: String,
    function: String,
    /// File and line; empty if unknown.
    place: String,
    /// Whether the function is own code.
    own: bool,
    /// Function and location of the called function, or of the last call of a chain.
    via: Option<(String, String)>,
    /// The separator before `via`.
    joint: String,
    /// A remark on `via`, such as the number of further functions.
    remark: String,
}

impl Label {
    /// The label of a function.
    pub(crate) fn new(function: impl Into<String>, place: impl Into<String>, own: bool) -> Self {
        Self { function: function.into(), place: place.into(), own, ..Self::default() }
    }

    /// Adds a prefix.
    pub(crate) fn behind(self, before: impl Into<String>) -> Self {
        Self { before: before.into(), ..self }
    }

    /// Adds the called function, with a remark.
    pub(crate) fn via(self, function: impl Into<String>, place: impl Into<String>, remark: impl Into<String>) -> Self {
        let via = Some((function.into(), place.into()));
        Self { via, joint: VIA.into(), remark: remark.into(), ..self }
    }

    /// Adds the last call of a chain that begins with this label, with `between` calls between them.
    pub(crate) fn then(self, between: usize, function: impl Into<String>, place: impl Into<String>) -> Self {
        let joint = match between {
            0 => THEN.into(),
            number => format!("{THEN}{}{THEN}", plural(number as u64, "call", "calls")),
        };
        Self { via: Some((function.into(), place.into())), joint, ..self }
    }

    /// The uncut label.
    pub(crate) fn whole(&self) -> Styled {
        let via = self.via.as_ref().map(|(function, place)| (function.as_str(), place.as_str()));
        self.styled(&self.function, &self.place, via, &self.remark)
    }

    /// Fits the label into a width. Omits, in this order: the location of the called function, the remark, the called
    /// function, directories of its own path, and the middle of the function name.
    pub(crate) fn fit(&self, width: Option<usize>) -> Styled {
        let whole = self.whole();
        let Some(width) = width.filter(|width| whole.width() > *width) else { return whole };
        if let Some((function, _)) = &self.via {
            // For a chain, both ends are more informative than the location of the first.
            let place = if self.joint.starts_with(THEN) { "" } else { &self.place };
            for (place, remark) in [(&*self.place, &*self.remark), (place, "")] {
                let shorter = self.styled(&self.function, place, Some((function, "")), remark);
                if shorter.width() <= width {
                    return shorter;
                }
            }
        }
        if let (Some((last, _)), true) = (&self.via, self.joint.starts_with(THEN)) {
            let ends = self.styled(&self.function, "", Some(("", "")), "");
            if let Some(left) = width.checked_sub(ends.width()).filter(|left| *left >= LEAST_VIA) {
                return self.styled(&self.function, "", Some((&without_middle(last, left), "")), "");
            }
        }
        let own = self.styled(&self.function, &self.place, None, "");
        let Some(left) = width.checked_sub(own.width()) else { return self.short(width) };
        match (left.checked_sub(self.joint.width()).filter(|left| *left >= LEAST_VIA), &self.via) {
            (Some(left), Some((function, _))) => {
                self.styled(&self.function, &self.place, Some((&without_middle(function, left), "")), "")
            }
            // Indicate that there are further calls.
            _ if self.joint.starts_with(THEN) && left > THEN.width() => own.and(Style::Dim, THEN.to_owned() + "…"),
            _ => own,
        }
    }

    /// Function and location, if even those do not fit.
    fn short(&self, width: usize) -> Styled {
        let room = width.saturating_sub(self.before.width());
        if self.place.is_empty() || room < LEAST_PLACE {
            return self.styled(&without_middle(&self.function, room), "", None, "");
        }
        let left = room.saturating_sub(self.function.width() + AT.len());
        if let Some(place) = without_directories(&self.place, left) {
            return self.styled(&self.function, &place, None, "");
        }
        // The file name gets at most half of the width, the function the rest.
        let place = without_middle(file(&self.place), room / 2);
        let function = without_middle(&self.function, room - place.width() - AT.len());
        self.styled(&function, &place, None, "")
    }

    fn styled(&self, function: &str, place: &str, via: Option<(&str, &str)>, remark: &str) -> Styled {
        let at = |place: &str| if place.is_empty() { String::new() } else { format!("{AT}{place}") };
        let style = if self.own { Style::OwnCode } else { Style::Plain };
        let styled = Styled::new(Style::Dim, &self.before).and(style, function).and(Style::Dim, at(place));
        match via {
            None => styled,
            Some((function, place)) => {
                let place = at(place) + remark;
                styled.and(Style::Dim, &self.joint).and(Style::Plain, function).and(Style::Dim, place)
            }
        }
    }
}

/// A path without as many leading directories as necessary; `None` if the file name does not fit.
fn without_directories(path: &str, room: usize) -> Option<String> {
    let rest = path.match_indices('/').map(|(at, _)| &path[at..]).find(|rest| rest.width() < room);
    if path.width() <= room { Some(path.into()) } else { rest.map(|rest| format!("…{rest}")) }
}

/// The last part of a path.
fn file(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, file)| file)
}

#[cfg(test)]
mod tests {
    use super::Label;

    #[test]
    fn directories_are_cut_first_and_then_functions() {
        let label = Label::new("Block.copy", "/srv/app/lib/internals/blocks.py:822", true);
        let cut = |width| label.fit(Some(width)).words();
        assert_eq!(cut(50), "Block.copy at /srv/app/lib/internals/blocks.py:822");
        assert_eq!(cut(49), "Block.copy at …/app/lib/internals/blocks.py:822");
        assert_eq!(cut(39), "Block.copy at …/internals/blocks.py:822");
        assert_eq!(cut(29), "Block.copy at …/blocks.py:822");
        assert_eq!(cut(26), "Bloc…copy at blocks.py:822");
        assert_eq!(cut(16), "Block.copy");
        assert_eq!(cut(8), "Bloc…opy");
        assert_eq!(label.fit(None).words(), "Block.copy at /srv/app/lib/internals/blocks.py:822");
    }

    #[test]
    fn own_code_keeps_its_room() {
        let label =
            Label::new("load", "report.py:5", true).via("DataFrame.copy", "pandas/core/frame.py:578", " and 2 more");
        let cut = |width| label.fit(Some(width)).words();
        assert_eq!(cut(80), "load at report.py:5, via DataFrame.copy at pandas/core/frame.py:578 and 2 more");
        assert_eq!(cut(70), "load at report.py:5, via DataFrame.copy and 2 more");
        assert_eq!(cut(40), "load at report.py:5, via DataFrame.copy");
        assert_eq!(cut(38), "load at report.py:5, via DataFr…e.copy");
        assert_eq!(cut(30), "load at report.py:5");
        assert_eq!(cut(16), "load");
    }

    #[test]
    fn rows_of_calls_keep_the_first() {
        let label = Label::new("loads", "json/__init__.py:346", false).then(2, "raw_decode", "json/decoder.py:353");
        let cut = |width| label.fit(Some(width)).words();
        assert_eq!(cut(80), "loads at json/__init__.py:346 → 2 calls → raw_decode at json/decoder.py:353");
        assert_eq!(cut(60), "loads at json/__init__.py:346 → 2 calls → raw_decode");
        assert_eq!(cut(40), "loads → 2 calls → raw_decode");
        assert_eq!(cut(27), "loads at …/__init__.py:346");
        let long = Label::new("loads", "a.py:1", false).then(2, "a_long_name_of_a_function", "");
        assert_eq!(long.fit(Some(35)).words(), "loads → 2 calls → a_long_n…function");
        assert_eq!(label.behind("───").fit(Some(30)).words(), "───loads at …/__init__.py:346");
    }

    #[test]
    fn branches_take_their_part() {
        let label = Label::new("漢字の関数", "/srv/ünï/é.py:1", false).behind("│ └ ");
        assert_eq!(label.fit(Some(30)).words(), "│ └ 漢字の関数 at …/ünï/é.py:1");
        for width in 12..40 {
            assert!(label.fit(Some(width)).width() <= width, "{width}");
        }
    }
}
