//! Determines the times of events, from ticks and from stamps.
//!
//! A tick is a ticket that the collector took at a known time; so an event with a later ticket happened after it. After
//! a pause the first run of the program has its own start time. A stamp is exact, but a thread may be delayed between
//! reading the clock and taking its ticket, so it is clamped to the interval between the ticks around its event.
//!
//! Invariant: an event is never earlier than a tick or snapshot before it in the total order, and always earlier than one
//! after it, unless two ticks have the same time. So a moment that has a tick divides the events exactly.

use std::collections::VecDeque;

use memtrack_format::meta::{Process, RecordedClock};
use memtrack_format::observe::{Observation, Tick};

/// Fractional bits of [`ClockScale::ns_per_tick`].
const FRACTION: u32 = 32;

/// A tick that waits for its position in the total order; its time is since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimelineTick {
    pub(crate) ticket: u64,
    pub(crate) time_ns: u64,
    /// Resident memory, if the tick is a snapshot.
    pub(crate) rss: Option<u64>,
}

impl TimelineTick {
    /// The latest time of an event before it.
    fn latest_before(&self) -> u64 {
        self.time_ns.saturating_sub(1)
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockPair {
    /// The stamping clock.
    pub(crate) ticks: u64,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) monotonic_ns: u64,
}

/// Converts the stamping clock to nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockScale {
    start_ticks: u64,
    /// A fixed-point number.
    ns_per_tick: u64,
}

impl ClockScale {
    /// Through the start and the last moment at which both clocks were read; `None` when they are not known.
    pub(crate) fn new(process: &Process, last: Option<ClockPair>) -> Option<Self> {
        let pair = |(ticks, monotonic_ns)| ClockPair { ticks, monotonic_ns };
        let start = process.start.ticks.zip(process.start.monotonic_ns).map(pair)?;
        let start_ticks = start.ticks;
        if process.start.clock == Some(RecordedClock::Monotonic) {
            return Some(Self { start_ticks, ns_per_tick: 1 << FRACTION });
        }
        let end = process.end.ticks.zip(process.end.monotonic_ns).map(pair).or(last)?;
        let ticks = end.ticks.wrapping_sub(start_ticks);
        let ns = end.monotonic_ns.wrapping_sub(start.monotonic_ns);
        let ns_per_tick = (u128::from(ns) << FRACTION).checked_div(u128::from(ticks))?;
        Some(Self { start_ticks, ns_per_tick: u64::try_from(ns_per_tick).ok()? })
    }

    #[inline]
    fn ns(self, ticks: u64) -> u64 {
        let since = ticks.saturating_sub(self.start_ticks);
        // The product of two 64-bit numbers; what is beyond 64 bits of nanoseconds is later than any tick.
        u64::try_from((u128::from(since) * u128::from(self.ns_per_tick)) >> FRACTION).unwrap_or(u64::MAX)
    }

    fn ticks(self, ns: u64) -> u64 {
        let since = (u128::from(ns) << FRACTION).checked_div(u128::from(self.ns_per_tick));
        since
            .and_then(|since| u64::try_from(since).ok())
            .map_or(u64::MAX, |since| since.saturating_add(self.start_ticks))
    }
}

/// The merge's position in time.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// CLOCK_MONOTONIC at the start; the first tick's if the capture does not have it.
    start_ns: Option<u64>,
    scale: Option<ClockScale>,
    /// Time of the last mark that was passed.
    floor: u64,
    /// The latest time of events before the next.
    ceiling: Option<u64>,
    marks: VecDeque<TimelineTick>,
    /// Of the last mark that was added.
    last: Tick,
    /// Events without stamps have come since the last mark.
    inexact: bool,
    /// The longest time between two marks, or the last one and the end, with such events in between.
    coarsest_ns: u64,
}

impl Timeline {
    pub(crate) fn new(start_ns: Option<u64>, scale: Option<ClockScale>) -> Self {
        Self { start_ns, scale, ..Self::default() }
    }

    /// From now on times of events are converted so.
    pub(crate) fn set_scale(&mut self, scale: ClockScale) {
        self.scale = Some(scale);
    }

    /// The ticket of the last mark that was added.
    pub(crate) fn last_ticket(&self) -> u64 {
        self.last.ticket
    }

    /// Adds a tick, later than all earlier ones.
    pub(crate) fn add(&mut self, observation: &Observation) {
        let (tick, rss) = match observation {
            Observation::Tick(tick) => (tick, None),
            Observation::Snapshot { tick, rss, .. } => (tick, Some(*rss)),
            Observation::Thread { .. } | Observation::Counted(_) => return,
        };
        let start = *self.start_ns.get_or_insert(tick.time_ns);
        let time_ns = tick.time_ns.saturating_sub(start).max(self.last.time_ns);
        self.last = Tick { ticket: tick.ticket.max(self.last.ticket), time_ns };
        self.marks.push_back(TimelineTick { ticket: self.last.ticket, time_ns, rss });
        self.ceiling = self.marks.front().map(TimelineTick::latest_before);
    }

    /// Whether a mark is known that comes after a run with this ticket.
    #[inline]
    pub(crate) fn reaches(&self, ticket: u64) -> bool {
        self.marks.back().is_some_and(|mark| mark.ticket > ticket)
    }

    /// The next mark that comes before a run with this ticket, which is passed by that.
    #[inline]
    pub(crate) fn pass(&mut self, ticket: u64) -> Option<TimelineTick> {
        self.marks.front().filter(|mark| mark.ticket <= ticket)?;
        let mark = self.marks.pop_front()?;
        let time_ns = self.reach(mark.time_ns);
        self.ceiling = self.marks.front().map(TimelineTick::latest_before);
        Some(TimelineTick { time_ns, ..mark })
    }

    /// A run begins at this time on the monotonic clock, as its thread recorded; returns the time since the start.
    pub(crate) fn begin_run(&mut self, monotonic_ns: u64) -> u64 {
        let start = *self.start_ns.get_or_insert(monotonic_ns);
        let time_ns = monotonic_ns.saturating_sub(start);
        self.reach(self.ceiling.map_or(time_ns, |ceiling| time_ns.min(ceiling)))
    }

    /// Events have come after the last mark; whether any is without a stamp.
    #[inline]
    pub(crate) fn given(&mut self, inexact: bool) {
        self.inexact |= inexact;
    }

    /// There are no more events; the recording ended at this time on the monotonic clock. Returns the time since the start; that of the
    /// last mark where the end is not known.
    pub(crate) fn end(&mut self, monotonic_ns: Option<u64>) -> u64 {
        let end = monotonic_ns.zip(self.start_ns).map(|(end, start)| end.saturating_sub(start));
        let last = self.reach(end.unwrap_or(0));
        // The marks of a snapshot of a recording go on behind its end.
        end.unwrap_or(last)
    }

    /// By how much events without stamps may have been later than their times, up to the last mark.
    pub(crate) fn coarsest_ns(&self) -> u64 {
        self.coarsest_ns
    }

    /// The next events are of this time or later; returns the time.
    fn reach(&mut self, time_ns: u64) -> u64 {
        let time_ns = time_ns.max(self.floor);
        if std::mem::take(&mut self.inexact) {
            self.coarsest_ns = self.coarsest_ns.max(time_ns - self.floor);
        }
        self.floor = time_ns;
        time_ns
    }

    /// The time of an event between the marks around here, by its stamp if it has one.
    #[inline]
    pub(crate) fn time(&self, stamp: Option<u64>) -> u64 {
        self.held(stamp, self.floor, self.ceiling)
    }

    /// The time of an event of a run with this ticket, which has not come yet; 0, or when its thread says that it began.
    pub(crate) fn time_at(&self, ticket: u64, monotonic_ns: u64, stamp: Option<u64>) -> u64 {
        let before = self.marks.partition_point(|mark| mark.ticket <= ticket);
        let floor = before.checked_sub(1).and_then(|last| self.marks.get(last)).map_or(0, |mark| mark.time_ns);
        let ceiling = self.marks.get(before).map(TimelineTick::latest_before);
        let began = self.start_ns.map_or(0, |start| monotonic_ns.saturating_sub(start));
        let began = ceiling.map_or(began, |ceiling| began.min(ceiling));
        self.held(stamp, floor.max(began).max(self.floor), ceiling)
    }

    /// A time on the stamping clock; the largest where events have no stamps.
    pub(crate) fn ticks(&self, time_ns: u64) -> u64 {
        self.scale.filter(|_| time_ns != u64::MAX).map_or(u64::MAX, |scale| scale.ticks(time_ns))
    }

    #[inline]
    fn held(&self, stamp: Option<u64>, floor: u64, ceiling: Option<u64>) -> u64 {
        match (stamp, self.scale) {
            (Some(ticks), Some(scale)) => {
                let time = scale.ns(ticks).max(floor);
                ceiling.map_or(time, |ceiling| time.min(ceiling))
            }
            _ => floor,
        }
    }
}
