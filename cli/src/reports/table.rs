//! Columns of text, aligned, and cut to the width of a terminal.
//!
//! Invariant: numbers are never cut; the last column is, where there is a width.

use crate::units::count;

/// The line that stands for so many rows that are not shown.
pub(super) fn left_out(rows: u64) -> String {
    format!("  and {} more (-n 0 shows all)", count(rows))
}

/// Rows of cells; all but the last column are aligned to the right.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    rows: Vec<Vec<String>>,
    /// Rows that were left out.
    more: usize,
}

impl TextTable {
    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Leaves out what comes after so many rows, in words.
    pub(super) fn first(mut self, limit: usize) -> Self {
        self.more += self.rows.len().saturating_sub(limit);
        self.rows.truncate(limit);
        self
    }

    /// The lines, each at most `width` characters long where there is a width.
    pub(super) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(|column| self.width(column)).collect();
        let more = (self.more > 0).then(|| left_out(self.more as u64));
        self.rows.iter().map(|row| line(row, &widths, width)).chain(more).collect()
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

fn line(row: &[String], widths: &[usize], width: Option<usize>) -> String {
    let Some((last, others)) = row.split_last() else { return String::new() };
    let mut line = String::new();
    for (cell, width) in others.iter().zip(widths) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    line.push_str("  ");
    let used = line.chars().count();
    line.push_str(&cut(last, width.map(|width| width.saturating_sub(used).max(MIN_LAST))));
    line.trim_end().to_owned()
}

/// Stands between own code and what it called.
const VIA: &str = ", via ";

/// The last column keeps this many characters on the narrowest terminal.
const MIN_LAST: usize = 16;

/// The text, with its middle left out where it is too long: names of functions stand first, line numbers last.
fn cut(text: &str, width: Option<usize>) -> String {
    let len = text.chars().count();
    let Some(width) = width.filter(|width| len > *width) else { return text.into() };
    // Own code comes first, and what it called has the room that is left.
    if let Some((own, through)) = text.split_once(VIA) {
        let left = width.checked_sub(own.chars().count() + VIA.len()).filter(|left| *left >= MIN_LAST);
        let through = left.map(|left| format!("{VIA}{}", cut(through, Some(left))));
        return cut(own, Some(width)) + through.as_deref().unwrap_or_default();
    }
    let room = width - 1;
    let head = head(text, room);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(len + head - room)).collect()
}

/// How many characters stay at the beginning if `room` stay in all. Of `function at directory/file:line` directories go
/// first, and then the function's end, unless the file's name takes too much of the room.
fn head(text: &str, room: usize) -> usize {
    const AT: &str = " at ";
    let parts = text.rsplit_once(AT).map(|(function, place)| {
        let file = place.rsplit_once('/').map_or(place, |(_, file)| file);
        (function.chars().count() + AT.len(), file.chars().count())
    });
    match parts {
        Some((function, file)) if function + file <= room => function,
        Some((_, file)) if file <= room * 2 / 3 => room - file,
        _ => room / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::{TextTable, cut};

    #[test]
    fn columns_are_aligned_and_the_last_is_cut() {
        let mut table = TextTable::default();
        table.row(["1.00 kB", "2", "a function at some/long/path.py:12"].map(Into::into));
        table.row(["12 B", "1,000", "b"].map(Into::into));
        assert_eq!(table.lines(None)[1], "     12 B  1,000  b");
        assert_eq!(table.lines(Some(40))[0], "  1.00 kB      2  a function …path.py:12");
        assert_eq!(table.lines(Some(40))[0].chars().count(), 40);
        assert_eq!(table.first(1).lines(None)[1..], ["  and 1 more (-n 0 shows all)"]);
    }

    #[test]
    fn directories_are_cut_first_and_then_functions() {
        let text = "Block.copy at /srv/app/lib/internals/blocks.py:822";
        assert_eq!(cut(text, Some(38)), "Block.copy at …internals/blocks.py:822");
        assert_eq!(cut(text, Some(28)), "Block.copy at …blocks.py:822");
        assert_eq!(cut(text, Some(22)), "Block.co…blocks.py:822");
        assert_eq!(cut(text, Some(16)), "Block.c…s.py:822");
        assert_eq!(cut("f at /srv/ünï/é.py:1", Some(14)), "f at …ï/é.py:1");
        let own = "load at report.py:5, via DataFrame.copy at pandas/core/frame.py:578";
        assert_eq!(cut(own, Some(50)), "load at report.py:5, via DataFrame.co…frame.py:578");
        assert_eq!([cut(own, Some(30)), cut(own, Some(16))], ["load at report.py:5", "load at…ort.py:5"]);
    }

    #[test]
    fn nothing_is_cut_without_need() {
        assert_eq!(cut("abcdef", Some(6)), "abcdef");
        assert_eq!(cut("abcdef", Some(5)), "ab…ef");
        assert_eq!(cut("abcdef", None), "abcdef");
    }
}
