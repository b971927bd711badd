//! What groups did in spans of time, as a part of an aggregate's payload.
//!
//! Invariant: each row is of a group that there is.

use super::read_bits;
use crate::fields::{FieldReader, FieldWriter};

/// Windows that a payload may have: several times as many as a recording keeps.
const MOST_WINDOWS: usize = 1 << 12;

/// What groups did in a span of time. Groups that allocated and freed nothing have no row: they hold what they held before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateWindow {
    /// Its first moment, in nanoseconds since recording began.
    pub from_ns: u64,
    /// The moment after its last.
    pub to_ns: u64,
    /// The groups.
    pub rows: Vec<AggregateWindowRow>,
}

/// What one group did in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregateWindowRow {
    /// A row of `groups`.
    pub group: u32,
    /// Bytes and number of what was allocated, what was freed, what was live at the end, and the most that was live at a moment.
    pub sums: [(u64, u64); 4],
    /// How exact the first three are, as [`AggregateVariances`](super::AggregateVariances) have it; zeroes where they are exact.
    pub variances: [[u32; 4]; 3],
}

pub(super) fn write_window(out: &mut FieldWriter, window: &AggregateWindow) {
    out.numbers(&[window.from_ns, window.to_ns]);
    out.rows(&window.rows, |out, row| {
        out.number(row.group.into());
        row.sums.iter().for_each(|&(bytes, count)| out.numbers(&[bytes, count]));
    });
}

/// How exact the rows are, behind all windows, if any of them is an estimate, or more comes behind them.
pub(super) fn write_variances(out: &mut FieldWriter, windows: &[AggregateWindow], is_followed: bool) {
    let rows: Vec<_> = windows.iter().flat_map(|window| &window.rows).map(|row| row.variances).collect();
    if is_followed || rows.iter().any(|row| *row != <[[u32; 4]; 3]>::default()) {
        out.rows(&rows, |out, row| row.as_flattened().iter().for_each(|&bits| out.number(bits.into())));
    }
}

/// `None` where they are not as many as the rows.
pub(super) fn read_variances(input: &mut FieldReader<'_>, windows: &mut [AggregateWindow]) -> Option<()> {
    let all = input.rows(read_bits::<3>)?;
    let rows = windows.iter_mut().flat_map(|window| &mut window.rows);
    let mut left = all.into_iter();
    for row in rows {
        row.variances = left.next()?;
    }
    left.next().is_none().then_some(())
}

/// `None` where there are more than [`MOST_WINDOWS`], too: reports give each group that holds something a row in each of them.
pub(super) fn read_windows(
    input: &mut FieldReader<'_>,
    group: &impl Fn(u32) -> Option<u32>,
) -> Option<Vec<AggregateWindow>> {
    let windows = input.rows(|input| read_window(input, group))?;
    (windows.len() <= MOST_WINDOWS).then_some(windows)
}

fn read_window(input: &mut FieldReader<'_>, group: &impl Fn(u32) -> Option<u32>) -> Option<AggregateWindow> {
    let (from_ns, to_ns) = (input.number()?, input.number()?);
    let rows = input.rows(|input| {
        let mut row = AggregateWindowRow { group: group(input.small()?)?, ..AggregateWindowRow::default() };
        for (bytes, count) in &mut row.sums {
            (*bytes, *count) = (input.number()?, input.number()?);
        }
        Some(row)
    })?;
    Some(AggregateWindow { from_ns, to_ns, rows })
}
