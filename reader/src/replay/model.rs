//! The one-pass replay against a model that does it the slow way, on random streams of events.
//!
//! The model keeps what is live after every single event and answers each question by looking there: the peak is the
//! first of the largest states, leaks are the state before finalization, what ended is what differs between two states.
//! Undone events are taken out of the stream before it looks.

use std::collections::BTreeMap;

use memtrack_format::{Allocator, MapClass};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{Options, Replay};
use crate::analysis::ordering::{Ordering, samples};
use crate::analysis::{Analysis, Interval, Sum, Tally, View};
use crate::event::{Event, EventKind, StackId, ThreadId};

const PAGE: u64 = 4096;
const PAGES: usize = 24;

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Event(Event),
    Snapshot(u64),
}

/// An operation of a random program; `slot` chooses an address, `size` blocks' bytes or mappings' pages.
#[derive(Clone, Copy, Debug)]
struct Op {
    what: What,
    slot: u8,
    size: u8,
    stack: u8,
    thread: u8,
    jitter: u8,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Alloc(Allocator),
    Free,
    FailedRealloc,
    Map(MapClass),
    Unmap,
    FailedUnmap,
    Remap,
    Snapshot,
    Finalizing,
}

fn what() -> impl Strategy<Value = What> {
    let class = prop_oneof![3 => Just(MapClass::Heap), 1 => Just(MapClass::Reserved), 1 => Just(MapClass::File)];
    prop_oneof![
        10 => prop_oneof![Just(Allocator::Malloc), Just(Allocator::Calloc)].prop_map(What::Alloc),
        8 => Just(What::Free),
        1 => Just(What::FailedRealloc),
        4 => class.prop_map(What::Map),
        3 => Just(What::Unmap),
        1 => Just(What::FailedUnmap),
        1 => Just(What::Remap),
        3 => Just(What::Snapshot),
        1 => prop_oneof![9 => Just(What::Snapshot), 1 => Just(What::Finalizing)],
    ]
}

fn op() -> impl Strategy<Value = Op> {
    (what(), 0u8..16, 0u8..6, 1u8..5, 0u8..3, 0u8..60).prop_map(|(what, slot, size, stack, thread, jitter)| Op {
        what,
        slot,
        size,
        stack,
        thread,
        jitter,
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..150)
}

/// The steps of these operations. With `jitter`, times contradict the order a little, as real clocks do.
fn steps(ops: &[Op], jitter: bool) -> Vec<ModelStep> {
    let mut steps = Vec::new();
    let mut order = 0;
    for op in ops {
        let mut put = |kind, address, size| {
            let (stack, thread) = (StackId(op.stack.into()), ThreadId(op.thread.into()));
            let time_ns = 100 + order * 10 + if jitter { u64::from(op.jitter) } else { 0 };
            steps.push(ModelStep::Event(Event { kind, address, size, stack, thread, order, time_ns }));
            order += 1;
        };
        let block = 0x100 + u64::from(op.slot);
        let (page, pages) = (0x10_0000 + u64::from(op.slot) * PAGE, u64::from(op.size.max(1)) * PAGE);
        match op.what {
            What::Alloc(allocator) => put(EventKind::Alloc(allocator), block, u64::from(op.size) * 1000),
            What::Free => put(EventKind::Free, block, 0),
            What::FailedRealloc => {
                put(EventKind::Free, block, 0);
                put(EventKind::FreeUndo, 0, 0);
            }
            What::Map(class) => put(EventKind::Map(Allocator::Mmap, class), page, pages),
            What::Unmap => put(EventKind::Unmap, page, pages),
            What::FailedUnmap => {
                put(EventKind::Unmap, page, pages);
                put(EventKind::UnmapUndo, 0, 0);
            }
            What::Remap => {
                put(EventKind::RemapFrom, page, pages);
                put(EventKind::Map(Allocator::Mremap, MapClass::Inherited), page + 3 * PAGE, pages);
            }
            What::Finalizing => put(EventKind::Finalizing, 0, 0),
            What::Snapshot => steps.push(ModelStep::Snapshot(100 + order * 10 - 5)),
        }
    }
    steps
}

fn replayed(steps: &[ModelStep], options: &Options) -> Analysis {
    let mut replay = Replay::new(options);
    for step in steps {
        match step {
            ModelStep::Event(event) => replay.event(event),
            ModelStep::Snapshot(time_ns) => {
                replay.snapshot(*time_ns, 0);
            }
        }
    }
    replay.finish()
}

type ModelKey = (StackId, Allocator, ThreadId);
/// Live bytes of each allocation, by its number.
type ModelState = BTreeMap<usize, u64>;

#[derive(Clone, Copy, Debug)]
struct ModelBlock {
    key: ModelKey,
    size: u64,
    order: u64,
    time_ns: u64,
    /// Snapshots before it.
    snapshot: u32,
}

/// What happened at one event, and the state after it.
#[derive(Debug)]
struct ModelSeen {
    event: Event,
    snapshot: u32,
    live: ModelState,
}

#[derive(Debug, Default)]
struct Model {
    made: Vec<ModelBlock>,
    seen: Vec<ModelSeen>,
    blocks: BTreeMap<u64, usize>,
    pages: [Option<(usize, MapClass)>; PAGES],
    remap_class: BTreeMap<ThreadId, MapClass>,
    class_peaks: BTreeMap<MapClass, u64>,
}

impl Model {
    fn of(steps: &[ModelStep]) -> Self {
        let mut model = Self::default();
        let mut snapshot = 0;
        let undone = |index: usize| {
            let next = steps.get(index + 1);
            let undoes = |kind| matches!(kind, EventKind::FreeUndo | EventKind::UnmapUndo);
            matches!(next, Some(ModelStep::Event(event)) if undoes(event.kind))
        };
        for (index, step) in steps.iter().enumerate() {
            match step {
                ModelStep::Snapshot(_) => snapshot += 1,
                ModelStep::Event(event)
                    if undone(index) || matches!(event.kind, EventKind::FreeUndo | EventKind::UnmapUndo) => {}
                ModelStep::Event(event) => model.step(*event, snapshot),
            }
        }
        model
    }

    fn step(&mut self, event: Event, snapshot: u32) {
        match event.kind {
            EventKind::Alloc(allocator) => {
                let id = self.make(&event, allocator, snapshot);
                self.blocks.insert(event.address, id);
            }
            EventKind::Free => {
                self.blocks.remove(&event.address);
            }
            EventKind::Unmap => self.fill(&event, None),
            EventKind::RemapFrom => {
                let class = self.pages[page_range(&event).start].map_or(MapClass::Heap, |(_, class)| class);
                self.remap_class.insert(event.thread, class);
                self.fill(&event, None);
            }
            EventKind::Map(allocator, class) => {
                let class = if class == MapClass::Inherited { self.remap_class[&event.thread] } else { class };
                let id = if class == MapClass::Heap { self.make(&event, allocator, snapshot) } else { usize::MAX };
                self.fill(&event, Some((id, class)));
            }
            _ => {}
        }
        let live = self.state();
        self.seen.push(ModelSeen { event, snapshot, live });
    }

    fn make(&mut self, event: &Event, allocator: Allocator, snapshot: u32) -> usize {
        let &Event { stack, thread, size, order, time_ns, .. } = event;
        self.made.push(ModelBlock { key: (stack, allocator, thread), size, order, time_ns, snapshot });
        self.made.len() - 1
    }

    fn fill(&mut self, event: &Event, with: Option<(usize, MapClass)>) {
        self.pages[page_range(event)].fill(with);
        for class in [MapClass::Heap, MapClass::Reserved, MapClass::File] {
            let pages = self.pages.iter().flatten().filter(|page| page.1 == class).count();
            let peak = self.class_peaks.entry(class).or_default();
            *peak = (*peak).max(pages as u64 * PAGE);
        }
    }

    fn state(&self) -> ModelState {
        let mut state: ModelState = self.blocks.values().map(|&id| (id, self.made[id].size)).collect();
        for &(id, _) in self.pages.iter().flatten().filter(|page| page.1 == MapClass::Heap) {
            *state.entry(id).or_default() += PAGE;
        }
        state
    }

    fn sums<'a>(&self, parts: impl Iterator<Item = (&'a usize, &'a u64)>) -> BTreeMap<ModelKey, Sum> {
        let mut sums: BTreeMap<ModelKey, Sum> = BTreeMap::new();
        for (&id, &bytes) in parts {
            let made = self.made[id];
            sums.entry(made.key).or_default().add(bytes, 1, made.order, made.time_ns);
        }
        sums
    }

    fn peak(&self) -> (u64, ModelState) {
        let bytes = |seen: &ModelSeen| seen.live.values().sum::<u64>();
        let most = self.seen.iter().map(bytes).max().unwrap_or(0);
        let first = self.seen.iter().find(|seen| bytes(seen) == most && most > 0);
        (most, first.map(|seen| seen.live.clone()).unwrap_or_default())
    }

    fn at_exit(&self) -> ModelState {
        self.seen.last().map(|seen| seen.live.clone()).unwrap_or_default()
    }

    fn at_finalization(&self) -> ModelState {
        match self.seen.iter().find(|seen| seen.event.kind == EventKind::Finalizing) {
            Some(seen) => seen.live.clone(),
            None => self.at_exit(),
        }
    }

    /// (number, bytes lost, nothing left, event) for each allocation that lost bytes at an event.
    fn losses(&self) -> Vec<(usize, u64, bool, &ModelSeen)> {
        let mut losses = Vec::new();
        for pair in self.seen.windows(2) {
            for (&id, &before) in &pair[0].live {
                let after = pair[1].live.get(&id);
                if after != Some(&before) {
                    losses.push((id, before - after.unwrap_or(&0), after.is_none(), &pair[1]));
                }
            }
        }
        losses
    }

    fn temporary(&self, threshold: usize) -> ModelState {
        let is_temporary = |id: usize, seen: &ModelSeen| {
            let (made, event) = (self.made[id], seen.event);
            let between = |other: &&ModelBlock| other.order > made.order && other.order < event.order;
            let further = self.made.iter().filter(between).filter(|other| other.key.2 == event.thread).count();
            let replaced = matches!(event.kind, EventKind::Alloc(_));
            made.key.2 == event.thread && further <= threshold && !replaced
        };
        let ended = self.losses().into_iter().filter(|&(id, _, whole, seen)| whole && is_temporary(id, seen));
        ended.map(|(id, ..)| (id, self.made[id].size)).collect()
    }

    fn intervals(&self) -> BTreeMap<(ModelKey, u32, Option<u32>), Tally> {
        let mut intervals: BTreeMap<_, Tally> = BTreeMap::new();
        for (id, bytes, whole, seen) in self.losses() {
            let made = self.made[id];
            if made.snapshot < seen.snapshot {
                let tally = intervals.entry((made.key, made.snapshot, Some(seen.snapshot))).or_default();
                tally.add(bytes, whole.into());
            }
        }
        for (id, bytes) in self.at_exit() {
            let made = self.made[id];
            intervals.entry((made.key, made.snapshot, None)).or_default().add(bytes, 1);
        }
        intervals
    }
}

fn page_range(event: &Event) -> std::ops::Range<usize> {
    let page = |address: u64| usize::try_from((address - 0x10_0000) / PAGE).unwrap();
    page(event.address)..page(event.address + event.size)
}

fn sums_of(analysis: &Analysis, view: View) -> BTreeMap<ModelKey, Sum> {
    let rows = analysis.view(view).into_iter();
    rows.map(|row| {
        let sum =
            Sum { bytes: row.bytes, count: row.count, first_order: row.first_order, first_time_ns: row.first_time_ns };
        ((row.stack, row.allocator, row.thread), sum)
    })
    .collect()
}

fn keyed(analysis: &Analysis, interval: &Interval) -> ((ModelKey, u32, Option<u32>), Tally) {
    let group = analysis.groups.get(interval.group as usize).unwrap();
    let key = (group.stack, group.allocator, group.thread);
    let tally = Tally { bytes: interval.bytes, count: interval.count, ..Tally::default() };
    ((key, interval.first_snapshot, interval.end_snapshot), tally)
}

proptest! {
    #[test]
    fn one_pass_agrees_with_the_model(ops in ops(), temporary_threshold in 0u32..4, jitter: bool) {
        let steps = steps(&ops, jitter);
        let analysis = replayed(&steps, &Options { temporary_threshold, moments: u32::MAX, exact_times: true, ..Options::default() });
        let model = Model::of(&steps);
        let (peak_bytes, peak_state) = model.peak();
        let all: ModelState = model.made.iter().map(|made| made.size).enumerate().collect();
        prop_assert_eq!(analysis.totals.peak.bytes, peak_bytes);
        prop_assert_eq!(analysis.totals.peak.allocations, peak_state.len() as u64);
        prop_assert_eq!(sums_of(&analysis, View::HighWaterMark), model.sums(peak_state.iter()));
        prop_assert_eq!(sums_of(&analysis, View::Leaks), model.sums(model.at_finalization().iter()));
        prop_assert_eq!(sums_of(&analysis, View::LeaksAtExit), model.sums(model.at_exit().iter()));
        prop_assert_eq!(sums_of(&analysis, View::Temporary), model.sums(model.temporary(temporary_threshold as usize).iter()));
        prop_assert_eq!(sums_of(&analysis, View::Allocated), model.sums(all.iter()));
        let intervals: BTreeMap<_, _> =
            analysis.intervals.as_ref().unwrap().summed().iter().map(|interval| keyed(&analysis, interval)).collect();
        prop_assert_eq!(intervals, model.intervals());
        let totals = &analysis.totals;
        prop_assert_eq!(totals.allocations.count, totals.deallocations + totals.replaced + totals.leaked_at_exit.count);
        let peaks = |class| model.class_peaks.get(&class).copied().unwrap_or(0);
        prop_assert_eq!(totals.mappings.heap.peak_bytes, peaks(MapClass::Heap));
        prop_assert_eq!(totals.mappings.reserved.peak_bytes, peaks(MapClass::Reserved));
        prop_assert_eq!(totals.mappings.file.peak_bytes, peaks(MapClass::File));
    }

    /// Of each few neighbours the highest snapshot is a moment, and at moments everything is known that is known at all.
    #[test]
    fn what_is_live_at_moments_is_exact(ops in ops(), moments in 1u32..6) {
        let steps = steps(&ops, false);
        let snapshots = steps.iter().filter(|step| matches!(step, ModelStep::Snapshot(_))).count();
        let options = Options { moments: u32::MAX, exact_times: true, ..Options::default() };
        let whole = replayed(&steps, &options);
        let few = replayed(&steps, &Options { moments, snapshots: snapshots as u64, ..options });
        let (known, step) = few.intervals.as_ref().unwrap().moments();
        prop_assert_eq!(step as usize, (snapshots + 1).div_ceil(moments as usize));
        let heap = |at: &u32| (whole.snapshots[*at as usize].heap_bytes, u32::MAX - at);
        let all: Vec<u32> = (0..snapshots as u32).collect();
        let highest: Vec<u32> = all.chunks(step as usize).filter_map(|chunk| chunk.iter().copied().max_by_key(heap)).collect();
        let known = known.unwrap_or(&all);
        prop_assert_eq!(known, &highest[..]);
        let live = |analysis: &Analysis, at: u32| {
            let mut live: BTreeMap<u32, Tally> = BTreeMap::new();
            let is_live = |life: &Interval| life.first_snapshot <= at && life.end_snapshot.is_none_or(|end| at < end);
            for life in analysis.intervals.as_ref().unwrap().iter().filter(is_live) {
                live.entry(life.group).or_default().add(life.bytes, life.count);
            }
            live
        };
        for at in known.iter().copied().chain([snapshots as u32]) {
            prop_assert_eq!(live(&whole, at), live(&few, at), "at {}", at);
        }
    }

    /// With timestamps, the order by snapshot never contradicts the order by exact time.
    #[test]
    fn orders_agree_across_snapshots(ops in ops(), jitter: bool) {
        let analysis = replayed(&steps(&ops, jitter), &Options { exact_times: true, ..Options::default() });
        for view in [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated] {
            let rows = analysis.view(view);
            let exact = samples(&rows, Ordering::Exact);
            let place = |stack| exact.iter().position(|sample| sample.stack == stack);
            for pair in samples(&rows, Ordering::Snapshot).windows(2) {
                if pair[0].first_snapshot != pair[1].first_snapshot {
                    prop_assert!(place(pair[0].stack) < place(pair[1].stack));
                }
            }
        }
    }

    /// Where time and total order agree, it makes no difference for the order by snapshot whether times are exact.
    #[test]
    fn order_by_snapshot_does_not_need_timestamps(ops in ops()) {
        let steps = steps(&ops, false);
        let run = |exact_times| replayed(&steps, &Options { exact_times, ..Options::default() });
        let (with, without) = (run(true), run(false));
        for view in [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated] {
            prop_assert_eq!(with.view(view), without.view(view));
        }
    }

    /// Any stream at all, contradictory undo events included, is survived with a heap that adds up.
    #[test]
    fn any_stream_is_survived(
        events in prop::collection::vec((0u8..9, 0u64..8, 0u64..4, 0u32..3), 0..200), far: bool, seed in any::<u64>(),
    ) {
        let mut replay = Replay::new(&Options { moments: u32::MAX, ..Options::default() });
        for (order, &(kind, slot, size, thread)) in events.iter().enumerate() {
            let kind = match kind {
                0 => EventKind::Alloc(Allocator::Malloc),
                1 => EventKind::Free,
                2 => EventKind::FreeUndo,
                3 => EventKind::Map(Allocator::Mmap, MapClass::Heap),
                4 => EventKind::Unmap,
                5 => EventKind::RemapFrom,
                6 => EventKind::UnmapUndo,
                7 => EventKind::Map(Allocator::Mremap, MapClass::Inherited),
                _ => EventKind::Finalizing,
            };
            let address = if far { seed.wrapping_add(slot * PAGE) } else { slot * PAGE };
            let (stack, thread, order) = (StackId(1), ThreadId(thread), order as u64);
            replay.event(&Event { kind, address, size: size * PAGE, stack, thread, order, time_ns: order });
            if slot == 0 {
                replay.snapshot(order, 0);
            }
        }
        let analysis = replay.finish();
        prop_assert_eq!(analysis.totals.events, events.len() as u64);
        if !far {
            prop_assert_eq!(analysis.totals.leaked_at_exit, replay.live());
        }
    }
}
