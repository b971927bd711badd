//! Replays events: keeps the live heap and the mappings of a process.
//!
//! It knows which blocks are live at which address; the sums are computed by the analysis that it updates. Each event
//! takes O(1) (a mapping O(log n)), and memory grows with the live heap and the number of groups, not with the capture.
//!
//! Invariant: after each event the live blocks are those of the traced process at that point, as far as events tell; an
//! event that contradicts them changes as little as possible and is counted.

mod addresses;
mod flow_run;
mod heap;
mod kept_moment;
mod look_ahead;
mod mapped_sums;
mod mapping_events;
pub(crate) mod mappings;
#[cfg(test)]
mod model;
mod recent_blocks;
pub(crate) mod repeated;
mod roomy;
pub(crate) mod short_lived;
mod summed_run;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use memtrack_format::{Allocator, MapClass};

use self::addresses::Bottom;
use self::heap::{BlockIndex, LiveHeap};
use self::kept_moment::{KeptMoment, block_extent, mapped_extents, with_mapped};
use self::mapped_sums::MappedSums;
use self::mappings::{Cut, Mappings};
use self::recent_blocks::RecentBlocks;
use self::short_lived::ShortLivedBlocks;
use self::watch::LiveBytesObserver;
use crate::analysis::{Analysis, GroupTotals, LivePart, Moment, ReleasedBlock, Tally, Totals};
use crate::analysis::{LiveBlock, Options, UnknownBlocks};
use crate::event::{Event, EventKind, RunEvent, Snapshot, StackId, ThreadId};
use crate::live_extent::LiveExtent;

/// The state of a traced process, and the running sums.
#[derive(Debug)]
pub struct Replay {
    sums: GroupTotals,
    heap: LiveHeap,
    short_lived: ShortLivedBlocks,
    /// What is not in the heap, where only flows are replayed.
    recent: RecentBlocks,
    /// The threads whose last free is one of a block of which nothing more is told, each once; others may be among them.
    untold: Vec<ThreadId>,
    mappings: Mappings,
    mapped: MappedSums,
    threads: Vec<ReplayThread>,
    /// Buffer for the parts that the current event cuts out of mappings.
    cuts: Vec<Cut>,
    next_order: u64,
    /// What the current image frees without a recorded allocation.
    unknown_blocks: UnknownBlocks,
    kept: KeptMoment,
    /// Observes live bytes after each event, if set.
    watch: Option<Box<LiveBytesObserver>>,
}

/// The state of a thread that undo and remap events refer to.
#[derive(Debug)]
struct ReplayThread {
    last_free: LastFree,
    /// The parts that the last unmap cut out, with what an undo needs; empty after an undo.
    last_cuts: Vec<(Cut, Option<ReleasedBlock>)>,
    last_unmap_matched: bool,
    remap_class: MapClass,
}

/// The last free of a thread. It is written field by field with every free: a value that is built elsewhere and copied
/// costs more than the rest of a free, since the load of the whole fails store forwarding.
#[derive(Debug, Default)]
struct LastFree {
    /// The place of the freed block, which is kept for an undo.
    place: Option<BlockIndex>,
    /// The freed block, if only flows are replayed.
    untold: Option<LiveBlock>,
    /// The thread is in [`Replay::untold`].
    is_listed: bool,
    address: u64,
    ended: ReleasedBlock,
    /// Bytes of the block, if it was a short-lived one, whose free is never undone.
    short_lived_bytes: Option<u64>,
    /// No block was known at the address.
    unmatched: bool,
}

impl Replay {
    /// The state before the first event.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self {
            sums: GroupTotals::new(options),
            heap: LiveHeap::default(),
            short_lived: ShortLivedBlocks::default(),
            recent: RecentBlocks::default(),
            untold: Vec::new(),
            mappings: Mappings::default(),
            mapped: MappedSums::default(),
            threads: Vec::new(),
            cuts: Vec::new(),
            next_order: 0,
            unknown_blocks: options.unknown_blocks,
            kept: KeptMoment::default(),
            watch: (options.moments > 0).then(Box::default),
        }
    }

    /// Replays the next event of the total order.
    pub fn event(&mut self, event: &Event) {
        self.events(std::iter::once(*event));
    }

    /// Replays the next events of the total order; on a large heap this is faster than one by one.
    #[inline]
    pub fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone) {
        self.events_and(events, |_, _| ());
    }

    /// The same; `after` is called after each event.
    #[inline]
    pub(crate) fn events_and(
        &mut self,
        events: impl ExactSizeIterator<Item = Event> + Clone,
        after: impl FnMut(&mut Self, &Event),
    ) {
        self.run_and(events.map(RunEvent::from), after);
    }

    /// The same with events of a run, or of a part of it.
    #[inline]
    pub(crate) fn run_and(
        &mut self,
        events: impl ExactSizeIterator<Item = RunEvent> + Clone,
        mut after: impl FnMut(&mut Self, &Event),
    ) {
        if self.watch.is_some() {
            self.run_then(events, |replay, event| {
                replay.look_after(event);
                after(replay, event);
            });
        } else {
            self.run_then(events, after);
        }
    }

    /// The same; `after` is called after each event. Live bytes are not observed.
    #[inline]
    pub(crate) fn run_then(
        &mut self,
        events: impl ExactSizeIterator<Item = RunEvent> + Clone,
        after: impl FnMut(&mut Self, &Event),
    ) {
        // Most replays want nothing but sums, and what costs nothing there is most of the rest.
        if self.sums.is_sums_only() {
            self.events_at::<true>(events, after);
        } else {
            self.events_at::<false>(events, after);
        }
    }

    #[inline]
    fn events_at<const SUMS_ONLY: bool>(
        &mut self,
        mut events: impl ExactSizeIterator<Item = RunEvent> + Clone,
        mut after: impl FnMut(&mut Self, &Event),
    ) {
        self.settle();
        let mut upcoming = events.clone();
        self.heap.begin();
        loop {
            let count = self.heap.find(&mut upcoming);
            if count == 0 {
                break;
            }
            let totals = &mut self.sums.totals;
            totals.events += count as u64;
            let (mut last_order, mut end_time_ns) = (0, totals.end_time_ns);
            let mut looked_up = 0;
            for RunEvent { event, short_lived } in events.by_ref().take(count) {
                (last_order, end_time_ns) = (event.order, end_time_ns.max(event.time_ns));
                if short_lived {
                    self.short_lived::<SUMS_ONLY>(&event);
                } else {
                    self.event_at::<SUMS_ONLY>(&event, self.heap.found(looked_up));
                    looked_up += 1;
                }
                after(self, &event);
            }
            self.sums.totals.end_time_ns = end_time_ns;
            self.next_order = last_order.saturating_add(1);
        }
    }

    #[inline(always)]
    fn event_at<const SUMS_ONLY: bool>(&mut self, event: &Event, at: Bottom) {
        match event.kind {
            EventKind::Alloc(allocator) => self.allocate::<SUMS_ONLY>(event, allocator, at),
            EventKind::Free => self.free::<SUMS_ONLY>(event, at),
            _ => self.rare(event),
        }
    }

    /// The process has a new image: all memory of the old one is gone, and so are its threads.
    pub fn replaced(&mut self) {
        self.unknown_blocks = UnknownBlocks::Unmatched;
        self.settle();
        for (address, block) in std::mem::take(&mut self.heap).blocks_at() {
            self.kept.end(address, block);
            self.sums.discard(block, block.size, true);
        }
        for (class, LivePart { block, bytes, first }) in std::mem::take(&mut self.mappings).live() {
            self.class_totals(class).unmap(bytes);
            match class {
                MapClass::Heap => self.sums.discard(&block, bytes, first),
                _ => self.mapped.shrink(block.nth, bytes, first),
            }
        }
        self.threads.clear();
        self.look(self.next_order, self.sums.totals.end_time_ns);
    }

    /// Adds a memory snapshot after all events so far; returns it with its heap size.
    pub fn snapshot(&mut self, time_ns: u64, rss_bytes: u64) -> Snapshot {
        let totals = &mut self.sums.totals;
        totals.end_time_ns = totals.end_time_ns.max(time_ns);
        self.sums.snapshot(self.next_order, time_ns, rss_bytes)
    }

    /// All memory snapshots so far.
    #[must_use]
    pub fn snapshots(&self) -> &[Snapshot] {
        self.sums.snapshots()
    }

    /// The recording ended at this time: what is live has lived until then.
    pub fn ended(&mut self, time_ns: u64) {
        let totals = &mut self.sums.totals;
        totals.end_time_ns = totals.end_time_ns.max(time_ns);
    }

    /// Notes that this many events' stacks were cut while recording.
    pub fn truncated_stacks(&mut self, count: u64) {
        let total = &mut self.sums.totals.truncated_stacks;
        *total = total.saturating_add(count);
    }

    /// The heap that is live now.
    #[must_use]
    pub fn live(&self) -> Tally {
        self.sums.live()
    }

    /// All live blocks and mappings, by address, in the memory of these: of millions, to get new memory takes as long as to
    /// fill it.
    pub(crate) fn live_extents(&self, mut all: Vec<LiveExtent>) -> Vec<LiveExtent> {
        all.clear();
        all.reserve(self.heap.len());
        // There are millions: the loop is inside of the iterator.
        self.live_blocks().for_each(|block| all.push(block));
        with_mapped(all, mapped_extents(&self.mappings))
    }

    /// All live blocks; their addresses ascend.
    pub(crate) fn live_blocks(&self) -> impl Iterator<Item = LiveExtent> + '_ {
        self.heap.blocks_at().map(|(start, block)| block_extent(start, block))
    }

    /// Keeps what is live now, while the replay goes on; what was kept before is discarded.
    pub(crate) fn keep_moment(&mut self) {
        self.kept.set(self.next_order, &self.mappings, self.sums.live());
    }

    /// What was live at the kept moment, by address.
    pub(crate) fn take_kept(&mut self) -> (Vec<LiveExtent>, Tally) {
        std::mem::take(&mut self.kept).take(&self.heap)
    }

    /// Bytes of the block that this event has just freed, if one was known.
    #[inline]
    pub(crate) fn freed_bytes(&self, free: &Event) -> Option<u64> {
        let last = &self.threads.get(free.thread.0 as usize)?.last_free;
        last.place.map(|place| self.heap.kept(place).size).or(last.short_lived_bytes)
    }

    /// The stack, allocator and thread of each group.
    pub(crate) fn group_keys(&self) -> impl Iterator<Item = (StackId, Allocator, ThreadId)> + '_ {
        self.sums.group_keys()
    }

    /// Everything that was ever allocated, selected or not.
    #[must_use]
    pub fn allocated(&self) -> Tally {
        self.sums.allocated()
    }

    /// The totals so far that are not sums over groups.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.sums.totals
    }

    /// The analysis as if the recording ended here; the replay can go on. Walks over all live blocks.
    #[must_use]
    pub fn finish(&self) -> Analysis {
        let curve = self.watch.as_ref().map(|watch| watch.curve.clone());
        let by_address = self.sums.keeps_intervals();
        let mapped = self.mapped.at_peaks();
        Analysis { curve, mapped, ..self.sums.finish(live(&self.heap, &self.threads, &self.mappings, by_address)) }
    }

    /// The same at the end, without additional memory.
    #[must_use]
    pub fn into_analysis(self) -> Analysis {
        let Self { mut sums, heap, threads, mappings, mapped, watch, .. } = self;
        let by_address = sums.keeps_intervals();
        let surviving = sums.close(live(&heap, &threads, &mappings, by_address));
        drop((heap, mappings));
        let curve = watch.map(|watch| watch.curve);
        Analysis { curve, mapped: mapped.at_peaks(), ..sums.into_analysis(&surviving) }
    }

    #[inline(always)]
    fn allocate<const SUMS_ONLY: bool>(&mut self, event: &Event, allocator: Allocator, at: Bottom) {
        let (was_live, block) = self.heap.put(event.address, at);
        // Before the new one is counted, else the peak would count both.
        if was_live {
            self.kept.end(event.address, block);
            self.sums.replace(block);
        }
        self.sums.allocate::<SUMS_ONLY>(event, allocator, block);
    }

    #[inline(always)]
    fn free<const SUMS_ONLY: bool>(&mut self, event: &Event, at: Bottom) {
        let last_free = &mut thread(&mut self.threads, event.thread).last_free;
        let before = last_free.place.take();
        last_free.short_lived_bytes = None;
        match self.heap.end(event.address, at) {
            Some((place, block)) => {
                (last_free.place, last_free.address) = (Some(place), event.address);
                self.kept.end(event.address, block);
                self.sums.release::<SUMS_ONLY>(block, block.size, true, event, &mut last_free.ended);
            }
            None => self.unmatched_free(event),
        }
        if let Some(place) = before {
            self.heap.vacate(place);
        }
    }

    /// An event of a block that nobody can look at.
    #[inline(always)]
    fn short_lived<const SUMS_ONLY: bool>(&mut self, event: &Event) {
        let block = self.short_lived.at(event.address);
        match event.kind {
            EventKind::Alloc(allocator) => self.sums.allocate::<SUMS_ONLY>(event, allocator, block),
            EventKind::Free => {
                let last_free = &mut thread(&mut self.threads, event.thread).last_free;
                (last_free.short_lived_bytes, last_free.unmatched) = (Some(block.size), false);
                self.sums.release::<SUMS_ONLY>(block, block.size, true, event, &mut last_free.ended);
                if let Some(place) = last_free.place.take() {
                    self.heap.vacate(place);
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn unmatched_free(&mut self, event: &Event) {
        // free(NULL) does nothing, so it is not counted as unmatched.
        let unmatched = event.address != 0;
        self.thread(event.thread).last_free.unmatched = unmatched;
        *self.unknown_frees() += u64::from(unmatched);
    }

    /// The counter of frees without a known block.
    fn unknown_frees(&mut self) -> &mut u64 {
        let totals = &mut self.sums.totals;
        match self.unknown_blocks {
            UnknownBlocks::Unmatched => &mut totals.unmatched_frees,
            UnknownBlocks::Inherited => &mut totals.inherited_frees,
            UnknownBlocks::Earlier => &mut totals.earlier_frees,
        }
    }

    /// The same for unmapped ranges.
    fn unknown_unmaps(&mut self) -> &mut u64 {
        let totals = &mut self.sums.totals;
        match self.unknown_blocks {
            UnknownBlocks::Unmatched => &mut totals.unmatched_unmaps,
            UnknownBlocks::Inherited => &mut totals.inherited_unmaps,
            UnknownBlocks::Earlier => &mut totals.earlier_unmaps,
        }
    }

    #[cold]
    fn rare(&mut self, event: &Event) {
        match event.kind {
            EventKind::FreeUndo => self.undo_free(event),
            EventKind::Map(allocator, class) => self.map(event, allocator, class),
            EventKind::Unmap => self.unmap(event),
            EventKind::RemapFrom => {
                // A range whose mapping was not seen: most likely heap, since it is being resized or moved.
                let class = self.class_of_range(event).unwrap_or(MapClass::Heap);
                self.thread(event.thread).remap_class = class;
                self.unmap(event);
            }
            EventKind::UnmapUndo => self.undo_unmap(event),
            EventKind::FailedAlloc(allocator) => self.sums.failed(event, allocator),
            EventKind::SampleDistance => {
                self.sums.totals.events -= 1;
                self.sums.sample_distance(event);
            }
            EventKind::Finalizing => self.sums.finalizing(event),
            EventKind::Exec => {
                self.sums.totals.exec = Some(Moment { order: event.order, time_ns: event.time_ns });
            }
            EventKind::Alloc(_) | EventKind::Free => {}
        }
    }

    fn undo_free(&mut self, event: &Event) {
        let LastFree { place, address, ended, unmatched, .. } =
            std::mem::take(&mut self.thread(event.thread).last_free);
        if let Some(place) = place {
            // If another block is there now, the free did take place.
            if let Some(block) = self.heap.bring_back(place, address) {
                self.sums.restore(block, block.size, true, &ended, event);
            }
        } else if unmatched {
            let frees = self.unknown_frees();
            *frees = frees.saturating_sub(1);
            self.sums.totals.undone += 1;
        }
    }

    fn thread(&mut self, number: ThreadId) -> &mut ReplayThread {
        thread(&mut self.threads, number)
    }
}

/// All that is live of the heap; its blocks in the order of the table of addresses, or, which is faster, of their places.
fn live<'a>(
    heap: &'a LiveHeap,
    threads: &'a [ReplayThread],
    mappings: &'a Mappings,
    by_address: bool,
) -> impl Iterator<Item = LivePart> + 'a {
    let ended = threads.iter().filter_map(|thread| thread.last_free.place);
    let ordered = by_address.then(|| heap.blocks_at().map(|(_, block)| block)).into_iter().flatten();
    let unordered = (!by_address).then(|| heap.blocks(ended)).into_iter().flatten();
    let blocks = ordered.chain(unordered).map(|block| LivePart { block: *block, bytes: block.size, first: true });
    let mapped = mappings.live().filter(|(class, _)| *class == MapClass::Heap);
    blocks.chain(mapped.map(|(_, part)| part))
}

#[inline]
fn thread(threads: &mut Vec<ReplayThread>, number: ThreadId) -> &mut ReplayThread {
    let index = number.0 as usize;
    if index >= threads.len() {
        threads.resize_with(index + 1, ReplayThread::default);
    }
    &mut threads[index]
}

impl Default for ReplayThread {
    fn default() -> Self {
        Self {
            last_free: LastFree::default(),
            last_cuts: Vec::new(),
            last_unmap_matched: true,
            remap_class: MapClass::Heap,
        }
    }
}
