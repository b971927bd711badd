//! What each stack allocated, freed and held in every span of one length.
//!
//! Invariant: a window has the events whose time is in it; over all windows, what was allocated and freed adds up to the
//! whole recording, and the last window of a group has what it holds at the end.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use crate::analysis::{FlowMark, GroupFlow, Options, SiteWindow, Tally};
use crate::event::{Event, Snapshot, StackId, ThreadId};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::replay::repeated::round;
use crate::source::Consumer;

/// Replays events and cuts them into windows, the first from the beginning of the recording.
#[derive(Debug)]
pub struct WindowReplay {
    replay: Replay,
    /// The length of a window; `None`: there are to be none.
    length_ns: Option<u64>,
    /// The number of the window that the last event was in.
    number: u64,
    /// What each group had allocated and freed at the end of the last window.
    before: Vec<FlowMark>,
    windows: Vec<SiteWindow>,
}

impl WindowReplay {
    /// Before the first event; windows are this long, if there are to be any.
    #[must_use]
    pub fn new(options: &Options, length_ns: Option<u64>) -> Self {
        let with = length_ns.is_some();
        let replay = Replay::new(&Options { flows: with, window_peaks: with, ..*options });
        let length_ns = length_ns.map(|length| length.max(1));
        Self { replay, length_ns, number: 0, before: Vec::new(), windows: Vec::new() }
    }

    /// The replay.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// The windows that have ended and were not taken.
    pub fn take(&mut self) -> Vec<SiteWindow> {
        std::mem::take(&mut self.windows)
    }

    /// The window that has not ended, up to now.
    #[must_use]
    pub fn open(&self) -> Option<SiteWindow> {
        let length = self.length_ns?;
        let from_ns = self.number.saturating_mul(length);
        let rows = self.replay.running_flows().enumerate().filter_map(|(at, flow)| {
            let flow = flow.since(self.before.get(at).copied().unwrap_or_default());
            [flow.allocated, flow.freed, flow.live].into_iter().any(is_something).then_some(flow)
        });
        Some(SiteWindow { from_ns, to_ns: from_ns.saturating_add(length), rows: rows.collect() })
    }

    /// Ends the last window.
    pub fn end(&mut self) {
        self.cut();
    }

    /// The replay at the end, and the windows that were not taken.
    #[must_use]
    pub fn finish(mut self) -> (Replay, Vec<SiteWindow>) {
        self.end();
        (self.replay, self.windows)
    }

    /// Ends the window before the one that contains this time. Windows in which there was neither an event nor a snapshot are
    /// left out: what is live is that of the window before.
    #[inline]
    fn reach(&mut self, time_ns: u64) {
        let Some(length) = self.length_ns else { return };
        let number = time_ns / length;
        if number > self.number {
            self.cut();
            self.number = number;
        }
    }

    fn cut(&mut self) {
        let Some(window) = self.open() else { return };
        self.before.clear();
        self.before.extend(self.replay.running_flows().map(|flow| flow.mark()));
        self.windows.push(window);
        self.replay.begin_window();
    }

    /// Whether all of these are in the present window.
    fn has_all(&self, events: impl Iterator<Item = Event>) -> bool {
        self.length_ns.is_none_or(|length| {
            let end = self.number.saturating_add(1).saturating_mul(length);
            events.map(|event| event.time_ns).max().is_none_or(|last| last < end)
        })
    }
}

/// Windows with a row for each group that holds something at their ends, made of those that have rows only of groups in which
/// something happened.
pub fn complete(windows: &[SiteWindow]) -> impl Iterator<Item = SiteWindow> + '_ {
    let key = |flow: &GroupFlow| (flow.stack, flow.allocator, flow.thread);
    let mut held: FxHashMap<(StackId, Allocator, ThreadId), Tally> = FxHashMap::default();
    windows.iter().map(move |window| {
        let mut rows = window.rows.clone();
        for flow in &rows {
            held.remove(&key(flow));
        }
        let none = Tally::default();
        let idle = held.iter().map(|(&(stack, allocator, thread), &live)| {
            let (allocated, freed, peak) = (none, none, Some(live));
            GroupFlow { stack, thread, allocator, allocated, freed, live, peak }
        });
        rows.extend(idle);
        held.extend(window.rows.iter().filter(|flow| is_something(flow.live)).map(|flow| (key(flow), flow.live)));
        SiteWindow { rows, ..*window }
    })
}

/// Parts of mappings have bytes, and are no allocation.
fn is_something(tally: Tally) -> bool {
    (tally.bytes, tally.count) != (0, 0)
}

impl Consumer for WindowReplay {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.reach(event.time_ns);
        self.replay.event(event);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        if self.has_all(events.clone()) {
            self.replay.events(events);
        } else {
            events.for_each(|event| self.event(&event, frames));
        }
    }

    fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        if self.has_all(events.clone()) {
            self.replay.repeated(times, events);
        } else {
            (0..times).for_each(|number| self.events(round(&events, number), frames));
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.reach(snapshot.time_ns);
        self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }

    fn ended(&mut self, time_ns: u64) {
        self.replay.ended(time_ns);
    }

    fn replaced(&mut self) {
        self.replay.replaced();
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{WindowReplay, complete};
    use crate::analysis::{Options, SiteWindow};
    use crate::event::{Event, EventKind, Snapshot, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::source::Consumer;

    const ALLOC: EventKind = EventKind::Alloc(Allocator::Malloc);

    fn events() -> Vec<Event> {
        let events = [
            (10, ALLOC, 0x10, 100, 1),
            (20, ALLOC, 0x20, 50, 1),
            (30, EventKind::Free, 0x10, 0, 0),
            (110, ALLOC, 0x30, 7, 2),
            (120, ALLOC, 0x40, 9, 2),
            (350, EventKind::Free, 0x20, 0, 0),
        ];
        let event = |(order, (time_ns, kind, address, size, stack))| Event {
            kind,
            address,
            size,
            stack: StackId(stack),
            thread: ThreadId(0),
            order,
            time_ns,
        };
        (0..).zip(events).map(event).collect()
    }

    /// Stack, and bytes allocated, freed, live and at the peak, of each row.
    fn rows(window: &SiteWindow) -> Vec<[u64; 5]> {
        let mut rows: Vec<_> = window
            .rows
            .iter()
            .map(|row| {
                let peak = row.peak.unwrap();
                [row.stack.0.into(), row.allocated.bytes, row.freed.bytes, row.live.bytes, peak.bytes]
            })
            .collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn windows_have_what_happened_in_them() {
        let mut replay = WindowReplay::new(&Options::default(), Some(100));
        replay.events(events().into_iter(), &Frames::new());
        replay.snapshot(&Snapshot { time_ns: 420, ..Snapshot::default() });
        let windows = replay.take();
        let spans: Vec<_> = windows.iter().map(|window| (window.from_ns, window.to_ns)).collect();
        assert_eq!(spans, [(0, 100), (100, 200), (300, 400)]);
        assert_eq!(rows(&windows[0]), [[1, 150, 100, 50, 150]]);
        assert_eq!(rows(&windows[1]), [[1, 0, 0, 50, 50], [2, 16, 0, 16, 16]]);
        assert_eq!(rows(&windows[2]), [[1, 0, 50, 0, 50], [2, 0, 0, 16, 16]]);
        assert_eq!(rows(&replay.open().unwrap()), [[2, 0, 0, 16, 16]]);
    }

    #[test]
    fn without_windows_it_is_a_replay() {
        let mut replay = WindowReplay::new(&Options::default(), None);
        replay.events(events().into_iter(), &Frames::new());
        assert_eq!((replay.open(), replay.take()), (None, Vec::new()));
        assert_eq!(replay.finish().0.finish().totals.leaked_at_exit.bytes, 16);
    }

    #[test]
    fn what_is_held_has_a_row_again() {
        let mut replay = WindowReplay::new(&Options::default(), Some(100));
        replay.events(events().into_iter(), &Frames::new());
        let (_, all) = replay.finish();
        let mut sparse = all.clone();
        for window in &mut sparse {
            window.rows.retain(|row| row.allocated.count + row.freed.count > 0);
        }
        assert_eq!(sparse[1].rows.len(), 1);
        let completed: Vec<_> = complete(&sparse).map(|window| rows(&window)).collect();
        assert_eq!(completed, all.iter().map(rows).collect::<Vec<_>>());
    }

    #[test]
    fn parts_of_mappings_are_held_without_an_allocation() {
        let mut replay = WindowReplay::new(&Options::default(), Some(100));
        replay.events(events().into_iter(), &Frames::new());
        let (_, mut all) = replay.finish();
        all.truncate(1);
        all[0].rows[0].live.count = 0;
        all.push(SiteWindow { from_ns: 100, to_ns: 200, rows: Vec::new() });
        let last = complete(&all).last().unwrap();
        assert_eq!(rows(&last), [[1, 0, 0, 50, 50]]);
    }
}
