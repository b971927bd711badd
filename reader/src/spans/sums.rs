//! Sums of what was allocated in each span.
//!
//! Invariant: frees of blocks that were not allocated in the present span change nothing.

use super::{BlockObserver, TimeSpan};

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

/// Sums up spans.
#[derive(Debug, Default)]
pub struct SpanSums {
    /// The spans with their sums.
    pub spans: Vec<(TimeSpan, SpanSum)>,
    /// The span of the events that come, or the next one.
    at: usize,
    live_bytes: u64,
}

impl SpanSums {
    /// `spans` are in order and do not overlap.
    #[must_use]
    pub fn new(spans: impl IntoIterator<Item = TimeSpan>) -> Self {
        let spans = spans.into_iter().map(|span| (span, SpanSum::default())).collect();
        Self { spans, at: 0, live_bytes: 0 }
    }

    /// Whether what was allocated at this time was allocated in the present span.
    fn is_counted(&self, time_ns: u64) -> bool {
        self.spans.get(self.at).is_some_and(|(span, _)| span.from_ns <= time_ns)
    }
}

impl BlockObserver for SpanSums {
    fn advance(&mut self, time_ns: u64) {
        while let Some((span, sum)) = self.spans.get_mut(self.at)
            && span.to_ns <= time_ns
        {
            sum.kept_bytes = std::mem::take(&mut self.live_bytes);
            self.at += 1;
        }
    }

    fn begin(&mut self, _group: u32, size: u64, time_ns: u64) {
        if let Some((span, sum)) = self.spans.get_mut(self.at)
            && span.from_ns <= time_ns
        {
            sum.count = sum.count.saturating_add(1);
            sum.bytes = sum.bytes.saturating_add(size);
            self.live_bytes = self.live_bytes.saturating_add(size);
            sum.peak_bytes = sum.peak_bytes.max(self.live_bytes);
        }
    }

    fn end(&mut self, _group: u32, time_ns: u64, bytes: u64, _last: bool) {
        if self.is_counted(time_ns) {
            self.live_bytes = self.live_bytes.saturating_sub(bytes);
        }
    }

    fn undo_end(&mut self, _group: u32, time_ns: u64, bytes: u64, _first: bool) {
        if self.is_counted(time_ns) {
            self.live_bytes = self.live_bytes.saturating_add(bytes);
        }
    }

    fn clear(&mut self) {
        self.live_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};

    use super::{SpanSum, SpanSums};
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::source::Consumer;
    use crate::spans::{SpanReplay, TimeSpan};

    /// The sums of the spans 10..20 and 30..40.
    fn sums(events: &[(u64, EventKind, u64, u64)]) -> [SpanSum; 2] {
        let spans = [(10, 20), (30, 40)].map(|(from_ns, to_ns)| TimeSpan { from_ns, to_ns });
        let mut sums = SpanReplay::new(SpanSums::new(spans));
        for (order, &(time_ns, kind, address, size)) in (0..).zip(events) {
            let event = Event { kind, address, size, stack: StackId::EMPTY, thread: ThreadId(0), order, time_ns };
            sums.event(&event, &Frames::new());
        }
        let all = sums.finish().spans;
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
