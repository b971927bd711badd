//! Reads a file's events in their total order: merges all its streams by ticket.
//!
//! Every stream waits in a heap with the turn of its next run, or of its next segment, which is opened when its turn
//! comes. A run that continues in the next segment of its stream has the same ticket there.
//!
//! Invariant: within a stream the order is that of its segments and records, whatever the tickets of a damaged file
//! are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use memtrack_format::observe::{Observation, ObservationReader};

use super::ahead::{Ahead, AheadLimits, DecodePool, SegmentPart, Task};
use super::brief::BriefStacks;
use super::file::OpenCaptureFile;
use super::index::Index;
use super::merge::{Cursor, Merger, RunTurn};
use super::natives;
use super::stretch_counts::StretchCounts;
use super::{CaptureReader, Consumer, DataLoss, ReadSummary, ShortLivedUse};
use crate::error::Error;
use crate::event::{Event, Thread};
use crate::frames::Frames;
use crate::native::NativeModule;
use crate::program::Program;
use crate::timeline::{ClockPair, ClockScale, Timeline};

/// One stream on its way through the merge.
#[derive(Default)]
struct FileStream {
    /// Its segments that were not opened, newest first.
    segments: Vec<usize>,
    cursor: Cursor,
    rest: Option<Arc<Task>>,
}

/// Passes every event and snapshot to `consumer`; `progress` is called with the number of bytes processed.
pub(super) fn read<C: Consumer>(
    capture: &CaptureReader,
    consumer: &mut C,
    progress: &mut dyn FnMut(u64),
) -> Result<ReadSummary, Error> {
    let mut reading = MergeReader::new(capture, AheadLimits::ALONE, consumer.short_lived())?;
    while reading.step(u64::MAX, consumer, progress)? {}
    let end_ns = reading.end(consumer)?;
    consumer.ended(end_ns);
    Ok(reading.finish())
}

/// The segments of each stream; streams in the order of their numbers.
fn streams(index: &Index) -> Vec<FileStream> {
    let stream = |i: usize| index.segments[i].stream;
    let mut sorted: Vec<usize> = (0..index.segments.len()).collect();
    sorted.sort_by_key(|&i| (stream(i), Reverse(index.segments[i].number)));
    let streams = sorted.chunk_by(|&a, &b| stream(a) == stream(b));
    streams.map(|segments| FileStream { segments: segments.to_vec(), ..FileStream::default() }).collect()
}

/// The last observation that can be read and has what is asked for.
fn last_observed<T>(
    file: &OpenCaptureFile,
    index: &Index,
    asked: impl Fn(Observation) -> Option<T>,
) -> Result<Option<T>, Error> {
    for piece in index.observations.iter().rev() {
        let payload = file.whole_payload(piece)?.unwrap_or_default();
        if let Some(last) = ObservationReader::new(&payload).filter_map(&asked).last() {
            return Ok(Some(last));
        }
    }
    Ok(None)
}

/// The relation of the clocks: from the process's start and end, else from its last snapshot.
fn timeline(file: &OpenCaptureFile, index: &Index) -> Result<Timeline, Error> {
    let process = &index.process;
    let snapshot = |observation| match observation {
        Observation::Snapshot { tick, ticks, .. } => Some(ClockPair { ticks, monotonic_ns: tick.time_ns }),
        _ => None,
    };
    let last = if process.end.ticks.is_none() { last_observed(file, index, snapshot)? } else { None };
    Ok(Timeline::new(process.start.monotonic_ns, ClockScale::new(process, last)))
}

/// The time of the last tick that can be read, on the monotonic clock.
pub(super) fn last_tick_ns(file: &OpenCaptureFile, index: &Index) -> Result<Option<u64>, Error> {
    last_observed(file, index, |observation| match observation {
        Observation::Tick(tick) | Observation::Snapshot { tick, .. } => Some(tick.time_ns),
        Observation::Thread { .. } | Observation::Counted(_) => None,
    })
}

/// The number of snapshots that can be read.
pub(super) fn snapshots(file: &OpenCaptureFile, index: &Index) -> Result<u64, Error> {
    let (mut number, included) = (0, index.tickets());
    let is_one =
        |seen: &Observation| matches!(seen, Observation::Snapshot { tick, .. } if included.contains(&tick.ticket));
    for piece in &index.observations {
        let payload = file.whole_payload(piece)?.unwrap_or_default();
        number += ObservationReader::new(&payload).filter(is_one).count() as u64;
    }
    Ok(number)
}

/// A capture that is being read.
pub(crate) struct MergeReader {
    pool: Arc<DecodePool>,
    ahead: Ahead,
    merger: Merger,
    /// The first observation that was not read.
    observation: usize,
    streams: Vec<FileStream>,
    /// Streams by the turn of their next run or segment.
    turns: BinaryHeap<Reverse<(RunTurn, usize)>>,
    lost: DataLoss,
    /// The tickets that belong to the capture; of the first one, what was observed and no event.
    included: RangeInclusive<u64>,
}

/// Takes what is not of the capture: descriptions are passed on, events are not.
struct NotIncluded<'a, C>(&'a mut C);

impl<C: Consumer> Consumer for NotIncluded<'_, C> {
    fn event(&mut self, _event: &Event, _frames: &Frames) {}

    fn events(&mut self, _events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {}

    fn code(&mut self, id: u32, name: &str, file: &str) {
        self.0.code(id, name, file);
    }

    fn module(&mut self, module: &NativeModule) {
        self.0.module(module);
    }
}

impl MergeReader {
    /// `short_lived`: see [`Consumer::short_lived`].
    pub(super) fn new(capture: &CaptureReader, room: AheadLimits, short_lived: ShortLivedUse) -> Result<Self, Error> {
        let CaptureReader { file, index, how } = capture;
        let mut merger = Merger::new(timeline(file, index)?, index.images.clone());
        merger.tables.symbols = how.symbolizer(index);
        merger.tables.frames.add_program(Arc::new(Program::of(&index.process)));
        if how.names && index.process.native_traces {
            merger.tables.symbols.prefetch(&natives::first_places(file, index)?);
        }
        index.mapped.iter().for_each(|(ticket, file)| merger.mapped(*ticket, file));
        (merger.tables.without_columns, merger.tables.without_names) = (!how.columns, !how.names);
        merger.tables.brief = how.brief.then(BriefStacks::default);
        let pool = Arc::new(DecodePool::new(file, index, room, short_lived));
        let (ahead, streams) = (Ahead::new(Arc::clone(&pool)), streams(index));
        let included = index.tickets();
        merger.tables.counts = StretchCounts::new(included.clone());
        let (turns, lost) = (BinaryHeap::with_capacity(streams.len()), index.lost);
        let mut reading = Self { pool, ahead, merger, observation: 0, streams, turns, lost, included };
        for (i, stream) in reading.streams.iter().enumerate() {
            let first = stream.segments.last().map(|&first| Reverse((reading.first_turn(first), i)));
            reading.turns.extend(first);
        }
        Ok(reading)
    }

    fn first_turn(&self, segment: usize) -> RunTurn {
        RunTurn::first(self.pool.index.segments.get(segment).map_or(0, |segment| segment.first_ticket))
    }

    /// Whether the run of this turn belongs to the capture.
    #[inline]
    fn is_included(&self, Reverse((turn, _)): &Reverse<(RunTurn, usize)>) -> bool {
        turn.ticket <= *self.included.end()
    }

    /// The time of the next event, in nanoseconds since the start; `None`: all were given out.
    pub(crate) fn next_ns<C: Consumer>(
        &mut self,
        consumer: &mut C,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<u64>, Error> {
        while let Some(&Reverse((turn, stream))) = self.turns.peek().filter(|turn| self.is_included(turn)) {
            if let Some(next) = self.streams[stream].cursor.next() {
                self.look_ahead(next.ticket)?;
                return Ok(Some(self.merger.next_ns(&self.streams[stream].cursor)));
            }
            self.turns.pop();
            self.open(stream, consumer, progress)?;
            self.queue(stream, turn);
        }
        Ok(None)
    }

    /// Emits the next run, or opens the segment that contains it; of a run with exact times the events up to
    /// `until_ns`, and at least one. `false`: there are no more.
    #[inline]
    pub(crate) fn step<C: Consumer>(
        &mut self,
        until_ns: u64,
        consumer: &mut C,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, Error> {
        if !self.turns.peek().is_some_and(|turn| self.is_included(turn)) {
            return Ok(false);
        }
        let Some(Reverse((turn, stream))) = self.turns.pop() else { return Ok(false) };
        if let Some(next) = self.streams[stream].cursor.next() {
            if !self.merger.timeline.reaches(next.ticket) {
                self.look_ahead(next.ticket)?;
            }
            // Another stream that shares the ticket, or another capture.
            let until = turn.until(self.turns.peek().map(|&Reverse((next, _))| next));
            let until = until.min(self.merger.timeline.ticks(until_ns).max(next.time()));
            let cursor = &mut self.streams[stream].cursor;
            if turn.ticket <= *self.included.start() {
                self.merger.give_run(cursor, until, &mut NotIncluded(consumer));
            } else {
                self.merger.give_run(cursor, until, consumer);
            }
        } else {
            self.open(stream, consumer, progress)?;
        }
        self.queue(stream, turn);
        Ok(true)
    }

    /// Emits the snapshots after the last event; returns when the recording ended, in nanoseconds since the start, or its last tick was.
    pub(crate) fn end<C: Consumer>(&mut self, consumer: &mut C) -> Result<u64, Error> {
        self.look_ahead(u64::MAX)?;
        self.merger.pass(u64::MAX, consumer);
        Ok(self.merger.timeline.end(self.pool.index.process.end.monotonic_ns))
    }

    /// What the stacks of the events so far are.
    pub(crate) fn frames(&self) -> &Frames {
        &self.merger.tables.frames
    }

    /// What their thread ids are.
    pub(crate) fn threads(&self) -> &[Thread] {
        &self.merger.tables.threads
    }

    pub(crate) fn finish(mut self) -> ReadSummary {
        self.merger.tables.frames.forget_stack_ids();
        self.merger.finish(self.lost)
    }

    /// Notes the stream's next turn; its `last` turn has just been processed.
    fn queue(&mut self, stream: usize, last: RunTurn) {
        let FileStream { cursor, rest, segments } = &self.streams[stream];
        let next = match cursor.next() {
            Some(turn) => Some(turn),
            None if rest.is_some() => Some(RunTurn::first(cursor.batch.last_ticket)),
            None => segments.last().map(|&next| self.first_turn(next)),
        };
        // Tickets rise in a stream.
        self.turns.extend(next.map(|next| Reverse((next.not_before(last), stream))));
    }

    /// The next batch of a stream.
    fn open<C: Consumer>(
        &mut self,
        stream: usize,
        consumer: &mut C,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let stream = &mut self.streams[stream];
        let task = match (stream.rest.take(), stream.segments.pop()) {
            (Some(task), segment) => {
                stream.segments.extend(segment);
                task
            }
            (None, Some(segment)) => {
                progress(self.pool.index.stored_bytes(segment));
                self.ahead.open(segment)
            }
            (None, None) => return Ok(()),
        };
        let SegmentPart { batch, more, lost } = self.ahead.next_part(&task)?;
        stream.rest = more.then_some(task);
        self.lost.add(lost.blocks, lost.bytes);
        let used = self.merger.load(&mut stream.cursor, batch, consumer)?;
        self.pool.give_back(used);
        Ok(())
    }

    /// Reads observations until a tick is known that comes after this ticket.
    fn look_ahead(&mut self, ticket: u64) -> Result<(), Error> {
        while !self.merger.timeline.reaches(ticket) {
            let Some(piece) = self.pool.index.observations.get(self.observation) else { break };
            self.observation += 1;
            let mut payload = Vec::new();
            let mut intact = self.pool.file.payload(piece, &mut payload)?;
            let mut reader = ObservationReader::new(&payload);
            let included = &self.included;
            let at_its_time = |observation| match observation {
                Observation::Snapshot { tick, .. } if !included.contains(&tick.ticket) => Observation::Tick(tick),
                _ => observation,
            };
            reader.by_ref().for_each(|observation| self.merger.observe(&at_its_time(observation)));
            intact &= !reader.failed();
            if !intact {
                self.lost.add(1, piece.stored_bytes());
            }
        }
        Ok(())
    }
}
