//! Converts an [`Analysis`] to the content of an aggregate block and back.
//!
//! Reports then need not know whether the sums were computed now, from events, or during the recording. Invariant:
//! `restore(save(x)) = x`, except for intervals, which an aggregated capture does not store.

mod windows;

use memtrack_format::aggregate::{self, Aggregate};
use memtrack_format::{Allocator, MapClass};
use rustc_hash::FxHashMap;

use crate::analysis::{
    Analysis, ClassTotals, FailedGroup, Group, MappedGroup, MappingTotals, Moment, Peak, SizeHistogram, Sum, Tally,
    Totals, Variance, View, ViewVariances,
};
use crate::error::Error;
use crate::event::{CountedAllocations, Snapshot, StackId, Thread, ThreadId};
use crate::frames::{Frame, FrameId, Frames, NameId, Native};
use crate::native::NativeModule;
use crate::window_groups::{WindowGroups, WindowRow};

/// The content of an aggregated capture.
#[must_use]
pub fn save(analysis: &Analysis, frames: &Frames, threads: &[Thread]) -> Aggregate {
    Aggregate {
        names: frames.names().map(str::to_owned).collect(),
        frames: frames.frames().iter().map(|frame| (frame.function.0, frame.file.0, frame.line)).collect(),
        stacks: frames.stacks().map(|node| (node.parent.0, node.frame.0)).collect(),
        threads: threads.iter().map(|thread| (thread.tid, thread.name.clone())).collect(),
        groups: analysis.groups.iter().map(|group| save_group(&group)).collect(),
        snapshots: analysis.snapshots.iter().map(save_snapshot).collect(),
        totals: save_totals(&analysis.totals),
        bins: analysis.totals.size_histogram.counts().to_vec(),
        columns: frames.frames().iter().map(|frame| frame.column).collect(),
        modules: frames.native_modules().iter().map(save_module).collect(),
        places: (0..).zip(frames.frames()).filter_map(|(frame, _)| save_place(frame, frames)).collect(),
        failed: analysis.failed.iter().map(save_failed).collect(),
        variances: save_variances(analysis),
        counts: save_counts(threads),
        windows: windows::save(analysis),
        mapped: analysis.mapped.iter().map(save_mapped).collect(),
    }
}

/// A window, with only the stacks of its groups, and what these refer to: the sum of the peak has what is live, that of temporary
/// allocations what was allocated, that of leaks what was freed. Counts that are not 0 are one higher: a group of which something was
/// unmapped has bytes without a block, and a sum is kept where its count is not 0.
#[must_use]
pub fn save_window(window: &WindowGroups, frames: &Frames, threads: &[Thread]) -> Aggregate {
    let mut groups: Vec<_> = window.rows().iter().map(save_row).collect();
    let used = save_used(&mut groups, frames, threads);
    let variances = window.variances().into_iter().flatten().map(|[allocated, freed, live]| {
        let of = ViewVariances::default().with(View::HighWaterMark, *live);
        save_view_variances(&of.with(View::Temporary, *allocated).with(View::Leaks, *freed))
    });
    Aggregate { groups, totals: save_totals(&Totals::default()), variances: variances.collect(), ..used }
}

fn save_row(row: &WindowRow) -> aggregate::AggregateGroup {
    let sum = |(bytes, count): (u64, u64)| {
        let count = if bytes > 0 || count > 0 { count.saturating_add(1) } else { 0 };
        aggregate::AggregateSum { count, bytes, first_order: 0, first_time_ns: 0 }
    };
    let none = sum((0, 0));
    let sums = [none, sum(row.live), sum(row.freed), none, sum(row.allocated)];
    aggregate::AggregateGroup { stack: row.stack.0, allocator: row.allocator as u8, thread: row.thread.0, sums }
}

/// The tables that these groups refer to, whose stacks are numbered anew.
fn save_used(groups: &mut [aggregate::AggregateGroup], frames: &Frames, threads: &[Thread]) -> Aggregate {
    // Number 0 of stacks is the empty one. Parents have lower numbers than their children.
    let mut stacks = vec![0_u32; frames.stacks().len() + 1];
    groups.iter().for_each(|group| mark(&mut stacks, group.stack));
    for at in (1..stacks.len()).rev() {
        if let Some(node) = frames.node(StackId(at as u32)).filter(|_| stacks[at] != 0) {
            mark(&mut stacks, node.parent.0);
        }
    }
    let mut used = UsedTables::default();
    let mut nodes = Vec::new();
    for at in 1..stacks.len() {
        let Some(node) = frames.node(StackId(at as u32)).filter(|_| stacks[at] != 0) else { continue };
        nodes.push((stacks[node.parent.0 as usize], used.frame(node.frame, frames)));
        stacks[at] = nodes.len() as u32;
    }
    for group in groups {
        group.stack = stacks.get(group.stack as usize).copied().unwrap_or(0);
    }
    Aggregate {
        names: used.names,
        frames: used.frames,
        stacks: nodes,
        threads: threads.iter().map(|thread| (thread.tid, thread.name.clone())).collect(),
        columns: used.columns,
        modules: frames.native_modules().iter().map(save_module).collect(),
        places: used.places,
        counts: save_counts(threads),
        ..Aggregate::default()
    }
}

fn mark(stacks: &mut [u32], stack: u32) {
    if let Some(mark) = stacks.get_mut(stack as usize).filter(|_| stack != 0) {
        *mark = 1;
    }
}

/// The frames and names that are used, numbered anew.
#[derive(Default)]
struct UsedTables {
    frame_numbers: FxHashMap<u32, u32>,
    frames: Vec<(u32, u32, u32)>,
    columns: Vec<u32>,
    places: Vec<aggregate::AggregateNativePlace>,
    name_numbers: FxHashMap<u32, u32>,
    names: Vec<String>,
}

impl UsedTables {
    fn frame(&mut self, id: FrameId, frames: &Frames) -> u32 {
        if let Some(&number) = self.frame_numbers.get(&id.0) {
            return number;
        }
        let Frame { function, file, line, column } = frames.frame(id);
        let number = self.frames.len() as u32;
        let names = (self.name(function, frames), self.name(file, frames));
        self.frames.push((names.0, names.1, line));
        self.columns.push(column);
        if let Some(place) = save_place(id.0, frames) {
            self.places.push(aggregate::AggregateNativePlace { frame: number, ..place });
        }
        self.frame_numbers.insert(id.0, number);
        number
    }

    fn name(&mut self, id: NameId, frames: &Frames) -> u32 {
        *self.name_numbers.entry(id.0).or_insert_with(|| {
            self.names.push(frames.name(id).to_owned());
            (self.names.len() - 1) as u32
        })
    }
}

fn save_module(module: &NativeModule) -> aggregate::AggregateModule {
    aggregate::AggregateModule { source: module.source, path: module.path.clone(), build_id: module.identity() }
}

fn save_place(frame: u32, frames: &Frames) -> Option<aggregate::AggregateNativePlace> {
    let Native { module, offset } = frames.native(FrameId(frame))?;
    Some(aggregate::AggregateNativePlace { frame, module, offset })
}

fn restore_module(module: &aggregate::AggregateModule) -> NativeModule {
    NativeModule { path: module.path.clone(), source: module.source, ..NativeModule::default() }
        .with_identity(&module.build_id)
}

/// The analysis with its tables.
///
/// # Errors
/// [`Error::TooMany`] when the tables are larger than this version can hold.
pub fn restore(aggregate: &Aggregate) -> Result<(Analysis, Frames, Vec<Thread>), Error> {
    let mut frames = Frames::new();
    let (analysis, threads) = restore_into(&mut frames, aggregate)?;
    Ok((analysis, frames, threads))
}

/// The same with these tables: what they have already keeps its id.
///
/// # Errors
/// As for [`restore`].
pub fn restore_into(frames: &mut Frames, aggregate: &Aggregate) -> Result<(Analysis, Vec<Thread>), Error> {
    let stacks = restore_frames(frames, aggregate)?;
    let stack = |stack: u32| stacks.get(stack as usize).copied().unwrap_or(StackId::EMPTY);
    let groups = aggregate.groups.iter().filter_map(|group| restore_group(group, stack(group.stack))).collect();
    let variances = restore_variances(aggregate);
    let snapshots =
        (0..).zip(&aggregate.snapshots).map(|(index, snapshot)| restore_snapshot(index, snapshot)).collect();
    let mut totals = restore_totals(&aggregate.totals);
    totals.size_histogram = SizeHistogram::from_counts(&aggregate.bins);
    let threads = aggregate
        .threads
        .iter()
        .zip(aggregate.counts.iter().map(Some).chain(std::iter::repeat(None)))
        .map(|((tid, name), counts)| Thread {
            tid: *tid,
            name: name.clone(),
            counted: counts.map(|&(bytes, count)| CountedAllocations { bytes, count }),
        })
        .collect();
    let failed = aggregate.failed.iter().filter_map(|group| restore_failed(group, stack(group.stack))).collect();
    let mapped = aggregate.mapped.iter().filter_map(|group| restore_mapped(group, stack(group.stack))).collect();
    let windows = windows::restore(aggregate, stack);
    Ok((Analysis { groups, totals, failed, mapped, snapshots, variances, windows, ..Analysis::default() }, threads))
}

/// Restores the tables; returns the id of each stack of the aggregate.
fn restore_frames(frames: &mut Frames, aggregate: &Aggregate) -> Result<Vec<StackId>, Error> {
    let names = aggregate.names.iter().map(|name| frames.name_id(name)).collect::<Result<Vec<_>, _>>()?;
    let name = |index: u32| names.get(index as usize).copied().unwrap_or(NameId(0));
    let mut ids = Vec::with_capacity(aggregate.frames.len());
    let columns = aggregate.columns.iter().copied().chain(std::iter::repeat(0));
    let modules: Vec<_> = aggregate.modules.iter().map(restore_module).collect();
    let places: FxHashMap<u32, _> = aggregate.places.iter().map(|place| (place.frame, place)).collect();
    for ((at, &(function, file, line)), column) in (0..).zip(&aggregate.frames).zip(columns) {
        let place = places.get(&at).and_then(|place| Some((modules.get(place.module as usize)?, place.offset)));
        ids.push(match place {
            Some((module, offset)) => frames.native_id(module, offset)?,
            None => frames.id_of(Frame { function: name(function), file: name(file), line, column })?,
        });
    }
    let mut stacks = vec![StackId::EMPTY];
    for &(parent, frame) in &aggregate.stacks {
        let parent = stacks.get(parent as usize).copied().unwrap_or(StackId::EMPTY);
        let frame = ids.get(frame as usize).copied().unwrap_or(FrameId(0));
        stacks.push(frames.stack_id(parent, frame)?);
    }
    Ok(stacks)
}

fn save_group(group: &Group) -> aggregate::AggregateGroup {
    let sums = [group.allocated, group.peak, group.leaked, group.leaked_at_exit, group.temporary].map(|sum| {
        let Sum { bytes, count, first_order, first_time_ns } = sum;
        aggregate::AggregateSum { count, bytes, first_order, first_time_ns }
    });
    aggregate::AggregateGroup { stack: group.stack.0, allocator: group.allocator as u8, thread: group.thread.0, sums }
}

/// `None` for an allocator of a later version.
fn restore_group(group: &aggregate::AggregateGroup, stack: StackId) -> Option<Group> {
    let [allocated, peak, leaked, leaked_at_exit, temporary] = group.sums.map(|sum| {
        let aggregate::AggregateSum { count, bytes, first_order, first_time_ns } = sum;
        if count == 0 { Sum::default() } else { Sum { bytes, count, first_order, first_time_ns } }
    });
    let allocator = Allocator::from_number(group.allocator)?;
    let group = Group::new(stack, allocator, ThreadId(group.thread));
    Some(Group { allocated, peak, leaked, leaked_at_exit, temporary, ..group })
}

/// The views in the order of the sums of a group.
const SAVED_VIEWS: [View; aggregate::SUMS] =
    [View::Allocated, View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary];

/// What was counted, if anything was.
fn save_counts(threads: &[Thread]) -> Vec<(u64, u64)> {
    if threads.iter().all(|thread| thread.counted.is_none()) {
        return Vec::new();
    }
    let counted = threads.iter().map(|thread| thread.counted.unwrap_or_default());
    counted.map(|CountedAllocations { bytes, count }| (bytes, count)).collect()
}

fn save_variances(analysis: &Analysis) -> Vec<aggregate::AggregateVariances> {
    analysis.variances.iter().flatten().map(save_view_variances).collect()
}

fn save_view_variances(of_group: &ViewVariances) -> aggregate::AggregateVariances {
    SAVED_VIEWS.map(|view| of_group.of(view).numbers().map(f32::to_bits))
}

/// Those of the groups that are restored.
fn restore_variances(aggregate: &Aggregate) -> Option<Vec<ViewVariances>> {
    let known = |group: &aggregate::AggregateGroup| Allocator::from_number(group.allocator).is_some();
    let all = aggregate.groups.iter().zip(&aggregate.variances).filter(|(group, _)| known(group));
    let variances = all.map(|(_, rows)| {
        let views = SAVED_VIEWS.into_iter().zip(rows);
        views.fold(ViewVariances::default(), |all, (view, row)| {
            all.with(view, Variance::of_numbers(row.map(f32::from_bits)))
        })
    });
    (!aggregate.variances.is_empty()).then(|| variances.collect())
}

fn save_failed(group: &FailedGroup) -> aggregate::AggregateFailed {
    let FailedGroup { stack, allocator, thread, bytes, count, largest_bytes, largest_time_ns } = *group;
    let (stack, allocator, thread) = (stack.0, allocator as u8, thread.0);
    aggregate::AggregateFailed { stack, allocator, thread, bytes, count, largest_bytes, largest_time_ns }
}

/// `None` for an allocator of a later version.
fn restore_failed(group: &aggregate::AggregateFailed, stack: StackId) -> Option<FailedGroup> {
    let aggregate::AggregateFailed { allocator, thread, bytes, count, largest_bytes, largest_time_ns, .. } = *group;
    let (allocator, thread) = (Allocator::from_number(allocator)?, ThreadId(thread));
    Some(FailedGroup { stack, allocator, thread, bytes, count, largest_bytes, largest_time_ns })
}

fn save_mapped(group: &MappedGroup) -> aggregate::AggregateMapped {
    let MappedGroup { class, stack, allocator, thread, bytes, count } = *group;
    let (class, stack, allocator, thread) = (class as u8, stack.0, allocator as u8, thread.0);
    aggregate::AggregateMapped { class, stack, allocator, thread, bytes, count }
}

/// `None` for a class or an allocator of a later version.
fn restore_mapped(group: &aggregate::AggregateMapped, stack: StackId) -> Option<MappedGroup> {
    let aggregate::AggregateMapped { class, allocator, thread, bytes, count, .. } = *group;
    let (class, allocator) = (MapClass::from_number(class)?, Allocator::from_number(allocator)?);
    Some(MappedGroup { class, stack, allocator, thread: ThreadId(thread), bytes, count })
}

fn save_snapshot(snapshot: &Snapshot) -> aggregate::AggregateSnapshot {
    let Snapshot { time_ns, rss_bytes: rss, heap_bytes: heap, order, index: _ } = *snapshot;
    aggregate::AggregateSnapshot { time_ns, rss, heap, order }
}

fn restore_snapshot(index: u32, snapshot: &aggregate::AggregateSnapshot) -> Snapshot {
    let aggregate::AggregateSnapshot { time_ns, rss, heap, order } = *snapshot;
    Snapshot { index, time_ns, rss_bytes: rss, heap_bytes: heap, order }
}

/// The totals by position. A moment takes three numbers: whether it is known, its order, and its time.
fn save_totals(totals: &Totals) -> Vec<u64> {
    let mut copy = totals.clone();
    let mut values: Vec<u64> = numbers(&mut copy).into_iter().map(|field| *field).collect();
    for moment in moments(&mut copy) {
        let Moment { order, time_ns } = moment.unwrap_or_default();
        values.extend([u64::from(moment.is_some()), order, time_ns]);
    }
    values.extend([u64::from(totals.temporary_threshold), totals.inherited_frees, totals.inherited_unmaps]);
    values.extend([totals.earlier_frees, totals.earlier_unmaps]);
    values
}

/// Totals that an earlier version did not write are 0.
fn restore_totals(values: &[u64]) -> Totals {
    let mut values = values.iter().copied().chain(std::iter::repeat(0));
    let mut next = move || values.next().unwrap_or(0);
    let mut totals = Totals::default();
    for field in numbers(&mut totals) {
        *field = next();
    }
    for moment in moments(&mut totals) {
        let (some, order, time_ns) = (next(), next(), next());
        *moment = (some != 0).then_some(Moment { order, time_ns });
    }
    totals.temporary_threshold = u32::try_from(next()).unwrap_or(u32::MAX);
    (totals.inherited_frees, totals.inherited_unmaps) = (next(), next());
    (totals.earlier_frees, totals.earlier_unmaps) = (next(), next());
    totals
}

fn moments(totals: &mut Totals) -> [&mut Option<Moment>; 3] {
    [&mut totals.peak.at, &mut totals.finalizing, &mut totals.exec]
}

/// The fields that are plain numbers. The order is the file's: new ones go to the end of [`save_totals`].
fn numbers(totals: &mut Totals) -> Vec<&mut u64> {
    let Totals { peak, mappings, allocations, leaked, leaked_at_exit, temporary, .. } = totals;
    let Peak { bytes, allocations: peak_allocations, at: _ } = peak;
    let mut fields = vec![
        &mut totals.events,
        &mut totals.deallocations,
        &mut totals.unmatched_frees,
        &mut totals.unmatched_unmaps,
        &mut totals.replaced,
        &mut totals.discarded,
        &mut totals.undone,
        &mut totals.truncated_stacks,
        &mut totals.rss_peak_bytes,
        &mut totals.rss_last_bytes,
        &mut totals.end_time_ns,
        bytes,
        peak_allocations,
    ];
    for Tally { bytes, count, .. } in [allocations, leaked, leaked_at_exit, temporary] {
        fields.extend([bytes, count]);
    }
    let MappingTotals { heap, reserved, file, shared } = mappings;
    for ClassTotals { count, bytes, live_bytes, peak_bytes } in [heap, reserved, file, shared] {
        fields.extend([count, bytes, live_bytes, peak_bytes]);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::{restore, save};
    use crate::analysis::{Analysis, GroupFlow, Tally};
    use crate::event::{Event, EventKind, StackId, Thread, ThreadId};
    use crate::frames::{Frame, Frames};
    use crate::window_groups::WindowGroups;
    use crate::{Options, Replay};
    use memtrack_format::aggregate::Aggregate;
    use memtrack_format::{Allocator, MapClass};

    /// What no group uses is left out, and what is left is the same; ids of tables that have more stay.
    #[test]
    fn a_part_is_saved_with_what_it_uses() {
        let (_, mut frames, threads) = example();
        let name = frames.name_id("other").unwrap();
        let other = frames.id_of(Frame { function: name, file: name, line: 1, column: 0 }).unwrap();
        let used = frames.stack_of(&[other, other, other]).unwrap();
        let unused = frames.stack_of(&[other, other, other, other]).unwrap();
        let tally = |bytes, count| Tally { bytes, count, ..Tally::default() };
        let (thread, allocator) = (ThreadId(0), Allocator::Calloc);
        // A part of a mapping has ended.
        let [allocated, freed, live] = [tally(7, 1), tally(4096, 0), tally(900, 3)];
        let mut window = WindowGroups::new(true);
        window.push(&GroupFlow { stack: used, thread, allocator, allocated, freed, live, peak: None });
        let saved = super::save_window(&window, &frames, &threads);
        assert_eq!(
            (saved.stacks.len(), saved.frames.len(), saved.names.as_slice()),
            (3, 1, ["other".to_owned()].as_slice())
        );
        let saved = Aggregate::decode(&saved.encode()).unwrap();
        let (restored, tables, _) = restore(&saved).unwrap();
        let group = restored.groups.get(0).unwrap();
        let sums = [group.temporary, group.leaked, group.peak, group.allocated].map(|sum| (sum.bytes, sum.count));
        assert_eq!(sums, [(7, 2), (4096, 1), (900, 4), (0, 0)]);
        assert_eq!((group.thread, group.allocator, tables.root_to_leaf(group.stack).len()), (thread, allocator, 3));
        let (restored, _) = super::restore_into(&mut frames, &saved).unwrap();
        assert_eq!((restored.groups.get(0).unwrap().stack, frames.stack_of(&[other; 4]).unwrap()), (used, unused));
    }

    fn example() -> (Analysis, Frames, Vec<Thread>) {
        let mut frames = Frames::new();
        let name = frames.name_id("work").unwrap();
        let frame = frames.id_of(Frame { function: name, file: name, line: 7, column: 5 }).unwrap();
        let stack = frames.stack_of(&[frame, frame]).unwrap();
        let mut replay = Replay::new(&Options::default());
        let kinds = [
            (EventKind::Alloc(Allocator::Malloc), 0x10, 100, stack),
            (EventKind::Map(Allocator::Mmap, MapClass::Heap), 0x10_0000, 4096, StackId::EMPTY),
            (EventKind::Free, 0x10, 0, StackId::EMPTY),
            (EventKind::Alloc(Allocator::Calloc), 0x20, 7, stack),
            (EventKind::FailedAlloc(Allocator::Malloc), 0, 1 << 40, stack),
            (EventKind::Finalizing, 0, 0, StackId::EMPTY),
            (EventKind::Free, 0x999, 0, StackId::EMPTY),
        ];
        for (order, (kind, address, size, stack)) in (0..).zip(kinds) {
            replay.event(&Event { kind, address, size, stack, thread: ThreadId(0), order, time_ns: order * 10 });
        }
        replay.snapshot(100, 1 << 20);
        (replay.finish(), frames, vec![Thread { tid: 4711, name: "main".into(), ..Thread::default() }])
    }

    #[test]
    fn saving_and_restoring_changes_nothing() {
        let (analysis, frames, threads) = example();
        let bytes = save(&analysis, &frames, &threads).encode();
        let (analysis_again, frames_again, threads_again) = restore(&Aggregate::decode(&bytes).unwrap()).unwrap();
        assert_eq!(analysis_again, analysis);
        assert_eq!(threads_again, threads);
        assert_eq!(frames_again.frames(), frames.frames());
        assert!(frames_again.stacks().eq(frames.stacks()));
    }
}
