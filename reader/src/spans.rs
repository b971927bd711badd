//! What was allocated in spans of time, and how much of it was live at once: figures of single tests or requests.
//!
//! A span counts only what was allocated in it: frees of earlier blocks change nothing, and what is left at its end does
//! not count in later spans. Memory grows with the live heap, not with the events. Invariant: each allocation counts in at
//! most one span, since spans do not overlap.

use memtrack_format::MapClass;
use rustc_hash::FxHashMap;

use crate::analysis::LiveBlock;
use crate::event::{Event, EventKind, ThreadId};
use crate::frames::Frames;
use crate::replay::mappings::{Cut, Mappings};
use crate::source::Consumer;

/// A span of time, in nanoseconds since recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpan {
    /// Its first moment.
    pub from_ns: u64,
    /// The first moment after it.
    pub to_ns: u64,
}

/// What was allocated in a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanSum {
    /// The number of allocations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The most of them that was live at one moment of the span.
    pub peak_bytes: u64,
    /// What was live at its end.
    pub kept_bytes: u64,
}

/// A consumer of events that sums up spans.
#[derive(Debug, Default)]
pub struct SpanSums {
    spans: Vec<(TimeSpan, SpanSum)>,
    /// The span of the events that come, or the next one.
    at: usize,
    live_bytes: u64,
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

impl SpanSums {
    /// `spans` are in order and do not overlap.
    #[must_use]
    pub fn new(spans: impl IntoIterator<Item = TimeSpan>) -> Self {
        let spans = spans.into_iter().map(|span| (span, SpanSum::default())).collect();
        Self { spans, ..Self::default() }
    }

    /// The spans with their sums.
    #[must_use]
    pub fn finish(mut self) -> Vec<(TimeSpan, SpanSum)> {
        self.advance(u64::MAX);
        self.spans
    }

    /// Goes on to the span of this time.
    fn advance(&mut self, time_ns: u64) {
        while let Some((span, sum)) = self.spans.get_mut(self.at)
            && span.to_ns <= time_ns
        {
            sum.kept_bytes = std::mem::take(&mut self.live_bytes);
            self.at += 1;
        }
    }

    fn begin(&mut self, block: LiveBlock) {
        if let Some((span, sum)) = self.spans.get_mut(self.at)
            && span.from_ns <= block.time_ns
        {
            sum.count = sum.count.saturating_add(1);
            sum.bytes = sum.bytes.saturating_add(block.size);
            self.live_bytes = self.live_bytes.saturating_add(block.size);
            sum.peak_bytes = sum.peak_bytes.max(self.live_bytes);
        }
    }

    /// Whether the block was allocated in the span of now.
    fn is_counted(&self, block: &LiveBlock) -> bool {
        self.spans.get(self.at).is_some_and(|(span, _)| span.from_ns <= block.time_ns)
    }

    fn end(&mut self, block: &LiveBlock, bytes: u64) {
        if self.is_counted(block) {
            self.live_bytes = self.live_bytes.saturating_sub(bytes);
        }
    }

    fn undo_end(&mut self, block: &LiveBlock, bytes: u64) {
        if self.is_counted(block) {
            self.live_bytes = self.live_bytes.saturating_add(bytes);
        }
    }

    fn map(&mut self, event: &Event, class: MapClass) {
        let inherited = self.threads.entry(event.thread).or_default().remapped.unwrap_or(MapClass::Heap);
        let class = if class == MapClass::Inherited { inherited } else { class };
        self.cut(event);
        let block = LiveBlock::outside(event);
        self.mappings.insert(event.address, block, class);
        if class == MapClass::Heap {
            self.begin(block);
        }
    }

    fn cut(&mut self, event: &Event) {
        let mut cuts = std::mem::take(&mut self.cuts);
        self.mappings.cut(event.address, event.size, &mut cuts);
        for cut in cuts.iter().filter(|cut| cut.mapping.class == MapClass::Heap) {
            self.end(&cut.mapping.block, cut.bytes());
        }
        let thread = self.threads.entry(event.thread).or_default();
        self.cuts = std::mem::replace(&mut thread.unmapped, cuts);
        self.cuts.clear();
    }

    fn undo_free(&mut self, thread: ThreadId) {
        let Some((address, block)) = self.threads.entry(thread).or_default().freed.take() else { return };
        if let std::collections::hash_map::Entry::Vacant(place) = self.blocks.entry(address) {
            place.insert(block);
            self.undo_end(&block, block.size);
        }
    }

    fn undo_unmap(&mut self, thread: ThreadId) {
        let cuts = std::mem::take(&mut self.threads.entry(thread).or_default().unmapped);
        for cut in cuts.into_iter().rev() {
            if self.mappings.restore(&cut).is_some() && cut.mapping.class == MapClass::Heap {
                self.undo_end(&cut.mapping.block, cut.bytes());
            }
        }
    }
}

impl Consumer for SpanSums {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.advance(event.time_ns);
        match event.kind {
            EventKind::Alloc(_) => {
                let block = LiveBlock::outside(event);
                if let Some(lost) = self.blocks.insert(event.address, block) {
                    self.end(&lost, lost.size);
                }
                self.begin(block);
            }
            EventKind::Free => {
                let freed = self.blocks.remove(&event.address);
                if let Some(block) = freed {
                    self.end(&block, block.size);
                }
                self.threads.entry(event.thread).or_default().freed = freed.map(|block| (event.address, block));
            }
            EventKind::FreeUndo => self.undo_free(event.thread),
            EventKind::Map(_, class) => self.map(event, class),
            EventKind::RemapFrom => {
                let class = self.mappings.class_at(event.address);
                self.threads.entry(event.thread).or_default().remapped = class;
                self.cut(event);
            }
            EventKind::Unmap => self.cut(event),
            EventKind::UnmapUndo => self.undo_unmap(event.thread),
            EventKind::FailedAlloc(_) | EventKind::Finalizing | EventKind::Exec => {}
        }
    }

    fn replaced(&mut self) {
        self.blocks.clear();
        self.threads.clear();
        self.mappings = Mappings::default();
        self.live_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};

    use super::{SpanSum, SpanSums, TimeSpan};
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::source::Consumer;

    /// The sums of the spans 10..20 and 30..40.
    fn sums(events: &[(u64, EventKind, u64, u64)]) -> [SpanSum; 2] {
        let spans = [(10, 20), (30, 40)].map(|(from_ns, to_ns)| TimeSpan { from_ns, to_ns });
        let mut sums = SpanSums::new(spans);
        for (order, &(time_ns, kind, address, size)) in (0..).zip(events) {
            let event = Event { kind, address, size, stack: StackId::EMPTY, thread: ThreadId(0), order, time_ns };
            sums.event(&event, &Frames::new());
        }
        let all = sums.finish();
        [all[0].1, all[1].1]
    }

    #[test]
    fn a_span_counts_what_is_allocated_in_it() {
        let alloc = EventKind::Alloc(Allocator::Malloc);
        let [first, second] = sums(&[
            (5, alloc, 0x10, 1000),
            (10, alloc, 0x20, 100),
            (12, alloc, 0x30, 50),
            (13, EventKind::Free, 0x10, 0), // from before
            (14, EventKind::Free, 0x20, 0),
            (15, alloc, 0x20, 60),
            (20, alloc, 0x40, 7),           // between spans
            (31, EventKind::Free, 0x30, 0), // of the first span
            (32, EventKind::Free, 0x40, 0),
            (33, alloc, 0x30, 5),
            (40, EventKind::Free, 0x30, 0), // after its end
        ]);
        assert_eq!(first, SpanSum { count: 3, bytes: 210, peak_bytes: 150, kept_bytes: 110 });
        assert_eq!(second, SpanSum { count: 1, bytes: 5, peak_bytes: 5, kept_bytes: 5 });
    }

    #[test]
    fn parts_of_mappings_and_calls_that_failed() {
        let map = |class| EventKind::Map(Allocator::Mmap, class);
        let [first, second] = sums(&[
            (10, map(MapClass::Heap), 0x10000, 0x4000),
            (11, map(MapClass::File), 0x90000, 0x9000), // no heap
            (12, EventKind::Unmap, 0x11000, 0x1000),
            (13, EventKind::Unmap, 0x12000, 0x1000),
            (13, EventKind::UnmapUndo, 0, 0),
            (14, EventKind::Alloc(Allocator::Malloc), 0x10, 8),
            (15, EventKind::Free, 0x10, 0),
            (15, EventKind::FreeUndo, 0, 0),
            (16, EventKind::FailedAlloc(Allocator::Malloc), 0, 1 << 40),
            (30, EventKind::RemapFrom, 0x10000, 0x1000), // of the first span
            (30, map(MapClass::Inherited), 0x50000, 0x8000),
        ]);
        assert_eq!(first, SpanSum { count: 2, bytes: 0x4008, peak_bytes: 0x4000, kept_bytes: 0x3008 });
        assert_eq!(second, SpanSum { count: 1, bytes: 0x8000, peak_bytes: 0x8000, kept_bytes: 0x8000 });
    }
}
