//! The state of the live heap after the events so far, and the windows that have closed.
//!
//! A window closes when a tick shows that all coming events are later. Invariant: windows follow one another without gaps,
//! each event is in the window of its time, and what is live at the end of a window is what all windows so far have
//! allocated and not freed.

use std::collections::VecDeque;
use std::time::Duration;

use super::history::LiveHistory;
use crate::analysis::{GroupFlow, Options, Tally, UnknownBlocks};
use crate::event::{Event, Snapshot};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::Consumer;

/// Nanoseconds in a millisecond.
const MILLISECOND_NS: u64 = 1_000_000;

/// Totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveTotals {
    /// The time of the last tick, in nanoseconds since recording began.
    pub time_ns: u64,
    /// Events so far.
    pub events: u64,
    /// What is live.
    pub live: Tally,
    /// The most bytes that were live.
    pub peak_bytes: u64,
    /// When that was.
    pub peak_time_ns: u64,
    /// Resident memory at the last sample; 0: there is none.
    pub rss_bytes: u64,
    /// The most that was sampled.
    pub rss_peak_bytes: u64,
    /// Deallocations of blocks that are not known.
    pub unmatched_frees: u64,
}

/// A span of time that has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveWindow {
    /// Its first moment, in nanoseconds since recording began.
    pub from_ns: u64,
    /// The moment after its last.
    pub to_ns: u64,
    /// All groups with an event in it, or with something live at its end.
    pub groups: Vec<GroupFlow>,
    /// At its end.
    pub totals: LiveTotals,
    /// Events in it.
    pub events: u64,
    /// The recording has ended in it.
    pub last: bool,
}

/// The live heap.
#[derive(Debug)]
pub struct LiveState {
    replay: Replay,
    history: LiveHistory,
    rss_bytes: u64,
    rss_peak_bytes: u64,
    time_ns: u64,
    /// The length of windows in nanoseconds; 0: there are none.
    every_ns: u64,
    /// Where the open window began.
    from_ns: u64,
    events_before: u64,
    /// What each group had allocated and freed when the open window began.
    before: Vec<(Tally, Tally)>,
    windows: VecDeque<LiveWindow>,
}

impl LiveState {
    /// The state before the first event. `every`: the length of windows, if there are to be any.
    #[must_use]
    pub fn new(every: Option<Duration>) -> Self {
        Self {
            replay: Replay::new(&Options { flows: true, ..Options::default() }),
            history: LiveHistory::default(),
            rss_bytes: 0,
            rss_peak_bytes: 0,
            time_ns: 0,
            every_ns: every.map_or(0, |every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX)),
            from_ns: 0,
            events_before: 0,
            before: Vec::new(),
            windows: VecDeque::new(),
        }
    }

    /// The same, of a process that frees such blocks without a recorded allocation.
    pub(super) fn with_unknown(mut self, unknown_blocks: UnknownBlocks) -> Self {
        self.replay = Replay::new(&Options { flows: true, unknown_blocks, ..Options::default() });
        self
    }

    /// All groups that have something live, with all that they have allocated and freed so far.
    pub fn groups(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        self.replay.flows()
    }

    /// The totals now.
    #[must_use]
    pub fn totals(&self) -> LiveTotals {
        let totals = self.replay.totals();
        LiveTotals {
            time_ns: self.time_ns,
            events: totals.events,
            live: self.replay.live(),
            peak_bytes: totals.peak.bytes,
            peak_time_ns: totals.peak.at.map_or(0, |at| at.time_ns),
            rss_bytes: self.rss_bytes,
            rss_peak_bytes: self.rss_peak_bytes,
            unmatched_frees: totals.unmatched_frees,
        }
    }

    /// Memory over time.
    #[must_use]
    pub fn history(&self) -> &LiveHistory {
        &self.history
    }

    /// The oldest window that was not taken.
    pub(super) fn take_window(&mut self) -> Option<LiveWindow> {
        self.windows.pop_front()
    }

    /// Whether a window waits to be taken.
    pub(super) fn has_window(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The recording has ended at this time: closes the open window.
    pub(super) fn end(&mut self, time_ns: u64) {
        self.pass(time_ns);
        if self.every_ns > 0 {
            // A whole number of milliseconds, so that reports can be asked for the same span.
            let to_ns = (self.time_ns.max(self.from_ns) / MILLISECOND_NS + 1) * MILLISECOND_NS;
            self.close(to_ns, true);
        }
    }

    /// All coming events are of this time or later.
    fn pass(&mut self, time_ns: u64) {
        if self.every_ns > 0 {
            // Of a long pause, one window: the grid is kept.
            let begun = time_ns - time_ns % self.every_ns;
            if begun > self.from_ns {
                self.close(begun, false);
            }
        }
        self.time_ns = self.time_ns.max(time_ns);
        self.history.add(self.time_ns, self.replay.live().bytes, self.rss_bytes);
    }

    fn close(&mut self, to_ns: u64, last: bool) {
        let mut groups = Vec::new();
        let mut before = self.before.iter_mut();
        let mut further = Vec::new();
        for mut group in self.replay.flows() {
            let now = (group.allocated, group.freed);
            let (allocated, freed) = match before.next() {
                Some(before) => std::mem::replace(before, now),
                None => {
                    further.push(now);
                    Default::default()
                }
            };
            group.allocated = minus(group.allocated, allocated);
            group.freed = minus(group.freed, freed);
            if [group.allocated, group.freed, group.live].iter().any(|tally| *tally != Tally::default()) {
                groups.push(group);
            }
        }
        self.before.append(&mut further);
        let totals = self.totals();
        let events = totals.events.saturating_sub(self.events_before);
        self.events_before = totals.events;
        self.windows.push_back(LiveWindow { from_ns: self.from_ns, to_ns, groups, totals, events, last });
        self.from_ns = to_ns;
    }
}

fn minus(now: Tally, before: Tally) -> Tally {
    Tally { bytes: now.bytes.saturating_sub(before.bytes), count: now.count.saturating_sub(before.count) }
}

impl Consumer for LiveState {
    #[inline]
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.replay.event(event);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        self.replay.events(events);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.rss_bytes = snapshot.rss_bytes;
        self.rss_peak_bytes = self.rss_peak_bytes.max(snapshot.rss_bytes);
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        self.pass(time_ns);
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }

    fn replaced(&mut self) {
        self.replay.replaced();
    }
}
