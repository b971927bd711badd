//! `summary`: self and total allocations of each function.
//!
//! Invariant: the self figures of all functions add up to the view's total; recursive calls count once in a function's
//! total.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use clap::ValueEnum;
use memtrack_reader::View;
use memtrack_reader::analysis::{CallTree, KeyRow, Tally};
use memtrack_reader::frames::NameId;
use serde_json::json;

use super::capture_info::Capture;
use super::{NO_STACK, estimates, view};
use crate::terminal::TextFormat;
use crate::text::{Label, TextCell, TextTable, column, left_out, share_of};
use crate::units::count_within;

/// Sort order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryOrder {
    /// Total bytes (function and callees)
    Total,
    /// Bytes of the function itself
    #[value(name = "self", alias = "own")]
    Own,
    /// Total number of allocations (function and callees)
    TotalCount,
    /// Number of allocations of the function itself
    #[value(name = "self-count", alias = "own-count")]
    OwnCount,
}

/// Writes the first `limit` functions.
///
/// # Errors
/// A write error.
pub(crate) fn write(
    capture: &Capture,
    view: View,
    order: SummaryOrder,
    limit: usize,
    format: TextFormat,
    mut out: impl Write,
) -> io::Result<()> {
    let mut functions = SummaryFunctions::default();
    let rows = functions.rows(capture, view, order);
    let whole = rows.iter().fold(Tally::default(), |mut whole, row| {
        whole += row.own;
        whole
    });
    writeln!(out, "{}", format.heading(&capture.headline(view, whole)))?;
    capture.write_left_out(view, format, &mut out)?;
    if rows.is_empty() {
        return Ok(());
    }
    let shown = limit.min(rows.len());
    let [total, total_part, own, function] = ["Total", "Part", "Self", "Function"].map(column);
    let [own_part, own_count] = ["Part", "Self count"].map(|title| column(title).optional(2));
    let mut table =
        TextTable::new([total, total_part, own, own_part, column("Count").optional(1), own_count, function])
            .with_room(ROOM);
    rows[..shown].iter().for_each(|row| table.row(cells(row, whole, functions.label(capture, row.key))));
    table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    match rows.len() - shown {
        0 => Ok(()),
        more => writeln!(out, "{}", left_out(more as u64)),
    }
}

/// Writes all functions as `memtrack-summary`, version 1.
///
/// # Errors
/// A write error.
pub(crate) fn json(capture: &Capture, view: View, order: SummaryOrder, mut out: impl Write) -> io::Result<()> {
    let mut functions = SummaryFunctions::default();
    let rows = functions.rows(capture, view, order);
    let view = view::name(view);
    write!(out, "{{\"schema\":\"memtrack-summary\",\"version\":1,\"view\":\"{view}\",\"rows\":[")?;
    for (number, KeyRow { key, own, total }) in rows.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let names = functions.list.get(*key as usize);
        let name = |id: NameId| capture.frames.name(id);
        let mut value = json!({
            "function": names.map_or(NO_STACK, |(function, _)| name(*function)),
            "file": names.map(|(_, file)| name(*file)).filter(|file| !file.is_empty()),
            "own_bytes": own.bytes, "total_bytes": total.bytes, "own_count": own.count, "total_count": total.count,
        });
        for (part, tally) in [("own_", own), ("total_", total)] {
            estimates::put_ranges(&mut value, capture, part, *tally);
        }
        write!(out, "{comma}\n{value}")?;
    }
    writeln!(out, "\n]}}")
}

/// Minimum width of the function column; below it other columns are omitted.
const ROOM: usize = 36;

fn cells(row: &KeyRow, whole: Tally, label: Label) -> [TextCell; 7] {
    let [[total, total_part], [own, own_part]] = [row.total, row.own].map(|tally| share_of(tally, whole.bytes));
    let [count, own_count] = [row.total, row.own].map(|tally| count_within(tally.count, tally.count_range()).into());
    [total, total_part, own, own_part, count, own_count, label.into()]
}

/// Numbers functions: frames without lines.
#[derive(Debug, Default)]
struct SummaryFunctions {
    numbers: HashMap<(NameId, NameId), u32>,
    list: Vec<(NameId, NameId)>,
    /// Whether each is own code.
    own: Vec<bool>,
}

impl SummaryFunctions {
    fn rows(&mut self, capture: &Capture, view: View, order: SummaryOrder) -> Vec<KeyRow> {
        let groups = capture.analysis.view(view);
        let mut tree = CallTree::default();
        let stacks = groups.iter().map(|group| group.stack);
        let places = tree.places(&capture.frames, stacks, |id| {
            let frame = capture.frames.frame(id);
            self.number((frame.function, frame.file), || capture.is_own(id))
        });
        let mut own = vec![Tally::default(); tree.nodes().len()];
        for (group, place) in groups.iter().zip(places) {
            own[place as usize] += group.tally();
        }
        let mut rows = tree.by_key(&own);
        let key = |row: &KeyRow| match order {
            SummaryOrder::Total => (row.total.bytes, row.total.count),
            SummaryOrder::Own => (row.own.bytes, row.own.count),
            SummaryOrder::TotalCount => (row.total.count, row.total.bytes),
            SummaryOrder::OwnCount => (row.own.count, row.own.bytes),
        };
        rows.sort_by_key(|row| Reverse(key(row)));
        rows
    }

    fn number(&mut self, function: (NameId, NameId), is_own: impl Fn() -> bool) -> u32 {
        *self.numbers.entry(function).or_insert_with(|| {
            self.list.push(function);
            self.own.push(is_own());
            (self.list.len() - 1) as u32
        })
    }

    fn label(&self, capture: &Capture, key: u32) -> Label {
        let Some(&(function, file)) = self.list.get(key as usize) else { return Label::new(NO_STACK, "", false) };
        let is_own = self.own.get(key as usize) == Some(&true);
        Label::new(capture.frames.name(function), capture.path(capture.frames.name(file)), is_own)
    }
}

#[cfg(test)]
mod tests {
    use super::{SummaryFunctions, SummaryOrder, json, write};
    use crate::reports::fixture;
    use crate::terminal::TextFormat;
    use memtrack_reader::View;

    #[test]
    fn golden() {
        let mut text = Vec::new();
        let format = TextFormat { width: Some(80), color: false };
        write(&fixture::capture(), View::Allocated, SummaryOrder::Total, 3, format, &mut text).unwrap();
        fixture::compare("summary.txt", &text);
    }

    #[test]
    fn frees_of_earlier_blocks_are_said_where_there_are_any() {
        let summary = |capture: &crate::reports::capture_info::Capture| {
            let mut text = Vec::new();
            let format = TextFormat { width: Some(80), color: false };
            write(capture, View::Allocated, SummaryOrder::Total, 3, format, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let mut capture = fixture::capture();
        assert!(!summary(&capture).contains("before the recording"));
        (capture.analysis.totals.earlier_frees, capture.analysis.totals.earlier_unmaps) = (1_040, 2);
        let text = summary(&capture);
        assert_eq!(text.lines().nth(1), Some("1,042 frees of blocks from before the recording not counted"), "{text}");
    }

    #[test]
    fn golden_json() {
        let mut text = Vec::new();
        json(&fixture::capture(), View::Allocated, SummaryOrder::Own, &mut text).unwrap();
        fixture::compare("summary.json", &text);
    }

    #[test]
    fn every_order_puts_its_column_first() {
        let capture = fixture::capture();
        let first = |order| {
            let mut functions = SummaryFunctions::default();
            let rows = functions.rows(&capture, View::Allocated, order);
            functions.label(&capture, rows[0].key).whole().words().split(' ').next().unwrap().to_owned()
        };
        assert_eq!(first(SummaryOrder::Total), "<module>");
        assert_eq!(first(SummaryOrder::Own), "Reader.read");
        assert_eq!(first(SummaryOrder::TotalCount), "<module>");
        assert_eq!(first(SummaryOrder::OwnCount), "work");
    }
}
