//! Replays runs where nothing is asked for but what groups have allocated and freed, and the peak: the live view.
//!
//! A report knows more of each block: when it began, whether it was temporary, what has ended of its group since the peak. Nobody
//! asks for that while the program runs, and to keep it takes half of the time. Blocks of a small heap are not looked up ahead, since
//! they are in the cache.
//!
//! Invariant: flows, live heap, peak and counters of unknown blocks are those of [`Replay::run_and`]; other sums are not kept.

use memtrack_format::Allocator;

use super::addresses::Bottom;
use super::{Replay, thread};
use crate::event::{Event, EventKind, RunEvent};

/// Events that are replayed before it is looked again whether the heap is small.
const TOGETHER: usize = if cfg!(test) { 4 } else { 256 };

impl Replay {
    /// Whether only sums are asked for: then [`Replay::flow_run`] suffices to whoever asks for flows alone.
    pub(crate) fn is_sums_only(&self) -> bool {
        self.watch.is_none() && self.sums.is_sums_only()
    }

    /// Replays the next events of a run, or of a part of it.
    #[inline]
    pub(crate) fn flow_run(&mut self, mut events: impl ExactSizeIterator<Item = RunEvent> + Clone) {
        while events.len() > 0 && !self.heap.is_large() {
            self.heap.tidy();
            let count = events.len().min(TOGETHER);
            self.flow_events(count, events.by_ref().take(count).map(|event| (event, Bottom::UNKNOWN)));
        }
        if events.len() > 0 {
            self.flow_run_ahead(events);
        }
    }

    /// The same on a large heap.
    fn flow_run_ahead(&mut self, mut events: impl ExactSizeIterator<Item = RunEvent> + Clone) {
        let mut upcoming = events.clone();
        self.heap.begin();
        loop {
            let count = self.heap.find(&mut upcoming);
            if count == 0 {
                break;
            }
            let found = self.heap.found_all();
            let mut looked_up = 0;
            let with_bottom = |event: RunEvent| {
                let bottom = found.get(looked_up).copied().unwrap_or(Bottom::UNKNOWN);
                looked_up += usize::from(!event.short_lived);
                (event, bottom)
            };
            self.flow_events(count, events.by_ref().take(count).map(with_bottom));
        }
    }

    #[inline(always)]
    fn flow_events(&mut self, count: usize, events: impl Iterator<Item = (RunEvent, Bottom)>) {
        self.sums.totals.events += count as u64;
        let (mut last_order, mut end_time_ns) = (0, self.sums.totals.end_time_ns);
        for (RunEvent { event, short_lived }, at) in events {
            (last_order, end_time_ns) = (event.order, end_time_ns.max(event.time_ns));
            match event.kind {
                EventKind::Alloc(allocator) => self.flow_in(&event, allocator, short_lived, at),
                EventKind::Free => self.flow_out(&event, short_lived, at),
                _ => self.rare(&event),
            }
        }
        self.sums.totals.end_time_ns = end_time_ns;
        self.next_order = last_order.saturating_add(1);
    }

    #[inline(always)]
    fn flow_in(&mut self, event: &Event, allocator: Allocator, short_lived: bool, at: Bottom) {
        let block = if short_lived {
            self.short_lived.at(event.address)
        } else {
            let (was_live, block) = self.heap.put(event.address, at);
            // Before the new one is counted, else the peak would count both.
            if was_live {
                self.sums.replace(block);
            }
            block
        };
        self.sums.flow_in(event, allocator, block);
    }

    #[inline(always)]
    fn flow_out(&mut self, event: &Event, short_lived: bool, at: Bottom) {
        let last_free = &mut thread(&mut self.threads, event.thread).last_free;
        let before = last_free.place.take();
        if short_lived {
            // It is never undone.
            last_free.unmatched = false;
            self.sums.flow_out(self.short_lived.at(event.address));
        } else {
            match self.heap.end(event.address, at) {
                Some((place, block)) => {
                    (last_free.place, last_free.address) = (Some(place), event.address);
                    last_free.ended.end_untold(event.order);
                    self.sums.flow_out(block);
                }
                None => self.unmatched_free(event),
            }
        }
        if let Some(place) = before {
            self.heap.vacate(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::super::Replay;
    use crate::analysis::Options;
    use crate::event::{Event, EventKind, RunEvent, StackId, ThreadId};

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
        Event { kind, address, size: size.into(), stack, thread, order, time_ns: order / 3 }
    }

    proptest! {
        /// On small heaps and on those that become large, event by event or run by run.
        #[test]
        fn flows_live_heap_and_peak_are_those_of_the_replay(
            made in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u16>(), any::<bool>()), 1..200), runs in prop::collection::vec(1usize..20, 1..9),
        ) {
            let events: Vec<_> = (0..).zip(made).map(|(order, made)| event(order, made)).collect();
            let options = Options { flows: true, ..Options::default() };
            let (mut flows, mut replay) = (Replay::new(&options), Replay::new(&options));
            let (mut left, mut lengths) = (&events[..], runs.iter().cycle());
            while !left.is_empty() {
                let (run, behind) = left.split_at(left.len().min(*lengths.next().unwrap()));
                flows.flow_run(run.iter().copied().map(RunEvent::from));
                replay.events(run.iter().copied());
                prop_assert_eq!((flows.live(), flows.own_peak()), (replay.live(), replay.own_peak()));
                left = behind;
            }
            prop_assert_eq!(flows.flows().collect::<Vec<_>>(), replay.flows().collect::<Vec<_>>());
            prop_assert_eq!(flows.live_extents(), replay.live_extents());
            let counted = |replay: &Replay| {
                let totals = replay.totals();
                (totals.events, totals.unmatched_frees, totals.unmatched_unmaps, totals.replaced, totals.undone, totals.end_time_ns)
            };
            prop_assert_eq!(counted(&flows), counted(&replay));
        }
    }
}
