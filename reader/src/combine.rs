//! Combines several captures, such as the processes of a tree, into one analysis.
//!
//! If they were read [together](crate::together), the high-water mark is that of one moment; else the parts' own are
//! added up. Times count from the earliest start. Orders of different processes cannot be compared, so capture order is
//! one process after the other, and there are no intervals. Invariant: every sum over allocations is the sum over the
//! captures; live and resident memory over time are sums over the processes that ran at that time.

use crate::analysis::{Analysis, ClassTotals, FailedGroup, Group, MappedGroup, Moment, Sum, Totals, ViewVariances};
use crate::error::Error;
use crate::event::{Snapshot, StackId, Thread, ThreadId};
use crate::frames::Frames;

/// An analysis with its stacks and threads.
#[derive(Clone, Debug, Default)]
pub struct CapturePart {
    /// The sums.
    pub analysis: Analysis,
    /// Their stacks.
    pub frames: Frames,
    /// Their threads.
    pub threads: Vec<Thread>,
    /// The start on the clock that all parts share, in nanoseconds.
    pub start_ns: u64,
    /// The end on that clock.
    pub end_ns: u64,
}

/// Combines the parts.
///
/// # Errors
/// [`Error::TooMany`] when the tables together are larger than this version can hold.
pub fn combine(parts: Vec<CapturePart>) -> Result<CapturePart, Error> {
    let start_ns = parts.iter().map(|part| part.start_ns).min().unwrap_or(0);
    let mut whole = CapturePart { start_ns, ..CapturePart::default() };
    whole.analysis.exact_times = parts.iter().all(|part| part.analysis.exact_times);
    whole.analysis.is_joined = true;
    whole.analysis.details = parts.iter().all(|part| part.analysis.details.is_some()).then(Vec::new);
    whole.analysis.variances = parts.iter().any(|part| part.analysis.variances.is_some()).then(Vec::new);
    let mut snapshots = Vec::new();
    let mut next_order = 0;
    for (at, mut part) in parts.into_iter().enumerate() {
        let shift = part.start_ns.saturating_sub(start_ns);
        let own = part.analysis.snapshots.iter();
        snapshots.extend(own.map(|snapshot| (snapshot.time_ns.saturating_add(shift), at, Some(*snapshot))));
        snapshots.push((part.end_ns.saturating_sub(start_ns), at, None));
        whole.end_ns = whole.end_ns.max(part.end_ns);
        next_order = add_groups(&mut whole, &part, shift, next_order)?;
        if let (Some(details), Some(more)) = (&mut whole.analysis.details, &mut part.analysis.details) {
            details.append(more);
        }
        if let Some(variances) = &mut whole.analysis.variances {
            // Another process may have recorded everything.
            variances.append(&mut part.analysis.variances.take().unwrap_or_default());
            variances.resize_with(whole.analysis.groups.len(), ViewVariances::default);
        }
        whole.analysis.unaccounted = whole.analysis.unaccounted.saturating_add(part.analysis.unaccounted);
        add_totals(&mut whole.analysis.totals, &part.analysis.totals, shift);
        whole.threads.append(&mut part.threads);
    }
    whole.analysis.snapshots = add_snapshots(snapshots);
    let resident = || whole.analysis.snapshots.iter().map(|snapshot| snapshot.rss_bytes);
    // What one process had alone is known better than from snapshots.
    let (most, last) = (resident().max().unwrap_or(0), resident().next_back().unwrap_or(0));
    let totals = &mut whole.analysis.totals;
    (totals.rss_peak_bytes, totals.rss_last_bytes) = (totals.rss_peak_bytes.max(most), last);
    Ok(whole)
}

/// Adds a frame of this name at the root of every stack, the empty one included.
///
/// # Errors
/// As [`combine`].
pub fn beneath(analysis: &mut Analysis, frames: &mut Frames, name: &str) -> Result<(), Error> {
    let root = frames.frame_named(name, "", 0)?;
    let mut moved = vec![frames.stack_id(StackId::EMPTY, root)?];
    let all = frames.stacks().len() as u32;
    for id in 1..=all {
        let Some(node) = frames.node(StackId(id)) else { break };
        let parent = moved.get(node.parent.0 as usize).copied().unwrap_or_default();
        moved.push(frames.stack_id(parent, node.frame)?);
    }
    let stack = |stack: StackId| moved.get(stack.0 as usize).copied().unwrap_or_default();
    analysis.groups.change_stacks(stack);
    analysis.failed.merge(|group| (stack(group.stack), group.allocator));
    analysis.mapped.merge(|group| (stack(group.stack), group.allocator));
    Ok(())
}

/// Adds the groups; returns the order after the largest one of them.
fn add_groups(whole: &mut CapturePart, part: &CapturePart, shift: u64, first_order: u64) -> Result<u64, Error> {
    let stacks = whole.frames.take_over(&part.frames, |frame| frame)?;
    let first_thread = u32::try_from(whole.threads.len()).unwrap_or(u32::MAX);
    let mut next_order = first_order;
    let mut moved = |sum: &Sum| {
        if sum.count == 0 && sum.bytes == 0 {
            return *sum;
        }
        let order = sum.first_order.saturating_add(first_order);
        next_order = next_order.max(order.saturating_add(1));
        Sum { first_order: order, first_time_ns: sum.first_time_ns.saturating_add(shift), ..*sum }
    };
    for group in part.analysis.groups.iter() {
        whole.analysis.groups.push(&Group {
            stack: stacks.get(group.stack.0 as usize).copied().unwrap_or_default(),
            allocator: group.allocator,
            thread: ThreadId(group.thread.0.saturating_add(first_thread)),
            allocated: moved(&group.allocated),
            peak: moved(&group.peak),
            leaked: moved(&group.leaked),
            leaked_at_exit: moved(&group.leaked_at_exit),
            temporary: moved(&group.temporary),
            pinned: moved(&group.pinned),
            objects: moved(&group.objects),
        });
    }
    for failed in part.analysis.failed.iter() {
        whole.analysis.failed.push(&FailedGroup {
            stack: stacks.get(failed.stack.0 as usize).copied().unwrap_or_default(),
            thread: ThreadId(failed.thread.0.saturating_add(first_thread)),
            largest_time_ns: failed.largest_time_ns.saturating_add(shift),
            ..*failed
        });
    }
    for mapped in part.analysis.mapped.iter() {
        whole.analysis.mapped.push(MappedGroup {
            stack: stacks.get(mapped.stack.0 as usize).copied().unwrap_or_default(),
            thread: ThreadId(mapped.thread.0.saturating_add(first_thread)),
            ..*mapped
        });
    }
    Ok(next_order)
}

fn add_totals(whole: &mut Totals, part: &Totals, shift: u64) {
    let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
    // Of captures that were read together, only one has raised the peak.
    whole.peak.at = whole.peak.at.or_else(|| {
        let Moment { order, time_ns } = part.peak.at?;
        Some(Moment { order, time_ns: time_ns.saturating_add(shift) })
    });
    add(&mut whole.peak.bytes, part.peak.bytes);
    add(&mut whole.peak.allocations, part.peak.allocations);
    for (sum, more) in [
        (&mut whole.allocations, part.allocations),
        (&mut whole.leaked, part.leaked),
        (&mut whole.leaked_at_exit, part.leaked_at_exit),
        (&mut whole.temporary, part.temporary),
    ] {
        *sum += more;
    }
    for (sum, more) in [
        (&mut whole.events, part.events),
        (&mut whole.deallocations, part.deallocations),
        (&mut whole.unmatched_frees, part.unmatched_frees),
        (&mut whole.unmatched_unmaps, part.unmatched_unmaps),
        (&mut whole.inherited_frees, part.inherited_frees),
        (&mut whole.inherited_unmaps, part.inherited_unmaps),
        (&mut whole.earlier_frees, part.earlier_frees),
        (&mut whole.earlier_unmaps, part.earlier_unmaps),
        (&mut whole.replaced, part.replaced),
        (&mut whole.discarded, part.discarded),
        (&mut whole.undone, part.undone),
        (&mut whole.truncated_stacks, part.truncated_stacks),
    ] {
        add(sum, more);
    }
    whole.rss_peak_bytes = whole.rss_peak_bytes.max(part.rss_peak_bytes);
    whole.size_histogram.merge(&part.size_histogram);
    whole.temporary_threshold = part.temporary_threshold;
    whole.end_time_ns = whole.end_time_ns.max(part.end_time_ns.saturating_add(shift));
    let (sums, more) = (&mut whole.mappings, &part.mappings);
    add_class(&mut sums.heap, &more.heap);
    add_class(&mut sums.reserved, &more.reserved);
    add_class(&mut sums.file, &more.file);
    add_class(&mut sums.shared, &more.shared);
}

fn add_class(whole: &mut ClassTotals, part: &ClassTotals) {
    whole.count = whole.count.saturating_add(part.count);
    whole.bytes = whole.bytes.saturating_add(part.bytes);
    whole.live_bytes = whole.live_bytes.saturating_add(part.live_bytes);
    whole.peak_bytes = whole.peak_bytes.saturating_add(part.peak_bytes);
}

/// At each moment the sum of the last values of all processes that ran; `None` is a process's end. Their orders are
/// before all groups', since orders of processes cannot be compared.
fn add_snapshots(mut snapshots: Vec<(u64, usize, Option<Snapshot>)>) -> Vec<Snapshot> {
    snapshots.sort_by_key(|(time, part, snapshot)| (*time, *part, snapshot.is_none()));
    // What the last ones had at their end, they had at the end of all.
    let last_snapshot = snapshots.iter().rposition(|(.., snapshot)| snapshot.is_some());
    snapshots.truncate(last_snapshot.map_or(0, |last| last + 1));
    let mut last: Vec<Snapshot> = Vec::new();
    let (mut rss, mut heap) = (0_u64, 0_u64);
    (0..)
        .zip(snapshots)
        .map(|(index, (time_ns, part, snapshot))| {
            last.resize(last.len().max(part + 1), Snapshot::default());
            let before = std::mem::replace(&mut last[part], snapshot.unwrap_or_default());
            rss = rss.saturating_sub(before.rss_bytes).saturating_add(last[part].rss_bytes);
            heap = heap.saturating_sub(before.heap_bytes).saturating_add(last[part].heap_bytes);
            Snapshot { index, time_ns, rss_bytes: rss, heap_bytes: heap, order: u64::MAX }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{CapturePart, beneath, combine};
    use crate::analysis::View;
    use crate::event::{Event, EventKind, StackId, Thread, ThreadId};
    use crate::frames::Frames;
    use crate::{Options, Replay};

    /// A process whose one function makes two allocations and frees the first.
    fn part(function: &str, size: u64, start_ns: u64) -> CapturePart {
        let mut frames = Frames::new();
        let frame = frames.frame_named(function, function, 1).unwrap();
        let stack = frames.stack_of(&[frame]).unwrap();
        let mut replay = Replay::new(&Options { details: true, ..Options::default() });
        let kinds = [
            (EventKind::Alloc(Allocator::Malloc), 1, size),
            (EventKind::Alloc(Allocator::Malloc), 2, 1),
            (EventKind::Free, 1, 0),
        ];
        for (order, (kind, address, size)) in (0..).zip(kinds) {
            let stack = if size > 0 { stack } else { StackId::EMPTY };
            replay.event(&Event { kind, address, size, stack, thread: ThreadId(0), order, time_ns: order * 10 });
        }
        replay.snapshot(5, 100);
        let threads = vec![Thread { tid: 7, name: function.into(), ..Thread::default() }];
        CapturePart { analysis: replay.finish(), frames, threads, start_ns, end_ns: start_ns + 20 }
    }

    #[test]
    fn sums_are_added_and_times_count_from_the_earliest_start() {
        let whole = combine(vec![part("child", 100, 1030), part("parent", 20, 1000)]).unwrap();
        let totals = &whole.analysis.totals;
        assert_eq!((totals.peak.bytes, totals.peak.allocations, totals.deallocations), (122, 4, 2));
        assert_eq!((totals.leaked_at_exit.bytes, totals.end_time_ns), (2, 50));
        // One ends before the other has begun.
        assert_eq!((totals.rss_peak_bytes, totals.rss_last_bytes), (100, 100));
        let rows = whole.analysis.view(View::Allocated);
        let told: Vec<_> = rows
            .iter()
            .map(|row| {
                let function = whole.frames.function(whole.frames.node(row.stack).unwrap().frame);
                (function, whole.threads[row.thread.0 as usize].name.as_str(), row.bytes, row.first_time_ns)
            })
            .collect();
        assert_eq!(told, [("child", "child", 101, 30), ("parent", "parent", 21, 0)]);
        assert!(rows[0].first_order < rows[1].first_order);
        let heaps: Vec<_> =
            whole.analysis.snapshots.iter().map(|snapshot| (snapshot.time_ns, snapshot.rss_bytes)).collect();
        assert_eq!(heaps, [(5, 100), (20, 0), (35, 100)]);
        assert_eq!(whole.analysis.details.unwrap()[0].most.bytes, 101);
    }

    #[test]
    fn stacks_are_put_below_a_frame() {
        let CapturePart { mut analysis, mut frames, .. } = part("work", 100, 0);
        beneath(&mut analysis, &mut frames, "process 7").unwrap();
        let stack = frames.root_to_leaf(analysis.groups.get(0).unwrap().stack);
        let names: Vec<_> = stack.iter().map(|&frame| frames.function(frame)).collect();
        assert_eq!(names, ["process 7", "work"]);
    }

    #[test]
    fn equal_stacks_of_two_processes_are_one_stack() {
        let whole = combine(vec![part("work", 100, 0), part("work", 20, 0)]).unwrap();
        let rows = whole.analysis.view(View::Allocated);
        assert_eq!((rows.len(), rows[0].stack), (2, rows[1].stack));
    }
}
