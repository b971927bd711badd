//! The rows of `stats`, the same for text and JSON.
//!
//! Invariant: all rows are of one view (default: all allocations), and equal captures give equal rows in the same
//! order.

use memtrack_format::Allocator;
use memtrack_reader::ThreadId;
use memtrack_reader::View;
use memtrack_reader::analysis::{AllocatorRow, Breakdown, FrameRow, ModuleRow, Tally, ThreadRow, Variance};
use memtrack_reader::event::{CountedAllocations, Thread};

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
        let Breakdown { whole, frames, modules, allocators, mut threads } = all;
        if is_counted(capture) && view == View::Allocated {
            threads = counted_threads(capture);
        }
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

/// Whether everything that was allocated was counted, although only samples were recorded, and no filter selects some of it.
pub(crate) fn is_counted(capture: &Capture) -> bool {
    capture.is_sampled() && capture.threads.iter().any(|thread| thread.counted.is_some())
}

/// What a thread has allocated, as it was counted.
fn counted(thread: &Thread) -> Tally {
    let CountedAllocations { bytes, count } = thread.counted.unwrap_or_default();
    Tally { bytes, count, ..Tally::default() }
}

/// What each thread has allocated, as it was counted, and what it has mapped; all that is known of threads of processes without
/// samples, in which nothing is counted apart.
fn counted_threads(capture: &Capture) -> Vec<ThreadRow> {
    let counted = capture.threads.iter().map(counted);
    let mut rows: Vec<ThreadRow> =
        (0..).zip(counted).map(|(number, tally)| ThreadRow { thread: ThreadId(number), tally }).collect();
    for row in capture.analysis.rows(View::Allocated) {
        let thread = row.thread.0 as usize;
        let is_counted = capture.threads.get(thread).is_some_and(|thread| thread.counted.is_some());
        if let Some(thread) = rows.get_mut(thread)
            && (row.allocator.is_mapping() || !is_counted)
        {
            thread.tally += row.tally();
        }
    }
    rows.retain(|row| row.tally.count > 0);
    rows
}

/// Everything that was allocated, or that filters select of it: counted if possible, where the rest is estimated.
pub(crate) fn allocated(capture: &Capture) -> Tally {
    if !is_counted(capture) {
        return capture.analysis.totals.allocations;
    }
    let all: Tally = counted_threads(capture).iter().map(|row| row.tally).sum();
    Tally { variance: Variance::EXACT, ..all }
}

/// The view of leaks to show with this view.
pub(crate) fn leaks(view: View) -> View {
    if view == View::LeaksAtExit { view } else { View::Leaks }
}

/// Memory that is not live at exit: freed, or lost without a recorded free.
pub(crate) fn freed(capture: &Capture) -> Tally {
    let (all, live) = (allocated(capture), capture.analysis.totals.leaked_at_exit);
    all.less(live)
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
