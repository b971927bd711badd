//! The rows of `stats`, the same for text and JSON.
//!
//! Invariant: all rows are of one view (default: all allocations), and equal captures give equal rows in the same
//! order.

use memtrack_format::Allocator;
use memtrack_reader::View;
use memtrack_reader::analysis::{AllocatorRow, Breakdown, FrameRow, ModuleRow, Tally, ThreadRow, Totals};

use super::capture_info::Capture;

/// The tables of `stats`.
#[derive(Debug)]
pub(crate) struct StatsRows {
    /// Total of the view.
    pub(crate) whole: Tally,
    /// Every allocator that was used, by bytes.
    pub(crate) allocators: Vec<AllocatorRow>,
    /// The same, with the domains of Python's allocators separated.
    pub(crate) domains: Vec<AllocatorRow>,
    /// Every thread that allocated, by bytes.
    pub(crate) threads: Vec<ThreadRow>,
    /// The biggest innermost frames, by bytes.
    pub(crate) top_by_size: Vec<FrameRow>,
    /// The same by number.
    pub(crate) top_by_count: Vec<FrameRow>,
    /// The biggest modules, by bytes.
    pub(crate) modules_by_size: Vec<ModuleRow>,
    /// The same by number.
    pub(crate) modules_by_count: Vec<ModuleRow>,
}

impl StatsRows {
    /// The tables of a view, with at most `limit` frames and modules.
    pub(crate) fn new(capture: &Capture, view: View, limit: usize) -> Self {
        let all = Breakdown::of(capture.analysis.rows(view), &capture.frames);
        let functions = all.allocators_by(Allocator::function);
        let Breakdown { whole, frames, modules, allocators, threads } = all;
        Self {
            whole,
            allocators: top(functions, usize::MAX, |row| size(&row.tally)),
            domains: top(allocators, usize::MAX, |row| size(&row.tally)),
            threads: top(threads, usize::MAX, |row| size(&row.tally)),
            top_by_size: top(frames.clone(), limit, |row| size(&row.tally)),
            top_by_count: top(frames, limit, |row| number(&row.tally)),
            modules_by_size: top(modules.clone(), limit, |row| size(&row.tally)),
            modules_by_count: top(modules, limit, |row| number(&row.tally)),
        }
    }
}

/// The view of leaks to show with this view.
pub(crate) fn leaks(view: View) -> View {
    if view == View::LeaksAtExit { view } else { View::Leaks }
}

/// Memory that is not live at exit: freed, or lost without a recorded free.
pub(crate) fn freed(totals: &Totals) -> Tally {
    let (all, live) = (totals.allocations, totals.leaked_at_exit);
    Tally { bytes: all.bytes.saturating_sub(live.bytes), count: all.count.saturating_sub(live.count) }
}

/// Whether Python's own allocators were traced.
pub(crate) fn traces_python_allocators(capture: &Capture) -> bool {
    capture.info.process.traces_python_allocators
}

/// Whether stacks can separate the program's Python objects from the interpreter's; without Python frames they cannot.
pub(crate) fn separates_python(capture: &Capture) -> bool {
    traces_python_allocators(capture) && capture.info.process.python_note.is_none()
}

fn size(tally: &Tally) -> (u64, u64) {
    (tally.bytes, tally.count)
}

fn number(tally: &Tally) -> (u64, u64) {
    (tally.count, tally.bytes)
}

/// The largest rows first; stable for equal rows.
fn top<T>(mut rows: Vec<T>, limit: usize, key: impl Fn(&T) -> (u64, u64)) -> Vec<T> {
    rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
    rows.truncate(limit);
    rows
}
