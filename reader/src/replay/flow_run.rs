//! Replays runs where nothing is asked for but what groups have allocated and freed, and the peak: the live view.
//!
//! A report knows more of each block: when it began, whether it was temporary, what has ended of its group since the peak. Nobody
//! asks for that while the program runs, and to keep it takes half of the time. Most blocks are found in a table of recent addresses,
//! and not in the heap; blocks of a small heap are not looked up ahead, since they are in the cache.
//!
//! Invariant: flows, live heap, peak and counters of unknown blocks are those of [`Replay::run_and`]; other sums, and when a block began,
//! are not kept.

use std::ops::Range;

use super::addresses::Bottom;
use super::{Replay, thread};
use crate::analysis::{ExactFlow, GroupFlow, LiveBlock, Moment, RunningFlow};
use crate::decoded_run::DecodedRun;
use crate::event::{Event, EventKind};

/// Events that are looked up together on a large heap.
const TOGETHER: usize = if cfg!(test) { 2 } else { 32 };
/// Groups of so many events of which something is known: one is replayed, in one the blocks are found, in one the nodes.
const GROUPS: usize = 3;

/// What was found of the addresses of some events.
type FoundBottoms = [Bottom; TOGETHER];

impl Replay {
    /// Whether only sums are asked for: then [`Replay::flow_run`] suffices to whoever asks for flows alone.
    pub(crate) fn is_sums_only(&self) -> bool {
        self.watch.is_none() && self.sums.is_sums_only()
    }

    /// What each group has allocated and freed so far, in the order of their first allocations; without
    /// [`Options::flows`](crate::Options::flows) nothing.
    pub fn flows(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        self.running_flows().map(|running| running.flow)
    }

    /// The same, of which differences can be taken.
    pub(crate) fn running_flows(&self) -> impl Iterator<Item = RunningFlow> + '_ {
        self.sums.flows()
    }

    /// The same of a recording without samples.
    pub(crate) fn exact_flows(&self) -> Option<impl Iterator<Item = ExactFlow> + '_> {
        self.sums.exact_flows()
    }

    /// The [peaks](GroupFlow::peak) of flows are from now on.
    pub fn begin_window(&mut self) {
        self.sums.begin_window();
    }

    /// Replays the next events.
    pub(crate) fn flow_run(&mut self, run: &DecodedRun<'_>) {
        let length = run.compact().len();
        if length == 0 {
            return;
        }
        let totals = &mut self.sums.totals;
        totals.events += length as u64;
        totals.end_time_ns = totals.end_time_ns.max(run.latest_ns());
        self.heap.tidy();
        if self.recent.pays(length as u64) {
            self.flow_by::<true>(run);
        } else {
            self.settle_recent();
            self.flow_by::<false>(run);
        }
        self.next_order = run.order(length);
    }

    /// `RECENT`: recent addresses are looked up before the heap.
    #[inline]
    fn flow_by<const RECENT: bool>(&mut self, run: &DecodedRun<'_>) {
        if self.heap.is_large() {
            self.flow_ahead::<RECENT>(run);
        } else {
            self.flow_events::<RECENT>(run, 0..run.compact().len(), |_| Bottom::UNKNOWN);
        }
    }

    /// The same on a large heap: each look-up misses the cache at the node of the address and at its block. So nodes are found two
    /// groups of events ahead, and blocks one.
    fn flow_ahead<const RECENT: bool>(&mut self, run: &DecodedRun<'_>) {
        let length = run.compact().len();
        let group = |number: usize| number * TOGETHER..length.min((number + 1) * TOGETHER);
        let groups = length.div_ceil(TOGETHER);
        let mut found = [[Bottom::UNKNOWN; TOGETHER]; GROUPS];
        for number in 0..groups + 2 {
            if number < groups {
                self.find_nodes::<RECENT>(run, group(number), &mut found[number % GROUPS]);
            }
            if (1..=groups).contains(&number) {
                self.find_blocks(run, group(number - 1), &found[(number - 1) % GROUPS]);
            }
            if number >= 2 {
                let found = found[(number - 2) % GROUPS];
                self.flow_events::<RECENT>(run, group(number - 2), |place| found[place % TOGETHER]);
            }
        }
    }

    /// Looks up the nodes of addresses of which nothing is noted.
    #[inline]
    fn find_nodes<const RECENT: bool>(&self, run: &DecodedRun<'_>, group: Range<usize>, found: &mut FoundBottoms) {
        let events = run.compact().get(group).unwrap_or_default();
        for (found, event) in found.iter_mut().zip(events) {
            *found = Bottom::UNKNOWN;
            if !RECENT || !self.recent.has(event.address) {
                *found = self.heap.bottom(event.address);
            }
        }
    }

    /// Looks up their blocks.
    #[inline]
    fn find_blocks(&self, run: &DecodedRun<'_>, group: Range<usize>, found: &FoundBottoms) {
        let events = run.compact().get(group).unwrap_or_default();
        found.iter().zip(events).for_each(|(found, event)| self.heap.prefetch_block(event.address, *found));
    }

    #[inline(always)]
    fn flow_events<const RECENT: bool>(
        &mut self,
        run: &DecodedRun<'_>,
        mut part: Range<usize>,
        bottom: impl Fn(usize) -> Bottom,
    ) {
        loop {
            part.start = self.flow_blocks::<RECENT>(run, part.clone(), &bottom);
            if part.is_empty() {
                return;
            }
            self.flow_rare(run, part.start);
            part.start += 1;
        }
    }

    /// An event other than those of blocks that are known.
    #[cold]
    fn flow_rare(&mut self, run: &DecodedRun<'_>, place: usize) {
        let Some(compact) = run.compact().get(place) else { return };
        let event = run.event(place, compact);
        match event.kind {
            EventKind::Free => {
                let last_free = &mut self.thread(event.thread).last_free;
                last_free.untold = None;
                let before = last_free.place.take();
                self.unmatched_free(&event);
                before.into_iter().for_each(|place| self.heap.vacate(place));
            }
            EventKind::FreeUndo => {
                self.settle();
                self.rare(&event);
            }
            _ => self.rare(&event),
        }
    }

    /// Replays blocks that begin and end, up to the first event of another kind; returns its place, or the end.
    #[inline(always)]
    fn flow_blocks<const RECENT: bool>(
        &mut self,
        run: &DecodedRun<'_>,
        part: Range<usize>,
        bottom: impl Fn(usize) -> Bottom,
    ) -> usize {
        let moment = |place| Moment { order: run.order(place), time_ns: run.time_ns(place) };
        let (mut level, mut freed) = (self.sums.level(), None);
        let mut end = part.end;
        let events = run.compact().get(part.clone()).unwrap_or_default();
        for (place, event) in part.zip(events) {
            match event.kind {
                EventKind::Alloc(allocator) => {
                    let group = self.sums.flow_in(run.stack(event.node), run.thread(), allocator, event.size);
                    let began = (event.size, run.order(place), group);
                    let recent = self.recent.at(event.address);
                    if RECENT && recent.is_free(event.address) {
                        recent.begin(began);
                    } else if let Some(replaced) = self.flow_put::<RECENT>(event.address, began, bottom(place)) {
                        // Before the new one is counted, else the peak would count both.
                        self.sums.set_level(level, moment);
                        self.sums.replace(&replaced);
                        level = self.sums.level();
                    }
                    level.rise(place, event.size);
                }
                EventKind::Free => {
                    let recent = self.recent.at(event.address);
                    let block = if RECENT && recent.is_live(event.address) {
                        recent.end()
                    } else if let Some(block) = self.flow_end::<RECENT>(event.address, bottom(place)) {
                        block
                    } else {
                        end = place;
                        break;
                    };
                    level.fall(block.size);
                    self.sums.flow_out(block.group, block.size);
                    freed = Some((place, block));
                }
                _ => {
                    end = place;
                    break;
                }
            }
        }
        self.sums.set_level(level, moment);
        if let Some((place, block)) = freed {
            self.note_freed(run, place, block);
        }
        end
    }

    /// A block begins at an address of which it is not known that it is free. Returns the block that was there.
    #[inline(always)]
    fn flow_put<const RECENT: bool>(
        &mut self,
        address: u64,
        began @ (size, order, group): (u64, u64, u32),
        bottom: Bottom,
    ) -> Option<LiveBlock> {
        if RECENT {
            self.recent.miss();
            let recent = self.recent.at(address);
            if recent.is_live(address) {
                let replaced = recent.block();
                recent.begin(began);
                return Some(replaced);
            }
        }
        let (was_live, block) = self.heap.put(address, bottom);
        let replaced = if was_live { Some(*block) } else { None };
        *block = LiveBlock { size, order, time_ns: 0, group, nth: 0 };
        replaced
    }

    /// The block of the heap at this address ends; from now on it is noted that there is none.
    #[inline(always)]
    fn flow_end<const RECENT: bool>(&mut self, address: u64, bottom: Bottom) -> Option<LiveBlock> {
        if RECENT && self.recent.at(address).is_free(address) {
            return None;
        }
        let (place, &LiveBlock { size, order, group, .. }) = self.heap.end(address, bottom)?;
        self.heap.vacate(place);
        if RECENT {
            self.recent.miss();
            if let Some((other, moved)) = self.recent.note_free(address) {
                *self.heap.put(other, Bottom::UNKNOWN).1 = moved;
            }
        }
        Some(LiveBlock { size, order, time_ns: 0, group, nth: 0 })
    }

    /// The last free of the thread is that of this block.
    #[inline]
    fn note_freed(&mut self, run: &DecodedRun<'_>, place: usize, block: LiveBlock) {
        let last_free = &mut thread(&mut self.threads, run.thread()).last_free;
        (last_free.untold, last_free.address) =
            (Some(block), run.compact().get(place).map_or(0, |event| event.address));
        last_free.ended.end_untold(run.order(place));
        if !std::mem::replace(&mut last_free.is_listed, true) {
            self.untold.push(run.thread());
        }
        if let Some(before) = last_free.place.take() {
            self.heap.vacate(before);
        }
    }

    /// Puts everything where a replay looks that is asked for more than flows.
    #[inline]
    pub(super) fn settle(&mut self) {
        self.settle_recent();
        for number in self.untold.drain(..) {
            let last_free = &mut thread(&mut self.threads, number).last_free;
            last_free.is_listed = false;
            let place = last_free.untold.take().map(|block| self.heap.keep(block));
            last_free.place = place.or(last_free.place);
        }
    }

    /// The same for a replay of these events alone: where all are of blocks, only the blocks at their addresses are put there, and the
    /// rest of the table is laid aside until `RecentBlocks::go_on`, which takes what this returns.
    pub(super) fn settle_for(&mut self, events: impl Iterator<Item = Event> + Clone) -> bool {
        let is_of_block = |event: Event| matches!(event.kind, EventKind::Alloc(_) | EventKind::Free);
        if !events.clone().all(is_of_block) {
            self.settle();
        }
        let is_used = self.recent.lay_aside();
        for Event { address, .. } in events {
            if let Some(block) = self.recent.take_one(address) {
                *self.heap.put(address, Bottom::UNKNOWN).1 = block;
            }
        }
        self.settle();
        is_used
    }

    fn settle_recent(&mut self) {
        for (address, block) in self.recent.take() {
            *self.heap.put(address, Bottom::UNKNOWN).1 = block;
        }
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::super::Replay;
    use super::super::repeated::round;
    use crate::analysis::Options;
    use crate::decoded_run::with_decoded_run;
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::live_extent::LiveExtent;

    fn event(order: u64, (kind, place, size, thread): (u8, u8, u16, bool)) -> Event {
        let (kind, address) = match kind % 16 {
            0..7 => (EventKind::Alloc(if kind < 4 { Allocator::Malloc } else { Allocator::Calloc }), 0x1000),
            7..13 => (EventKind::Free, 0x1000),
            13 => (EventKind::FreeUndo, 0),
            14 => (EventKind::Map(Allocator::Mmap, MapClass::Heap), 0x10_0000),
            _ => (EventKind::Unmap, 0x10_0000),
        };
        let address = address + u64::from(place % 8) * if address == 0x1000 { 16 } else { 4096 };
        let (stack, thread) = (StackId(u32::from(place) % 5), ThreadId(thread.into()));
        Event { kind, address, size: size.into(), stack, thread, order, time_ns: 0 }
    }

    proptest! {
        /// On small heaps and on those that become large, event by event or run by run, with and without runs of which more is kept.
        #[test]
        fn flows_live_heap_and_peak_are_those_of_the_replay(
            made in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u16>(), any::<bool>()), 1..200),
            runs in prop::collection::vec((1usize..20, 0u8..8), 1..9), undoes: bool,
        ) {
            let mut events: Vec<_> = (0..).zip(made).map(|(order, made)| event(order, made)).collect();
            // What was repeated is not undone.
            events.retain(|event| undoes || event.kind != EventKind::FreeUndo);
            let options = Options { flows: true, ..Options::default() };
            let (mut flows, mut replay) = (Replay::new(&options), Replay::new(&options));
            let (mut left, mut lengths, mut order) = (&events[..], runs.iter().cycle(), 0);
            while !left.is_empty() {
                let &(length, way) = lengths.next().unwrap();
                let (run, behind) = left.split_at(left.len().min(length));
                let numbered = |(order, event): (u64, &Event)| Event {
                    thread: run[0].thread,
                    order,
                    time_ns: order / 3,
                    ..*event
                };
                let run: Vec<_> = (order..).zip(run).map(numbered).collect();
                order += run.len() as u64;
                match way {
                    0 => flows.events(run.iter().copied()),
                    1 if !undoes => {
                        with_decoded_run(&run, |run| flows.flow_run(run));
                        replay.events(run.iter().copied());
                        order += run.len() as u64 * 3;
                        let again = run.iter().map(|event| Event { order: event.order + run.len() as u64, ..*event });
                        flows.repeated(3, again.clone());
                        (0..3).for_each(|time| replay.events(round(&again, time)));
                    }
                    _ => with_decoded_run(&run, |run| flows.flow_run(run)),
                }
                if undoes || way != 1 {
                    replay.events(run.iter().copied());
                }
                prop_assert_eq!((flows.live(), flows.own_peak()), (replay.live(), replay.own_peak()));
                left = behind;
            }
            flows.settle();
            prop_assert_eq!(flows.flows().collect::<Vec<_>>(), replay.flows().collect::<Vec<_>>());
            let without_times = |replay: &Replay| {
                replay.live_extents(Vec::new()).into_iter().map(|extent| LiveExtent { time_ns: 0, ..extent }).collect::<Vec<_>>()
            };
            prop_assert_eq!(without_times(&flows), without_times(&replay));
            let counted = |replay: &Replay| {
                let totals = replay.totals();
                (totals.events, totals.unmatched_frees, totals.unmatched_unmaps, totals.replaced, totals.undone, totals.end_time_ns)
            };
            prop_assert_eq!(counted(&flows), counted(&replay));
        }
    }
}
