//! The windows of time of one length.
//!
//! Invariant: a window ends at a multiple of the length, or where its grid was told to, of an aggregated capture where its sums
//! were written; windows follow one another without
//! gaps, and an event that was replayed before a window closed is in it or in an earlier one.

use std::time::Duration;

use crate::analysis::{ExactFlow, FlowMark, RunningFlow, Tally};
use crate::window_groups::WindowGroups;

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
    pub groups: WindowGroups,
    /// At its end.
    pub totals: LiveTotals,
    /// Events in it.
    pub events: u64,
    /// The recording has ended in it.
    pub last: bool,
    /// The number of its grid.
    pub grid: u32,
}

impl LiveWindow {
    /// The window from a later moment on, of which nobody knows any more what was allocated and freed in it: what is live at its end.
    #[must_use]
    pub fn levels_from(mut self, from_ns: u64) -> Self {
        self.groups.keep_levels();
        Self { from_ns, events: 0, ..self }
    }
}

/// Windows of one length.
#[derive(Debug)]
pub(super) struct WindowGrid {
    pub(super) number: u32,
    every_ns: u64,
    /// Where the open window began.
    from_ns: u64,
    events_before: u64,
    /// What each group had allocated and freed when the open window began.
    before: Vec<FlowMark>,
    /// The same of an exact recording.
    exact_before: Vec<ExactFlow>,
    /// The open window closes as soon as a millisecond with an event has passed.
    at_once: bool,
    /// The open window ends here.
    fixed_ns: Option<u64>,
    /// No window closes for now.
    pub(super) held: bool,
}

impl WindowGrid {
    pub(super) fn new(number: u32, every: Duration) -> Self {
        Self {
            number,
            every_ns: u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1),
            from_ns: 0,
            events_before: 0,
            before: Vec::new(),
            exact_before: Vec::new(),
            at_once: false,
            fixed_ns: None,
            held: false,
        }
    }

    /// The same, whose first window closes soon.
    pub(super) fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    /// The open window ends at this time.
    pub(super) fn end_first_at(&mut self, time_ns: u64) {
        self.fixed_ns = Some(time_ns);
    }

    /// Whether another one has the same open window, and the same ones after it.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let key = |grid: &Self| (grid.every_ns, grid.from_ns, grid.at_once, grid.fixed_ns, grid.events_before);
        key(self) == key(other)
    }

    /// Where the open window ends, if it does: all coming events are of this time or later, the earlier ones were not after
    /// `passed_ns`. Of a long pause, one window: the grid is kept.
    pub(super) fn end_at(&self, time_ns: u64, passed_ns: u64, has_begun: bool) -> Option<u64> {
        let end = match self.fixed_ns {
            Some(end) if time_ns >= end => return Some(end),
            Some(_) => return None,
            None if self.at_once && !has_begun => return None,
            None if self.at_once => time_ns - time_ns % MILLISECOND_NS,
            None => time_ns - time_ns % self.every_ns,
        };
        (end > self.from_ns && end > passed_ns && !self.held).then_some(end)
    }

    /// Where the open window ends, if that is known.
    pub(super) fn next_end(&self) -> Option<u64> {
        let end = self.fixed_ns.unwrap_or((self.from_ns / self.every_ns + 1).saturating_mul(self.every_ns));
        (!self.at_once && !self.held).then_some(end)
    }

    /// Where the open window ends, if it does: everything up to this time is known, and nothing of a moment between the last
    /// window's end and it.
    pub(super) fn end_of_known(&self, time_ns: u64, has_begun: bool) -> Option<u64> {
        let end = self.last_end(time_ns);
        let is_long = self.at_once && has_begun || end.saturating_sub(self.from_ns) >= self.every_ns;
        (end > self.from_ns && is_long && self.fixed_ns.is_none_or(|fixed| end >= fixed) && !self.held).then_some(end)
    }

    /// The end of the last window, after this last moment: a whole number of milliseconds, so that reports can be asked for
    /// the same span.
    pub(super) fn last_end(&self, time_ns: u64) -> u64 {
        (time_ns.max(self.from_ns) / MILLISECOND_NS + 1) * MILLISECOND_NS
    }

    /// The window until this time, with `groups`, which are empty so far; whether it is the last one.
    pub(super) fn close(
        &mut self,
        end: (u64, bool),
        totals: LiveTotals,
        flows: impl Iterator<Item = RunningFlow>,
        mut groups: WindowGroups,
    ) -> LiveWindow {
        let mut before = self.before.iter_mut();
        let mut further = Vec::new();
        for running in flows {
            let now = running.mark();
            groups.push(&running.since(match before.next() {
                Some(before) => std::mem::replace(before, now),
                None => {
                    further.push(now);
                    FlowMark::default()
                }
            }));
        }
        self.before.append(&mut further);
        self.next(end, totals, groups)
    }

    /// The same of an exact recording.
    pub(super) fn close_exact(
        &mut self,
        end: (u64, bool),
        totals: LiveTotals,
        flows: impl Iterator<Item = ExactFlow>,
    ) -> LiveWindow {
        let mut groups = WindowGroups::new(true);
        for (at, flow) in flows.enumerate() {
            match self.exact_before.get_mut(at) {
                Some(before) => groups.push_exact(&flow, &std::mem::replace(before, flow)),
                None => {
                    self.exact_before.push(flow);
                    groups.push_exact(&flow, &ExactFlow { allocated: (0, 0), freed: (0, 0), ..flow });
                }
            }
        }
        self.next(end, totals, groups)
    }

    /// The window with these groups; the next one is open.
    fn next(&mut self, (to_ns, last): (u64, bool), totals: LiveTotals, groups: WindowGroups) -> LiveWindow {
        let (from_ns, grid) = (self.from_ns, self.number);
        let events = totals.events.saturating_sub(self.events_before);
        (self.events_before, self.from_ns, self.at_once, self.fixed_ns) = (totals.events, to_ns, false, None);
        LiveWindow { from_ns, to_ns, groups, totals, events, last, grid }
    }
}
