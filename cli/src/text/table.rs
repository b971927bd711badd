//! Text tables: aligned columns, fitted to the terminal's width.
//!
//! Invariant: numbers are never cut. On narrow terminals, optional columns are omitted first, then long texts are cut.

use memtrack_reader::analysis::Tally;

use super::label::Label;
use super::styled::{Style, Styled};
use crate::terminal::TextFormat;
use crate::units::{count, percent, size, size_within};

/// The line after a list with `rows` further rows.
pub(crate) fn left_out(rows: u64) -> String {
    format!("  and {} more (-n 0 shows all)", count(rows))
}

/// Bytes and their percentage of the total, styled by share.
pub(crate) fn share(bytes: u64, whole: u64) -> [TextCell; 2] {
    [size(bytes), percent(bytes, whole)].map(|text| TextCell::Text(Styled::new(Style::of_share(bytes, whole), text)))
}

/// The same of a sum, with its interval if it is an estimate.
pub(crate) fn share_of(tally: Tally, whole: u64) -> [TextCell; 2] {
    let style = Style::of_share(tally.bytes, whole);
    [sized(tally), percent(tally.bytes, whole)].map(|text| TextCell::Text(Styled::new(style, text)))
}

/// The bytes of a sum, with their interval if they are an estimate.
pub(crate) fn sized(tally: Tally) -> String {
    size_within(tally.bytes, tally.bytes_range())
}

/// A column: its header, and how it behaves if there is little room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextColumn {
    title: &'static str,
    /// Columns with the highest number are omitted first; 0: never.
    optional: u8,
    /// Whether its texts may be cut if there is still too little room.
    cut: bool,
}

/// A column that is never omitted.
pub(crate) const fn column(title: &'static str) -> TextColumn {
    TextColumn { title, optional: 0, cut: false }
}

impl TextColumn {
    /// Makes the column optional; columns with the highest order are omitted first.
    pub(crate) const fn optional(self, order: u8) -> Self {
        Self { optional: order, ..self }
    }

    /// Allows cutting its texts.
    pub(crate) const fn cut(self) -> Self {
        Self { cut: true, ..self }
    }
}

/// A cell.
#[derive(Clone, Debug)]
pub(crate) enum TextCell {
    Text(Styled),
    Label(Label),
}

impl<T: Into<Styled>> From<T> for TextCell {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl From<Label> for TextCell {
    fn from(label: Label) -> Self {
        Self::Label(label)
    }
}

impl TextCell {
    fn width(&self) -> usize {
        match self {
            Self::Text(text) => text.width(),
            Self::Label(label) => label.whole().width(),
        }
    }

    fn fit(&self, width: Option<usize>) -> Styled {
        match self {
            Self::Text(text) => text.clone().cut(width),
            Self::Label(label) => label.fit(width),
        }
    }
}

/// Rows of cells; all but the last column are aligned to the right.
#[derive(Debug)]
pub(crate) struct TextTable {
    columns: Vec<TextColumn>,
    rows: Vec<Vec<TextCell>>,
    /// Optional columns are omitted until the last column has this width.
    room: usize,
    /// Number of omitted rows.
    more: usize,
}

/// Default minimum width of the last column: enough to distinguish function names.
const ROOM: usize = 30;
/// Minimum width of the last column on any terminal.
const LEAST: usize = 8;
/// Minimum width of columns whose texts may be cut.
const LEAST_CUT: usize = 12;

impl TextTable {
    /// An empty table. The header is shown if any column has a title.
    pub(crate) fn new(columns: impl IntoIterator<Item = TextColumn>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new(), room: ROOM, more: 0 }
    }

    /// Sets the minimum width of the last column.
    pub(crate) fn with_room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = TextCell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Keeps the first `limit` rows, and adds a line about the rest.
    pub(crate) fn first(mut self, limit: usize) -> Self {
        self.more += self.rows.len().saturating_sub(limit);
        self.rows.truncate(limit);
        self
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, indented by `columns`.
    pub(crate) fn indented(&self, columns: usize, format: TextFormat) -> Vec<String> {
        let narrower = TextFormat { width: format.width.map(|width| width.saturating_sub(columns)), ..format };
        self.lines(narrower).iter().map(|line| format!("{:columns$}{line}", "")).collect()
    }

    /// The lines, fitted to the width.
    pub(crate) fn lines(&self, format: TextFormat) -> Vec<String> {
        let has_head = self.columns.iter().any(|column| !column.title.is_empty());
        let head =
            self.columns.iter().map(|column| TextCell::Text(Styled::new(Style::Heading, column.title))).collect();
        let head = [head];
        let rows = head[..usize::from(has_head)].iter().chain(&self.rows);
        let mut widths = self.widths(rows.clone());
        let shown = self.shown(&widths, format.width);
        self.narrow(&shown, &mut widths, format.width);
        let more = (self.more > 0).then(|| left_out(self.more as u64));
        rows.map(|row| line(row, &shown, &widths, format)).chain(more).collect()
    }

    fn widths<'a>(&self, rows: impl Iterator<Item = &'a Vec<TextCell>> + Clone) -> Vec<usize> {
        let widest = |column: usize| rows.clone().filter_map(|row| row.get(column)).map(TextCell::width).max();
        (0..self.columns.len()).map(|column| widest(column).unwrap_or(0)).collect()
    }

    /// The columns that are shown.
    fn shown(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let wanted = widths.last().map_or(0, |last| (*last).min(self.room));
        while let Some(width) = width {
            let used = used(&shown, widths);
            let last = shown.iter().map(|column| self.columns[*column].optional).max().unwrap_or(0);
            if last == 0 || used + 2 + wanted <= width {
                break;
            }
            shown.retain(|column| self.columns[*column].optional < last);
        }
        shown
    }

    /// Narrows cuttable columns until the last column has enough width.
    fn narrow(&self, shown: &[usize], widths: &mut [usize], width: Option<usize>) {
        let wanted = widths.last().map_or(0, |last| (*last).min(self.room));
        for column in shown.iter().filter(|column| self.columns[**column].cut) {
            let missing = width.map_or(0, |width| (used(shown, widths) + 2 + wanted).saturating_sub(width));
            widths[*column] -= missing.min(widths[*column].saturating_sub(LEAST_CUT));
        }
    }
}

/// Width of these columns, except the last.
fn used(shown: &[usize], widths: &[usize]) -> usize {
    shown.iter().rev().skip(1).map(|column| widths[*column] + 2).sum()
}

fn line(row: &[TextCell], shown: &[usize], widths: &[usize], format: TextFormat) -> String {
    let Some((last, others)) = shown.split_last() else { return String::new() };
    let mut line = String::new();
    let mut used = 2;
    for column in others {
        let width = widths[*column];
        let text = row.get(*column).map_or_else(Styled::default, |cell| cell.fit(Some(width)));
        line.push_str(&" ".repeat(2 + width.saturating_sub(text.width())));
        line.push_str(&text.render(format));
        used += width + 2;
    }
    line.push_str("  ");
    let room = format.width.map(|width| width.saturating_sub(used).max(LEAST));
    line.push_str(&row.get(*last).map_or_else(Styled::default, |cell| cell.fit(room)).render(format));
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::{TextTable, column, share};
    use crate::terminal::TextFormat;
    use crate::text::Label;

    fn format(width: Option<usize>) -> TextFormat {
        TextFormat { width, color: false }
    }

    #[test]
    fn columns_are_aligned_and_the_last_is_cut() {
        let mut table = TextTable::new([column(""), column(""), column("")]);
        table.row(["1.00 kB".into(), "2".into(), Label::new("a function", "some/long/path.py:12", false).into()]);
        table.row(["12 B", "1,000", "漢字"].map(Into::into));
        assert_eq!(table.lines(format(None))[1], "     12 B  1,000  漢字");
        assert_eq!(table.lines(format(Some(44)))[0], "  1.00 kB      2  a function at …/path.py:12");
        assert_eq!(table.first(1).lines(format(None))[1..], ["  and 1 more (-n 0 shows all)"]);
    }

    #[test]
    fn columns_that_may_go_make_room() {
        let mut table = TextTable::new([
            column("Size"),
            column("Count").optional(1),
            column("Thread").optional(2),
            column("Place"),
        ]);
        table.row(["1.00 kB", "123,456", "12345 worker", "a long name of a function"].map(Into::into));
        assert_eq!(table.lines(format(Some(60)))[0], "     Size    Count        Thread  Place");
        assert_eq!(table.lines(format(Some(58)))[0], "     Size    Count  Place");
        assert_eq!(table.lines(format(Some(40)))[0], "     Size  Place");
        assert_eq!(table.lines(format(Some(30)))[1], "  1.00 kB  a long name of a f…");
    }

    #[test]
    fn texts_that_may_be_cut_make_room() {
        let mut table = TextTable::new([column("Process").cut(), column("Thread").cut(), column("Place")]);
        table.row(["4711 python manage.py run", "12345 worker", "a long name of a function"].map(Into::into));
        assert_eq!(table.lines(format(Some(58)))[1], "  4711 python ma…  12345 worker  a long name of a function");
        assert_eq!(table.lines(format(Some(40)))[1], "  4711 python…  12345 worker  a long na…");
    }

    #[test]
    fn styles_do_not_move_columns() {
        let mut table = TextTable::new([column("Size"), column("Part"), column("Place")]);
        let [size, part] = share(900, 1000);
        table.row([size, part, Label::new("load", "a.py:9", true).into()]);
        let [size, part] = share(1, 1000);
        table.row([size, part, Label::new("f", "", false).into()]);
        let lines = table.lines(TextFormat { width: Some(80), color: true });
        assert_eq!(lines[0], "   \x1b[1mSize\x1b[0m    \x1b[1mPart\x1b[0m  \x1b[1mPlace\x1b[0m");
        assert_eq!(
            lines[1],
            "  \x1b[1;31m900 B\x1b[0m  \x1b[1;31m90.0 %\x1b[0m  \x1b[1;36mload\x1b[0m\x1b[2m at a.py:9\x1b[0m"
        );
        assert_eq!(lines[2], "    \x1b[2m1 B\x1b[0m   \x1b[2m0.1 %\x1b[0m  f");
    }
}
