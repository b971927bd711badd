//! What takes the events of captures in their total order, and what comes between them.
//!
//! Invariant: whatever a consumer does not override comes down to single events.

use memtrack_format::meta::Process;

use crate::analysis::short_lived_sums::ShortLivedSums;
use crate::decoded_run::DecodedRun;
use crate::event::{Event, RunEvent, Snapshot, ThreadId};
use crate::frames::Frames;
use crate::native::NativeModule;
use crate::replay::{Replay, repeated::round};

/// What a consumer wants to know of short-lived blocks: those that end in the run in which they begin, at an address that had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShortLivedUse {
    /// Nothing, so that none is looked for.
    #[default]
    Nothing,
    /// Which ones they are.
    Marks,
    /// The same, and the sums of those of a run, if they are worth it.
    Sums {
        /// How many further allocations of its thread a temporary block may outlive.
        temporary_threshold: u32,
    },
}

/// A consumer of events. What it does not need passes it by.
pub trait Consumer {
    /// The next event of the total order. The frames of its stack are known.
    fn event(&mut self, event: &Event, frames: &Frames);
    /// What is known of the process whose events come, before the first one, where a capture is [followed](super::FollowedCapture).
    fn process(&mut self, _process: &Process) {}
    /// A memory snapshot after all events so far. Its heap size is 0: the replay computes it.
    fn snapshot(&mut self, _snapshot: &Snapshot) {}
    /// The next events, in order, for consumers that process several at once. It is an iterator, since storing the
    /// events first takes as long as processing them.
    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        events.for_each(|event| self.event(&event, frames));
    }
    /// The next events, which are all of a run or of a part of it: for consumers that need not look at each block.
    #[inline]
    fn run_events(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone, frames: &Frames) {
        self.events(events.map(|RunEvent { event, .. }| event), frames);
    }
    /// The same, for consumers that need little of each event.
    #[inline]
    fn decoded_run(&mut self, run: &DecodedRun<'_>, frames: &Frames) {
        self.run_events(run.run_events(), frames);
    }
    /// What [`Consumer::run_events`] uses of short-lived blocks, or [`Consumer::summed_run`].
    fn short_lived(&self) -> ShortLivedUse {
        ShortLivedUse::Nothing
    }
    /// The next run, which has so many events, all of one time, by their numbers from 0, and the sums of its short-lived
    /// blocks.
    #[inline]
    fn summed_run(
        &mut self,
        _sums: &ShortLivedSums,
        length: usize,
        event: impl Fn(usize) -> Event + Clone,
        frames: &Frames,
    ) {
        self.events((0..length).map(event), frames);
    }
    /// These events, of one run and time, have come, and come so many times more, from these numbers on; no free is undone.
    fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        (0..times).for_each(|number| self.events(round(&events, number), frames));
    }
    /// This number of further allocations have truncated stacks.
    fn truncated_stacks(&mut self, _count: u64) {}
    /// A run begins: the next events are of this thread.
    fn run(&mut self, _place: &RunPosition) {}
    /// A tick: this ticket was taken at this time, in nanoseconds since the start, after all events so far, by the
    /// collector or by the thread of the next run.
    fn tick(&mut self, _ticket: u64, _time_ns: u64) {}
    /// Events with exact times of this time or later are given apart from those before it, after a tick of the time of the first.
    fn boundary_ns(&self) -> u64 {
        u64::MAX
    }
    /// The recording ended at this time, in nanoseconds since the start, after all events and snapshots; it is the last tick's where the
    /// end is not known.
    fn ended(&mut self, _time_ns: u64) {}
    /// The process replaced its image: coming events are of one with an empty heap.
    fn replaced(&mut self) {}
    /// A code object is described, before the events that run it in one stream: its id, name and file.
    fn code(&mut self, _id: u32, _name: &str, _file: &str) {}
    /// A module of native code is described, before the events that run it in one stream.
    fn module(&mut self, _module: &NativeModule) {}
}

impl Consumer for Replay {
    #[inline]
    fn event(&mut self, event: &Event, _frames: &Frames) {
        Self::event(self, event);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        Self::snapshot(self, snapshot.time_ns, snapshot.rss_bytes);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        Self::events(self, events);
    }

    #[inline]
    fn run_events(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone, _frames: &Frames) {
        self.run_and(events, |_, _| ());
    }

    fn short_lived(&self) -> ShortLivedUse {
        match self.short_lived_threshold() {
            Some(temporary_threshold) => ShortLivedUse::Sums { temporary_threshold },
            None => ShortLivedUse::Marks,
        }
    }

    #[inline]
    fn summed_run(
        &mut self,
        sums: &ShortLivedSums,
        length: usize,
        event: impl Fn(usize) -> Event + Clone,
        _frames: &Frames,
    ) {
        Self::summed_run(self, sums, length, event);
    }

    fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        Self::repeated(self, times, events);
    }

    fn truncated_stacks(&mut self, count: u64) {
        Self::truncated_stacks(self, count);
    }

    fn ended(&mut self, time_ns: u64) {
        Self::ended(self, time_ns);
    }

    fn replaced(&mut self) {
        Self::replaced(self);
    }
}

/// The position of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPosition {
    /// Its ticket: runs are in the order of their tickets.
    pub ticket: u64,
    /// Its thread.
    pub thread: ThreadId,
    /// The operating system's id of the thread.
    pub tid: i32,
}
