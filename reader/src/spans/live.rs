//! What was live at the end of each span, by call stack, allocator and thread, whenever it was allocated.
//!
//! Invariant: the rows of an end add up to the live heap at that moment.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use super::{BlockObserver, TimeSpan};
use crate::analysis::Tally;
use crate::event::{Event, EventKind, StackId, ThreadId};

/// What has a sum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveGroup {
    /// The call stack.
    pub stack: StackId,
    /// The allocating function.
    pub allocator: Allocator,
    /// The allocating thread.
    pub thread: ThreadId,
}

/// What a group holds at the end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRow {
    /// The number of the span.
    pub span: usize,
    /// The group.
    pub group: LiveGroup,
    /// Its live bytes and allocations.
    pub live: Tally,
}

/// Lists what is live at the ends of spans.
#[derive(Debug, Default)]
pub struct LiveAtEnds {
    spans: Vec<TimeSpan>,
    at: usize,
    numbers: FxHashMap<LiveGroup, u32>,
    groups: Vec<(LiveGroup, Tally)>,
    /// The rows of the ends so far.
    pub rows: Vec<LiveRow>,
}

impl LiveAtEnds {
    /// `spans` are in order and do not overlap.
    #[must_use]
    pub fn new(spans: impl IntoIterator<Item = TimeSpan>) -> Self {
        Self { spans: spans.into_iter().collect(), ..Self::default() }
    }

    fn tally(&mut self, group: u32) -> &mut Tally {
        &mut self.groups[group as usize].1
    }
}

impl BlockObserver for LiveAtEnds {
    fn advance(&mut self, time_ns: u64) {
        while self.spans.get(self.at).is_some_and(|span| span.to_ns <= time_ns) {
            let span = self.at;
            let live = self.groups.iter().filter(|(_, live)| live.count > 0);
            self.rows.extend(live.map(|&(group, live)| LiveRow { span, group, live }));
            self.at += 1;
        }
    }

    fn group(&mut self, event: &Event) -> u32 {
        let allocator = match event.kind {
            EventKind::Alloc(allocator) | EventKind::Map(allocator, _) => allocator,
            _ => Allocator::Malloc,
        };
        let group = LiveGroup { stack: event.stack, allocator, thread: event.thread };
        *self.numbers.entry(group).or_insert_with(|| {
            self.groups.push((group, Tally::default()));
            self.groups.len() as u32 - 1
        })
    }

    fn begin(&mut self, group: u32, size: u64, _time_ns: u64) {
        let live = self.tally(group);
        (live.bytes, live.count) = (live.bytes.saturating_add(size), live.count.saturating_add(1));
    }

    fn end(&mut self, group: u32, _time_ns: u64, bytes: u64, last: bool) {
        let live = self.tally(group);
        live.bytes = live.bytes.saturating_sub(bytes);
        live.count = live.count.saturating_sub(u64::from(last));
    }

    fn undo_end(&mut self, group: u32, _time_ns: u64, bytes: u64, first: bool) {
        let live = self.tally(group);
        live.bytes = live.bytes.saturating_add(bytes);
        live.count = live.count.saturating_add(u64::from(first));
    }

    fn clear(&mut self) {
        self.groups.iter_mut().for_each(|(_, live)| *live = Tally::default());
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::LiveAtEnds;
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::source::Consumer;
    use crate::spans::{SpanReplay, TimeSpan};

    #[test]
    fn each_end_has_what_is_live_then() {
        let spans = [(10, 20), (20, 30)].map(|(from_ns, to_ns)| TimeSpan { from_ns, to_ns });
        let mut live = SpanReplay::new(LiveAtEnds::new(spans));
        let alloc = EventKind::Alloc(Allocator::Malloc);
        let events = [
            (5, alloc, 0x10, 1000, 1),
            (12, alloc, 0x20, 100, 2),
            (13, alloc, 0x30, 50, 2),
            (21, EventKind::Free, 0x10, 0, 0),
            (22, EventKind::Free, 0x20, 0, 0),
            (30, alloc, 0x40, 7, 3),
        ];
        for (order, (time_ns, kind, address, size, stack)) in (0..).zip(events) {
            let (stack, thread) = (StackId(stack), ThreadId(0));
            live.event(&Event { kind, address, size, stack, thread, order, time_ns }, &Frames::new());
        }
        let rows = live.finish().rows;
        let rows: Vec<_> =
            rows.iter().map(|row| (row.span, row.group.stack.0, row.live.bytes, row.live.count)).collect();
        assert_eq!(rows, [(0, 1, 1000, 1), (0, 2, 150, 2), (1, 2, 50, 1)]);
    }
}
