//! What happened in spans of time: sums of what was allocated in each ([`SpanSums`]), and what was live at their ends by
//! stack ([`LiveAtEnds`]). They answer for single tests, requests and runs.
//!
//! [`SpanReplay`] keeps the live blocks and tells its observer what begins and ends. Memory grows with the live heap, not
//! with the events. Invariant: a span counts only what was allocated in it, each allocation counts in at most one span, and
//! spans do not overlap.

mod followed;
mod live;
mod running;
mod sums;

use std::collections::hash_map::Entry;

use memtrack_format::MapClass;
use rustc_hash::FxHashMap;

use crate::analysis::LiveBlock;
use crate::event::{Event, EventKind, ThreadId};
use crate::frames::Frames;
use crate::replay::mappings::{Cut, Mappings};
use crate::source::Consumer;

pub use followed::FollowedSpans;
pub use live::{LiveAtEnds, LiveGroup, LiveRow};
pub use running::RunningSpans;
pub use sums::{SpanSum, SpanSums};

/// A span of time, in nanoseconds since recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpan {
    /// Its first moment.
    pub from_ns: u64,
    /// The first moment after it.
    pub to_ns: u64,
}

/// What is to know of blocks and mappings that count as heap.
pub trait BlockObserver {
    /// All further events have this time or a later one.
    fn advance(&mut self, time_ns: u64);
    /// The number of the event's group, which its block is to keep.
    fn group(&mut self, _event: &Event) -> u32 {
        0
    }
    /// An allocation begins, in this group.
    fn begin(&mut self, group: u32, size: u64, time_ns: u64);
    /// These bytes of an allocation of that time end; `last`: nothing of it is left.
    fn end(&mut self, group: u32, time_ns: u64, bytes: u64, last: bool);
    /// The end of these bytes did not happen; `first`: nothing of the allocation was left.
    fn undo_end(&mut self, group: u32, time_ns: u64, bytes: u64, first: bool);
    /// The process replaced its image.
    fn clear(&mut self);
}

/// A consumer of events that keeps what is live for an observer.
#[derive(Debug, Default)]
pub struct SpanReplay<O> {
    observer: O,
    blocks: FxHashMap<u64, LiveBlock>,
    mappings: Mappings,
    cuts: Vec<Cut>,
    threads: FxHashMap<ThreadId, SpanThread>,
}

/// What undo and remap events refer to.
#[derive(Debug, Default)]
struct SpanThread {
    freed: Option<(u64, LiveBlock)>,
    unmapped: Vec<Cut>,
    remapped: Option<MapClass>,
}

impl<O: BlockObserver> SpanReplay<O> {
    /// Nothing is live yet.
    pub fn new(observer: O) -> Self {
        let (blocks, mappings, cuts, threads) = Default::default();
        Self { observer, blocks, mappings, cuts, threads }
    }

    /// The observer, at the end of all spans.
    #[must_use]
    pub fn finish(mut self) -> O {
        self.observer.advance(u64::MAX);
        self.observer
    }

    fn block(&mut self, event: &Event) -> LiveBlock {
        LiveBlock { group: self.observer.group(event), ..LiveBlock::outside(event) }
    }

    fn allocate(&mut self, event: &Event) {
        let block = self.block(event);
        if let Some(lost) = self.blocks.insert(event.address, block) {
            self.observer.end(lost.group, lost.time_ns, lost.size, true);
        }
        self.observer.begin(block.group, block.size, block.time_ns);
    }

    fn free(&mut self, event: &Event) {
        let freed = self.blocks.remove(&event.address);
        if let Some(block) = freed {
            self.observer.end(block.group, block.time_ns, block.size, true);
        }
        self.threads.entry(event.thread).or_default().freed = freed.map(|block| (event.address, block));
    }

    fn map(&mut self, event: &Event, class: MapClass) {
        let inherited = self.threads.entry(event.thread).or_default().remapped.unwrap_or(MapClass::Heap);
        let class = if class == MapClass::Inherited { inherited } else { class };
        self.cut(event);
        let block = if class == MapClass::Heap { self.block(event) } else { LiveBlock::outside(event) };
        self.mappings.insert(event.address, block, class);
        if class == MapClass::Heap {
            self.observer.begin(block.group, block.size, block.time_ns);
        }
    }

    fn cut(&mut self, event: &Event) {
        let mut cuts = std::mem::take(&mut self.cuts);
        self.mappings.cut(event.address, event.size, &mut cuts);
        for cut in cuts.iter().filter(|cut| cut.mapping.class == MapClass::Heap) {
            let block = &cut.mapping.block;
            self.observer.end(block.group, block.time_ns, cut.bytes(), cut.last);
        }
        let thread = self.threads.entry(event.thread).or_default();
        self.cuts = std::mem::replace(&mut thread.unmapped, cuts);
        self.cuts.clear();
    }

    fn undo_free(&mut self, thread: ThreadId) {
        let Some((address, block)) = self.threads.entry(thread).or_default().freed.take() else { return };
        if let Entry::Vacant(place) = self.blocks.entry(address) {
            place.insert(block);
            self.observer.undo_end(block.group, block.time_ns, block.size, true);
        }
    }

    fn undo_unmap(&mut self, thread: ThreadId) {
        let cuts = std::mem::take(&mut self.threads.entry(thread).or_default().unmapped);
        for cut in cuts.into_iter().rev() {
            let restored = self.mappings.restore(&cut).filter(|_| cut.mapping.class == MapClass::Heap);
            if let Some(first) = restored {
                let block = &cut.mapping.block;
                self.observer.undo_end(block.group, block.time_ns, cut.bytes(), first);
            }
        }
    }
}

impl<O: BlockObserver> Consumer for SpanReplay<O> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.observer.advance(event.time_ns);
        match event.kind {
            EventKind::Alloc(_) => self.allocate(event),
            EventKind::Free => self.free(event),
            EventKind::FreeUndo => self.undo_free(event.thread),
            EventKind::Map(_, class) => self.map(event, class),
            EventKind::RemapFrom => {
                let class = self.mappings.class_at(event.address);
                self.threads.entry(event.thread).or_default().remapped = class;
                self.cut(event);
            }
            EventKind::Unmap => self.cut(event),
            EventKind::UnmapUndo => self.undo_unmap(event.thread),
            EventKind::FailedAlloc(_) | EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => {}
        }
    }

    fn replaced(&mut self) {
        self.blocks.clear();
        self.threads.clear();
        self.mappings = Mappings::default();
        self.observer.clear();
    }
}
