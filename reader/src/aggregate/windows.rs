//! The windows of an aggregated capture.
//!
//! A group that allocated and freed nothing in a window has no row, so that the file grows with what happens; it holds what it
//! held before. Invariant: `restore(save(x)) = x` of rows in which something happened.

use memtrack_format::Allocator;
use memtrack_format::aggregate::{Aggregate, AggregateWindow, AggregateWindowRow};
use rustc_hash::FxHashMap;

use crate::analysis::{Analysis, GroupFlow, SiteWindow, Tally, Variance};
use crate::event::{StackId, ThreadId};

/// The rows of groups that did something.
pub(super) fn save(analysis: &Analysis) -> Vec<AggregateWindow> {
    if analysis.windows.is_empty() {
        return Vec::new();
    }
    let groups = analysis.groups.iter().map(|group| (group.stack, group.allocator, group.thread));
    let numbers: FxHashMap<_, u32> = groups.zip(0..).collect();
    let row = |flow: &GroupFlow| {
        let sums = [flow.allocated, flow.freed, flow.live, flow.peak.unwrap_or(flow.live)];
        let is_idle = sums[..2].iter().all(|tally| (tally.bytes, tally.count) == (0, 0));
        let group = *numbers.get(&(flow.stack, flow.allocator, flow.thread)).filter(|_| !is_idle)?;
        let [allocated, freed, live, _] = sums.map(|tally| tally.variance.numbers().map(f32::to_bits));
        let variances = [allocated, freed, live];
        Some(AggregateWindowRow { group, sums: sums.map(|tally| (tally.bytes, tally.count)), variances })
    };
    let windows = analysis.windows.iter();
    windows
        .map(|window| AggregateWindow {
            from_ns: window.from_ns,
            to_ns: window.to_ns,
            rows: window.rows.iter().filter_map(row).collect(),
        })
        .collect()
}

/// The windows. `stack`: the id of each stack of the aggregate.
pub(super) fn restore(aggregate: &Aggregate, stack: impl Fn(u32) -> StackId) -> Vec<SiteWindow> {
    let row = |row: &AggregateWindowRow| {
        let group = aggregate.groups.get(row.group as usize)?;
        let [allocated, freed, live, peak] = row.sums.map(tally);
        let [of_allocated, of_freed, of_live] =
            row.variances.map(|bits| Variance::of_numbers(bits.map(f32::from_bits)));
        Some(GroupFlow {
            stack: stack(group.stack),
            thread: ThreadId(group.thread),
            allocator: Allocator::from_number(group.allocator)?,
            allocated: Tally { variance: of_allocated, ..allocated },
            freed: Tally { variance: of_freed, ..freed },
            live: Tally { variance: of_live, ..live },
            peak: Some(peak),
        })
    };
    let windows = aggregate.windows.iter();
    windows
        .map(|window| SiteWindow {
            from_ns: window.from_ns,
            to_ns: window.to_ns,
            rows: window.rows.iter().filter_map(row).collect(),
        })
        .collect()
}

fn tally((bytes, count): (u64, u64)) -> Tally {
    Tally { bytes, count, ..Tally::default() }
}
