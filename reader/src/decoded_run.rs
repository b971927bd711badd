//! The events of a run as they were decoded, with what they share: for who needs little of each.
//!
//! An [`Event`] has all that is known of it, which takes a quarter of the time of a replay to put together.
//!
//! Invariant: [`DecodedRun::event`] gives what the merge gives otherwise.

use crate::event::{Event, EventKind, RunEvent, StackId, ThreadId};
use crate::timeline::Timeline;

/// An event, without what the merge adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compact {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) node: u32,
    pub(crate) kind: EventKind,
    /// It is one of the two events of a block that ends in the run in which it begins.
    pub(crate) short_lived: bool,
}

/// Events of a run, or of a part of it.
#[derive(Clone, Copy, Debug)]
pub struct DecodedRun<'a> {
    pub(crate) events: &'a [Compact],
    /// Stacks of their nodes.
    pub(crate) stacks: &'a [StackId],
    pub(crate) thread: ThreadId,
    /// The number of the first one.
    pub(crate) order: u64,
    /// Ticks of the stamping clock for each event, if they have times of their own.
    pub(crate) times: &'a [u64],
    pub(crate) timeline: &'a Timeline,
    /// Nothing of the run is missing, and so both events of a short-lived block are here.
    pub(crate) whole: bool,
}

impl<'a> DecodedRun<'a> {
    /// The events without what they share.
    #[inline(always)]
    pub(crate) fn compact(&self) -> &'a [Compact] {
        self.events
    }

    /// The thread of all of them.
    #[inline(always)]
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread
    }

    /// The number of the event at this place.
    #[inline(always)]
    pub(crate) fn order(&self, at: usize) -> u64 {
        self.order + at as u64
    }

    /// The stack of a node.
    #[inline(always)]
    pub(crate) fn stack(&self, node: u32) -> StackId {
        self.stacks.get(node as usize).copied().unwrap_or_default()
    }

    /// The time of the event at this place.
    #[inline]
    pub(crate) fn time_ns(&self, at: usize) -> u64 {
        self.timeline.time(self.times.get(at).copied())
    }

    /// The latest time of an event, if there is any.
    pub(crate) fn latest_ns(&self) -> u64 {
        self.timeline.time(self.times.iter().max().copied())
    }

    /// The event at this place.
    #[inline]
    pub(crate) fn event(&self, at: usize, compact: &Compact) -> Event {
        Event {
            kind: compact.kind,
            address: compact.address,
            size: compact.size,
            stack: self.stack(compact.node),
            thread: self.thread,
            order: self.order(at),
            time_ns: self.time_ns(at),
        }
    }

    /// All of them.
    #[inline]
    pub(crate) fn run_events(self) -> impl ExactSizeIterator<Item = RunEvent> + Clone + 'a {
        let event = move |(at, compact): (usize, &Compact)| RunEvent {
            event: self.event(at, compact),
            short_lived: self.whole && compact.short_lived,
        };
        self.events.iter().enumerate().map(event)
    }
}

/// Calls `take` with these events of one thread, whose numbers follow each other, as a run; their times are stamps.
#[cfg(test)]
pub(crate) fn with_decoded_run(events: &[Event], take: impl FnOnce(&DecodedRun<'_>)) {
    use memtrack_format::meta::{Process, RecordedClock, StartTimes};

    use crate::timeline::ClockScale;

    let start = StartTimes {
        ticks: Some(0),
        monotonic_ns: Some(0),
        clock: Some(RecordedClock::Monotonic),
        ..StartTimes::default()
    };
    let timeline = Timeline::new(Some(0), ClockScale::new(&Process { start, ..Process::default() }, None));
    let compact = |(node, event): (u32, &Event)| {
        let Event { kind, address, size, .. } = *event;
        Compact { address, size, node, kind, short_lived: false }
    };
    let compact: Vec<_> = (0..).zip(events).map(compact).collect();
    let stacks: Vec<_> = events.iter().map(|event| event.stack).collect();
    let times: Vec<_> = events.iter().map(|event| event.time_ns).collect();
    let Event { thread, order, .. } = events[0];
    let (events, stacks, times, whole) = (&compact[..], &stacks[..], &times[..], true);
    take(&DecodedRun { events, stacks, thread, order, times, timeline: &timeline, whole });
}
