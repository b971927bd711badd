//! Joins events to whole allocations: where and when each was made, and how it ended.
//!
//! An allocation is emitted once, when it or the recording has ended. The thread's next event may undo a free, so the
//! allocation that a thread freed last waits for that event. Memory grows with the live heap, not with the capture; an
//! allocation that cannot match when it is made is not kept.
//!
//! Invariant: each allocation that counts as heap is emitted exactly once.

use std::collections::hash_map::Entry;

use memtrack_format::{Allocator, MapClass};
use rustc_hash::FxHashMap;

use super::key_moments::KeyMoments;
use super::matcher::Matcher;
use crate::allocation_record::{AllocationOutcome, AllocationRecord, AllocationStart};
use crate::analysis::LiveBlock;
use crate::decoded_run::{Compact, DecodedRun};
use crate::event::{Event, EventKind, RunEvent, ThreadId};
use crate::frames::Frames;
use crate::replay::mappings::{Cut, Mappings};
use crate::source::Consumer;

#[derive(Clone, Copy, Debug)]
struct LiveAllocation {
    start: AllocationStart,
    /// The number of the allocation in its thread.
    nth: u64,
}

#[derive(Debug, Default)]
struct ScanThread {
    allocations: u64,
    /// The allocations that its last event ended, which its next event may undo.
    ended: Vec<AllocationEnd>,
    remap_class: Option<MapClass>,
}

#[derive(Debug)]
enum AllocationEnd {
    Block(u64, LiveAllocation, AllocationRecord),
    /// A piece of a mapping; with the mapping's end, if nothing of it was left.
    Piece(Cut, Option<(LiveAllocation, AllocationRecord)>),
}

/// A consumer of events that calls `sink` with each whole allocation, or with each that matches.
#[derive(Debug)]
pub struct AllocationScan<'a, S> {
    moments: KeyMoments,
    matcher: Option<&'a Matcher>,
    /// Bytes of the smallest allocation that may match.
    least_bytes: u64,
    sink: S,
    heap: FxHashMap<u64, LiveAllocation>,
    mappings: Mappings,
    /// Mappings that count as heap, by the order of their event.
    mapped: FxHashMap<u64, LiveAllocation>,
    threads: Vec<ScanThread>,
    now_ns: u64,
    next_order: u64,
}

impl<'a, S: FnMut(&AllocationRecord)> AllocationScan<'a, S> {
    /// Nothing is live yet. `matcher`: which allocations are wanted.
    pub fn new(moments: KeyMoments, matcher: Option<&'a Matcher>, sink: S) -> Self {
        Self {
            moments,
            matcher,
            least_bytes: matcher.map_or(0, Matcher::least_bytes),
            sink,
            heap: FxHashMap::default(),
            mappings: Mappings::default(),
            mapped: FxHashMap::default(),
            threads: Vec::new(),
            now_ns: 0,
            next_order: 0,
        }
    }

    /// Emits the allocations that are live at the end, in the order in which they were made; returns the sink.
    pub fn finish(mut self) -> S {
        for thread in 0..self.threads.len() {
            self.settle(thread);
        }
        let live = std::mem::take(&mut self.heap).into_values().chain(std::mem::take(&mut self.mapped).into_values());
        let mut live: Vec<_> = live.collect();
        live.sort_unstable_by_key(|alive| alive.start.order);
        let end_ns = self.moments.end_ns.max(self.now_ns);
        for alive in live {
            let life = self.life(&alive, AllocationOutcome::Live, end_ns);
            self.emit(&life);
        }
        self.sink
    }

    #[inline]
    fn emit(&mut self, life: &AllocationRecord) {
        if self.matcher.is_none_or(|matcher| matcher.takes(life)) {
            (self.sink)(life);
        }
    }

    fn thread(&mut self, thread: ThreadId) -> &mut ScanThread {
        let index = thread.0 as usize;
        if index >= self.threads.len() {
            self.threads.resize_with(index + 1, ScanThread::default);
        }
        &mut self.threads[index]
    }

    /// Emits what the thread ended last: it was not undone.
    #[inline]
    fn settle(&mut self, thread: usize) {
        let Some(state) = self.threads.get_mut(thread).filter(|state| !state.ended.is_empty()) else { return };
        let mut all = std::mem::take(&mut state.ended);
        for ended in all.drain(..) {
            if let AllocationEnd::Block(_, _, life) | AllocationEnd::Piece(_, Some((_, life))) = ended {
                self.emit(&life);
            }
        }
        // Its memory is used again.
        self.threads[thread].ended = all;
    }

    fn life(&self, alive: &LiveAllocation, fate: AllocationOutcome, end_ns: u64) -> AllocationRecord {
        let AllocationStart { stack, allocator, thread, size, order, time_ns } = alive.start;
        let end = match fate {
            AllocationOutcome::Freed { order, .. } | AllocationOutcome::Lost { order } => order,
            AllocationOutcome::Live => u64::MAX,
        };
        let lived_at = |moment: Option<u64>| moment.is_some_and(|moment| order <= moment && moment < end);
        let temporary =
            matches!(fate, AllocationOutcome::Freed { thread: by, .. } if by == thread && self.is_recent(alive));
        AllocationRecord {
            stack,
            allocator,
            thread,
            size,
            order,
            time_ns,
            lifetime_ns: end_ns.saturating_sub(time_ns),
            fate,
            leaked: if self.moments.finalizing.is_some() {
                lived_at(self.moments.finalizing)
            } else {
                fate == AllocationOutcome::Live
            },
            temporary,
            peak: lived_at(self.moments.peak),
        }
    }

    fn is_recent(&self, alive: &LiveAllocation) -> bool {
        let count = self.threads.get(alive.start.thread.0 as usize).map_or(0, |state| state.allocations);
        count.saturating_sub(alive.nth) <= u64::from(self.moments.temporary_threshold)
    }

    /// The allocation that an event makes; `None` if it cannot match.
    #[inline]
    fn alive(&mut self, event: &Event, allocator: Allocator) -> Option<LiveAllocation> {
        let state = self.thread(event.thread);
        state.allocations += 1;
        let nth = state.allocations;
        let Event { stack, thread, size, order, time_ns, .. } = *event;
        let start = AllocationStart { stack, allocator, thread, size, order, time_ns };
        let may_match = self.matcher.is_none_or(|matcher| matcher.may_take(&start, &self.moments));
        may_match.then_some(LiveAllocation { start, nth })
    }

    /// Passes events of blocks that are too small to match, where nothing is known of their addresses; returns the place of the
    /// first other one, or the end.
    #[inline]
    fn pass_small(&mut self, run: &DecodedRun<'_>, from: usize) -> usize {
        let (least_bytes, heap) = (self.least_bytes, &self.heap);
        let is_other = |event: &Compact| match event.kind {
            EventKind::Alloc(_) => event.size >= least_bytes || heap.contains_key(&event.address),
            EventKind::Free => heap.contains_key(&event.address),
            _ => true,
        };
        let rest = run.compact().get(from..).unwrap_or_default();
        let passed = rest.get(..rest.iter().position(is_other).unwrap_or(rest.len())).unwrap_or_default();
        if !passed.is_empty() {
            let thread = run.thread();
            self.settle(thread.0 as usize);
            let allocations = passed.iter().filter(|event| event.kind != EventKind::Free).count();
            self.thread(thread).allocations += allocations as u64;
        }
        from + passed.len()
    }

    fn lose(&mut self, alive: &LiveAllocation, order: u64, time_ns: u64) {
        let life = self.life(alive, AllocationOutcome::Lost { order }, time_ns);
        self.emit(&life);
    }

    fn allocate(&mut self, event: &Event, allocator: Allocator) {
        let replaced = match self.alive(event, allocator) {
            Some(alive) => self.heap.insert(event.address, alive),
            None => self.heap.remove(&event.address),
        };
        if let Some(replaced) = replaced {
            self.lose(&replaced, event.order, event.time_ns);
        }
    }

    fn free(&mut self, event: &Event) {
        let Some(alive) = self.heap.remove(&event.address) else { return };
        let life =
            self.life(&alive, AllocationOutcome::Freed { thread: event.thread, order: event.order }, event.time_ns);
        self.thread(event.thread).ended.push(AllocationEnd::Block(event.address, alive, life));
    }

    fn map(&mut self, event: &Event, allocator: Allocator, class: MapClass) {
        if event.size == 0 {
            return;
        }
        let inherited = self.thread(event.thread).remap_class.unwrap_or(MapClass::Heap);
        let class = if class == MapClass::Inherited { inherited } else { class };
        self.cut(event);
        self.settle(event.thread.0 as usize);
        let block = LiveBlock::outside(event);
        self.mappings.insert(event.address, block, class);
        if class == MapClass::Heap {
            let alive = self.alive(event, allocator);
            self.mapped.extend(alive.map(|alive| (event.order, alive)));
        }
    }

    /// Takes the event's range out of the mappings.
    fn cut(&mut self, event: &Event) {
        let mut cuts = Vec::new();
        self.mappings.cut(event.address, event.size, &mut cuts);
        for cut in cuts {
            let order = cut.mapping.block.order;
            let alive = if cut.last { self.mapped.remove(&order) } else { None };
            let fate = AllocationOutcome::Freed { thread: event.thread, order: event.order };
            let end = alive.map(|alive| (alive, self.life(&alive, fate, event.time_ns)));
            self.thread(event.thread).ended.push(AllocationEnd::Piece(cut, end));
        }
    }

    fn undo(&mut self, event: &Event) {
        let ended = std::mem::take(&mut self.thread(event.thread).ended);
        for ended in ended.into_iter().rev() {
            match ended {
                AllocationEnd::Block(address, alive, life) => match self.heap.entry(address) {
                    Entry::Vacant(place) => {
                        place.insert(alive);
                    }
                    // Another block stands there by now: the free did take place.
                    Entry::Occupied(_) => self.emit(&life),
                },
                AllocationEnd::Piece(cut, end) => {
                    let restored = self.mappings.restore(&cut).is_some();
                    match end {
                        Some((alive, _)) if restored => drop(self.mapped.insert(alive.start.order, alive)),
                        Some((_, life)) => self.emit(&life),
                        None => {}
                    }
                }
            }
        }
    }
}

impl<S: FnMut(&AllocationRecord)> Consumer for AllocationScan<'_, S> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.now_ns = self.now_ns.max(event.time_ns);
        self.next_order = event.order.saturating_add(1);
        if !matches!(event.kind, EventKind::FreeUndo | EventKind::UnmapUndo) {
            self.settle(event.thread.0 as usize);
        }
        match event.kind {
            EventKind::Alloc(allocator) => self.allocate(event, allocator),
            EventKind::Free => self.free(event),
            EventKind::Map(allocator, class) => self.map(event, allocator, class),
            EventKind::Unmap => self.cut(event),
            EventKind::RemapFrom => {
                let class = self.mappings.class_at(event.address).unwrap_or(MapClass::Heap);
                self.thread(event.thread).remap_class = Some(class);
                self.cut(event);
            }
            EventKind::FreeUndo | EventKind::UnmapUndo => self.undo(event),
            EventKind::FailedAlloc(_) | EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => {}
        }
    }

    fn decoded_run(&mut self, run: &DecodedRun<'_>, frames: &Frames) {
        if self.least_bytes == 0 || run.compact().is_empty() {
            return run.run_events().for_each(|RunEvent { event, .. }| self.event(&event, frames));
        }
        let length = run.compact().len();
        let mut place = 0;
        while place < length {
            place = self.pass_small(run, place);
            if let Some(compact) = run.compact().get(place) {
                self.event(&run.event(place, compact), frames);
                place += 1;
            }
        }
        self.now_ns = self.now_ns.max(run.latest_ns());
        self.next_order = self.next_order.max(run.order(length));
    }

    fn ended(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
    }

    fn replaced(&mut self) {
        for thread in 0..self.threads.len() {
            self.settle(thread);
        }
        let gone = std::mem::take(&mut self.heap).into_values().chain(std::mem::take(&mut self.mapped).into_values());
        let (order, now_ns) = (self.next_order, self.now_ns);
        for alive in gone.collect::<Vec<_>>() {
            self.lose(&alive, order, now_ns);
        }
        self.mappings = Mappings::default();
        self.threads.clear();
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::{AllocationScan, Consumer};
    use crate::decoded_run::with_decoded_run;
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::query::{AllocationRecord, Amount, Comparison, Expr, Flag, KeyMoments, MatchContext, Matcher, Number};

    fn event((kind, place, size): (u8, u8, u8)) -> Event {
        let (kind, address) = match kind % 16 {
            0..7 => (EventKind::Alloc(Allocator::Malloc), 0x1000),
            7..12 => (EventKind::Free, 0x1000),
            12 => (EventKind::FreeUndo, 0),
            13 => (EventKind::Map(Allocator::Mmap, MapClass::Heap), 0x10_0000),
            14 => (EventKind::Unmap, 0x10_0000),
            _ => (EventKind::Finalizing, 0),
        };
        let address = address + u64::from(place % 8) * if address == 0x1000 { 16 } else { 4096 };
        let (stack, thread) = (StackId(u32::from(place) % 5), ThreadId(0));
        Event { kind, address, size: size.into(), stack, thread, order: 0, time_ns: 0 }
    }

    fn expr(comparison: Comparison, bytes: u64) -> Expr {
        let least = Expr::Number(Number::Bytes, comparison, Amount::Plain(bytes));
        Expr::And(vec![
            Expr::Or(vec![Expr::Flag(Flag::Peak), Expr::Flag(Flag::Live), Expr::Flag(Flag::Temporary)]),
            least,
        ])
    }

    proptest! {
        /// Of runs, small blocks are passed over.
        #[test]
        fn allocations_of_runs_are_those_of_their_events(
            made in prop::collection::vec(any::<(u8, u8, u8)>(), 1..200), lengths in prop::collection::vec((1usize..20, 0u32..3), 1..9),
            least in 0u64..300, peak in 0u64..200,
            comparison in prop::sample::select(vec![Comparison::Less, Comparison::Equal, Comparison::AtLeast, Comparison::More]),
        ) {
            let frames = Frames::new();
            let matcher = Matcher::new(&expr(comparison, least), &MatchContext { frames: &frames, threads: &[], start_ns: 0, duration_ns: 0 });
            let moments = KeyMoments { peak: Some(peak), temporary_threshold: 2, ..KeyMoments::default() };
            let (mut of_runs, mut of_events) = (Vec::new(), Vec::new());
            let mut runs = AllocationScan::new(moments, Some(&matcher), |life: &AllocationRecord| of_runs.push(*life));
            let mut events = AllocationScan::new(moments, Some(&matcher), |life: &AllocationRecord| of_events.push(*life));
            let numbered = |(order, made)| Event { order, time_ns: order / 3, ..event(made) };
            let made: Vec<_> = (0..).zip(made).map(numbered).collect();
            let (mut left, mut lengths) = (&made[..], lengths.iter().cycle());
            while !left.is_empty() {
                let &(length, thread) = lengths.next().unwrap();
                let (run, behind) = left.split_at(left.len().min(length));
                let run: Vec<_> = run.iter().map(|event| Event { thread: ThreadId(thread), ..*event }).collect();
                with_decoded_run(&run, |run| runs.decoded_run(run, &frames));
                run.iter().for_each(|one| events.event(one, &frames));
                left = behind;
            }
            let _ = (runs.finish(), events.finish());
            prop_assert_eq!(of_runs, of_events);
        }
    }
}
