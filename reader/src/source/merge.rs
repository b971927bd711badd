//! Merges the runs of many streams into one sequence of events; shared by file reading and online reading.
//!
//! The caller chooses the stream whose run is next, by [`RunTurn`]; the merge gives the run's events their stack,
//! thread, time and number, and emits the ticks and snapshots before it first.
//!
//! Invariant: each event, snapshot and tick is emitted once, and the only look-up per event is that of its stack in the
//! segment's table.

use std::ops::Range;

use memtrack_format::mapped::MappedFile;
use memtrack_format::observe::Observation;
use memtrack_format::record::RawFrame;

use super::segment::{Batch, Definition, TicketRun};
use super::tables::IdTables;
use super::thread_names::NameSource;
use super::{Consumer, DataLoss, ReadSummary, RunPosition};
use crate::decoded_run::Compact;
use crate::decoded_run::DecodedRun;
use crate::error::Error;
use crate::event::{Event, Snapshot, StackId, ThreadId};
use crate::timeline::Timeline;

/// The position of a stream's next run: its ticket. Runs of several streams share a ticket if threads at full rate took
/// it together. Their events are merged by exact times, if those are recorded, else stream by stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunTurn {
    pub(super) ticket: u64,
    /// Of its next event, in ticks; 0 where it is not known.
    time: u64,
}

impl RunTurn {
    /// Of something with this ticket that begins before all events.
    pub(super) const fn first(ticket: u64) -> Self {
        Self { ticket, time: 0 }
    }

    /// The larger one of this and the last emitted turn.
    pub(super) fn not_before(self, Self { ticket, .. }: Self) -> Self {
        Self { ticket: self.ticket.max(ticket), ..self }
    }

    /// Of its next event, in ticks; 0 where it is not known.
    pub(super) fn time(self) -> u64 {
        self.time
    }

    /// The time, in ticks, up to which events may be emitted before `next`.
    pub(super) fn until(self, next: Option<Self>) -> u64 {
        next.filter(|next| next.ticket == self.ticket).map_or(u64::MAX, |next| next.time)
    }
}

/// The position in one stream.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pub(super) batch: Batch,
    /// The next run of the batch.
    run: usize,
    /// Events of the batch that were given out.
    given: usize,
    /// Stacks of the segment's nodes.
    stacks: Vec<StackId>,
    thread: ThreadId,
    tid: i32,
    /// Of which image of the process the segment is.
    image: usize,
}

impl Cursor {
    /// When its next run comes, or what is left of one.
    #[inline]
    pub(super) fn next(&self) -> Option<RunTurn> {
        let ticket = self.batch.runs.get(self.run)?.ticket;
        Some(RunTurn { ticket, time: self.batch.times.get(self.given).copied().unwrap_or(0) })
    }

    /// Takes the rest of the next run, up to the time `until` in ticks, where times are known; and whether it is the whole
    /// run.
    #[inline]
    fn take(&mut self, until: u64) -> (bool, Range<usize>) {
        let (given, batch) = (self.given, &self.batch);
        let end = batch.runs.get(self.run + 1).map_or(batch.events.len(), |next| next.start);
        let later = |times: &[u64]| times.iter().position(|&time| time > until);
        let late = (until != u64::MAX).then(|| batch.times.get(given..end).and_then(later)).flatten();
        let is_first = batch.runs.get(self.run).is_some_and(|run| run.start == given);
        self.given = late.map_or(end, |count| given + count);
        self.run += usize::from(late.is_none());
        (is_first && late.is_none(), given..self.given)
    }
}

/// The state of the merge that all streams share.
#[derive(Debug, Default)]
pub(super) struct Merger {
    pub(super) tables: IdTables,
    pub(super) timeline: Timeline,
    /// Events given out so far.
    events: u64,
    snapshots: u32,
    /// First tickets of later images of the process, in order.
    images: Vec<u64>,
    /// How many of them have begun.
    begun: usize,
}

impl Merger {
    /// A merge before its first event; `images`: the first tickets of later images of the process.
    pub(super) fn new(timeline: Timeline, images: Vec<u64>) -> Self {
        Self { timeline, images, ..Self::default() }
    }

    /// Events given out so far.
    pub(super) fn given(&self) -> u64 {
        self.events
    }

    /// The process replaces its image: this ticket and later ones belong to the next image.
    pub(super) fn replaced(&mut self, ticket: u64) {
        let last = self.images.last().copied().unwrap_or(0);
        self.images.push(ticket.max(last));
    }

    /// Adds a mapped file that the collector found, for the image with this first ticket.
    pub(super) fn mapped(&mut self, ticket: u64, file: &MappedFile) {
        let image = self.images.partition_point(|&first| first <= ticket);
        self.tables.mapped(image, file);
    }

    /// Sets the cursor's next batch; returns the previous one.
    pub(super) fn load<C: Consumer>(
        &mut self,
        cursor: &mut Cursor,
        batch: Batch,
        consumer: &mut C,
    ) -> Result<Batch, Error> {
        if let Some(begin) = batch.begin {
            (cursor.thread, cursor.tid) = (self.tables.thread(begin.tid), begin.tid);
            cursor.image = self.images.partition_point(|&first| first <= begin.ticket);
            cursor.stacks.clear();
            cursor.stacks.push(StackId::EMPTY);
        }
        for definition in &batch.definitions {
            self.tables.define(cursor.image, definition);
            if let Definition::Counted(count) = definition {
                let first_run = batch.runs.first().map_or(0, |run| run.ticket);
                self.tables.count(count, batch.begin.map_or(first_run, |begin| begin.ticket).max(1));
            }
            if let Definition::Code(code) = definition {
                consumer.code(code.id, &String::from_utf8_lossy(&code.name), &String::from_utf8_lossy(&code.file));
            }
            if let Definition::Module(code, _) = definition {
                let place = self.tables.native_place(cursor.image, RawFrame { code: *code, instruction: 0 });
                place.into_iter().for_each(|(module, _)| consumer.module(&module));
            }
        }
        self.tables.map_nodes(cursor.image, &batch.nodes, &mut cursor.stacks)?;
        consumer.truncated_stacks(batch.truncated);
        (cursor.run, cursor.given) = (0, 0);
        Ok(std::mem::replace(&mut cursor.batch, batch))
    }

    /// Emits the cursor's next run, if it has one; of a run with times, the events up to `until`, in ticks.
    pub(super) fn give_run<C: Consumer>(&mut self, cursor: &mut Cursor, until: u64, consumer: &mut C) {
        let Some(&TicketRun { ticket, began_us, again, .. }) = cursor.batch.runs.get(cursor.run) else { return };
        self.pass(ticket, consumer);
        if let Some(began_us) = began_us {
            consumer.tick(ticket, self.timeline.begin_run(began_us.get().saturating_mul(1000)));
        }
        let run = cursor.run;
        let (whole, range) = cursor.take(self.before_boundary(cursor, until, consumer));
        let batch = &cursor.batch;
        let Some(events) = batch.events.get(range.clone()) else { return };
        consumer.run(&RunPosition { ticket, thread: cursor.thread, tid: cursor.tid });
        let times = batch.times.get(range).unwrap_or_default();
        let (order, count) = (self.events, events.len() as u64);
        self.events += count * (1 + again);
        self.timeline.given(!events.is_empty() && times.is_empty());
        let (stacks, thread, timeline) = (cursor.stacks.as_slice(), cursor.thread, &self.timeline);
        let decoded = DecodedRun { events, stacks, thread, order, times, timeline, whole };
        let event = |(i, compact): (usize, &Compact)| decoded.event(i, compact);
        // Other threads' events may come between two parts of a run.
        if let Some(sums) = batch.sums.get(run).and_then(Option::as_ref).filter(|_| whole) {
            consumer.summed_run(sums, events.len(), |i| event((i, &events[i])), &self.tables.frames);
        } else {
            consumer.decoded_run(&decoded, &self.tables.frames);
        }
        if again > 0 {
            let next = |event: Event| Event { order: event.order + count, ..event };
            consumer.repeated(again, events.iter().enumerate().map(event).map(next), &self.tables.frames);
        }
    }

    /// Where events with exact times stop in front of the consumer's boundary, in ticks; at least one is given. Times rise from
    /// event to event: where the next one is not before the boundary, no later one is, and the consumer gets a tick first.
    fn before_boundary<C: Consumer>(&self, cursor: &Cursor, until: u64, consumer: &mut C) -> u64 {
        let Some(&first) = cursor.batch.times.get(cursor.given) else { return until };
        let boundary_ns = consumer.boundary_ns();
        if boundary_ns == u64::MAX {
            return until;
        }
        let first_ns = self.timeline.time(Some(first));
        if first_ns >= boundary_ns {
            let ticket = cursor.batch.runs.get(cursor.run).map_or(0, |run| run.ticket);
            consumer.tick(ticket, first_ns);
        }
        until.min(self.timeline.ticks(consumer.boundary_ns().saturating_sub(1)).max(first))
    }

    /// The time of the cursor's next event, once everything before it was emitted.
    pub(super) fn next_ns(&self, cursor: &Cursor) -> u64 {
        let Some(TicketRun { ticket, began_us, .. }) = cursor.batch.runs.get(cursor.run) else { return u64::MAX };
        let began_ns = began_us.map_or(0, |began_us| began_us.get().saturating_mul(1000));
        self.timeline.time_at(*ticket, began_ns, cursor.batch.times.get(cursor.given).copied())
    }

    /// Emits the ticks, snapshots and new images that come before a run with this ticket.
    #[inline]
    pub(super) fn pass<C: Consumer>(&mut self, ticket: u64, consumer: &mut C) {
        while let Some(&first) = self.images.get(self.begun).filter(|&&first| first <= ticket) {
            self.pass_marks(first.saturating_sub(1), consumer);
            consumer.replaced();
            self.begun += 1;
        }
        self.pass_marks(ticket, consumer);
    }

    #[inline]
    fn pass_marks<C: Consumer>(&mut self, ticket: u64, consumer: &mut C) {
        while let Some(mark) = self.timeline.pass(ticket) {
            consumer.tick(mark.ticket, mark.time_ns);
            let Some(rss_bytes) = mark.rss else { continue };
            let (index, order) = (self.snapshots, self.events);
            consumer.snapshot(&Snapshot { index, time_ns: mark.time_ns, rss_bytes, heap_bytes: 0, order });
            self.snapshots = self.snapshots.saturating_add(1);
        }
    }

    /// What was read.
    pub(super) fn finish(self, lost: DataLoss) -> ReadSummary {
        let mut unnamed = self.tables.symbols.problems();
        let programs = self.tables.frames.programs();
        let is_executable = |module: &str| programs.iter().any(|program| program.is_executable(module));
        unnamed.retain(|problem| !problem.exports_others || is_executable(&problem.module));
        ReadSummary {
            unnamed,
            frames: self.tables.frames,
            threads: self.tables.threads,
            unknown_frames: self.tables.unknown_frames,
            time_uncertainty_ns: self.timeline.coarsest_ns(),
            lost,
        }
    }

    /// Adds an observation of the collector, later than all earlier ones.
    pub(super) fn observe(&mut self, observation: &Observation) {
        self.timeline.add(observation);
        match observation {
            Observation::Thread { tid, name } => {
                self.tables.name_thread(*tid, name, NameSource::System(self.timeline.last_ticket()));
            }
            // Before the next tick.
            Observation::Counted(count) => self.tables.count(count, self.timeline.last_ticket().saturating_add(1)),
            Observation::Tick(_) | Observation::Snapshot { .. } => {}
        }
    }
}
