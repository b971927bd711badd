//! The columns of the live view's rows.
//!
//! Invariant: the column by which rows are sorted is shown, and marked, on any screen.

use super::board::RowOrder;
use super::view::LiveTab;

/// Narrower screens have fewer columns.
const WIDE: u16 = 100;
/// So many, without that of intervals.
const NARROW: usize = 3;

/// A column.
pub(super) struct Column {
    name: &'static str,
    width: usize,
    /// Which of a row's figures it has.
    figure: usize,
    /// Whether the rows are sorted by it.
    is_order: bool,
}

impl Column {
    /// Its head; the tree marks the order in the same way.
    pub(super) fn head(&self) -> String {
        let (name, width) = (self.name, self.width);
        let mark = if self.is_order { "▾" } else { "" };
        format!(" {:>width$}", format!("{name}{mark}"))
    }
}

/// The columns that a screen has room for; the one by which rows are sorted is one of them.
pub(super) fn columns(tab: LiveTab, order: RowOrder, width: u16, is_sampled: bool) -> Vec<Column> {
    let names: &[(&str, usize, Option<RowOrder>)] = match tab {
        LiveTab::Holders => &[
            ("Live", 8, Some(RowOrder::Live)),
            ("Part", 7, None),
            ("Grown", 9, Some(RowOrder::Grown)),
            ("Allocated", 11, Some(RowOrder::Rate)),
        ],
        LiveTab::Growth => &[
            ("Grown", 9, Some(RowOrder::Grown)),
            ("Live", 8, Some(RowOrder::Live)),
            ("Blocks", 10, None),
            ("Allocated", 11, Some(RowOrder::Rate)),
        ],
        LiveTab::Suspects => &[
            ("Grown", 9, Some(RowOrder::Risen)),
            ("Windows", 7, None),
            ("Live", 8, Some(RowOrder::Live)),
            ("Allocated", 11, Some(RowOrder::Rate)),
        ],
        LiveTab::Threads => &[("Live", 8, Some(RowOrder::Live)), ("Blocks", 10, None), ("Allocated", 11, None)],
    };
    let has_noise = is_sampled && tab != LiveTab::Suspects;
    let column = |(at, &(name, width, of)): (usize, &(&'static str, usize, Option<RowOrder>))| {
        // The first figure has its interval behind it.
        let figure = if has_noise && at > 0 { at + 1 } else { at };
        Column { name, width, figure, is_order: of == Some(order) }
    };
    let mut columns: Vec<Column> = names.iter().enumerate().map(column).collect();
    if width < WIDE && columns.len() > NARROW {
        let last = columns.split_off(NARROW).into_iter().find(|column| column.is_order);
        if let Some(last) = last {
            columns[NARROW - 1] = last;
        }
    }
    if has_noise {
        columns.insert(1, Column { name: "± 95 %", width: 9, figure: 1, is_order: false });
    }
    columns
}

/// A row's figures in their columns.
pub(super) fn cells(columns: &[Column], figures: &[String]) -> String {
    let cell = |column: &Column| {
        let (figure, width) = (figures.get(column.figure).map_or("", String::as_str), column.width);
        format!(" {figure:>width$}")
    };
    columns.iter().map(cell).collect()
}
