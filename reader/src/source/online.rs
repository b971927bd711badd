//! Merges events during the recording: for aggregated captures and the live view.
//!
//! Pieces of segments come as the collector drains them. A run is emitted when no stream can add an earlier run, or
//! more of the same run: see [`Online::watermark`].
//!
//! Invariant: the order is that of reading a file with the same pieces; memory is bounded by the pieces that cannot be
//! emitted yet, and by the tables.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use memtrack_format::mapped::MappedFile;
use memtrack_format::observe::Observation;
use rustc_hash::FxHashMap;

use super::merge::{Cursor, Merger, RunTurn};
use super::repeats::PiecePlace;
use super::segment::{Batch, DecodeProgress, SegmentReader};
use super::short_lived::{ReplayPlace, ShortLivedMarker};
use super::timeline::{ClockScale, Timeline};
use super::{Consumer, DataLoss, ReadSummary};
use crate::error::Error;
use crate::event::Thread;
use crate::frames::Frames;

/// Events of a batch that is decoded: it fits into a processor's own cache.
const BATCH: usize = 16 << 10;
/// Batches that are kept for what comes next.
const MOST_SPARE: usize = 16;

/// The position in one stream.
#[derive(Debug, Default)]
struct OnlineStream {
    reader: SegmentReader,
    /// How far the last piece was decoded.
    place: PiecePlace,
    /// The segment that is being decoded, and how many bytes of it have come; `None`: the rest of it cannot be decoded.
    at: Option<(u32, u32)>,
    batches: VecDeque<Batch>,
    cursor: Cursor,
    /// All its further events have this ticket or a later one.
    past: u64,
}

impl OnlineStream {
    fn decode(&mut self, (segment, offset): (u32, u32), bytes: &[u8], decoding: &mut OnlineDecoding) {
        if offset == 0 {
            self.reader = SegmentReader::default();
            self.at = Some((segment, 0));
        }
        if self.at != Some((segment, offset)) {
            self.at = None;
            decoding.lost.add(1, bytes.len() as u64);
            return;
        }
        self.at = u32::try_from(bytes.len()).ok().and_then(|len| Some((segment, offset.checked_add(len)?)));
        self.place.begin();
        loop {
            let mut batch = decoding.spare.pop().unwrap_or_default();
            let progress = self.reader.decode_rounds(bytes, &mut self.place, &mut batch, BATCH);
            if let Some(marker) = &decoding.marker {
                marker.mark(&mut batch);
            }
            self.past = self.past.max(batch.last_ticket);
            self.batches.push_back(batch);
            match progress {
                DecodeProgress::Full => {}
                DecodeProgress::End => break,
                DecodeProgress::Damaged { left } => {
                    decoding.lost.add(1, left as u64);
                    self.at = None;
                    break;
                }
            }
        }
    }

    /// The turn of the next run; loads the batch that contains it.
    fn next<C: Consumer>(
        &mut self,
        merger: &mut Merger,
        spare: &mut Vec<Batch>,
        consumer: &mut C,
    ) -> Result<Option<RunTurn>, Error> {
        loop {
            if let Some(turn) = self.cursor.next() {
                return Ok(Some(turn));
            }
            let Some(batch) = self.batches.pop_front() else { return Ok(None) };
            let mut used = merger.load(&mut self.cursor, batch, consumer)?;
            if spare.len() < MOST_SPARE {
                used.clear();
                spare.push(used);
            }
        }
    }
}

/// What the streams share while their records are decoded.
#[derive(Debug, Default)]
struct OnlineDecoding {
    /// Batches whose memory is used again.
    spare: Vec<Batch>,
    /// Marks short-lived blocks, where the consumer looks at the marks.
    marker: Option<ShortLivedMarker>,
    lost: DataLoss,
}

/// The merge of streams that are being recorded.
#[derive(Debug, Default)]
pub struct Online {
    streams: FxHashMap<u32, OnlineStream>,
    merger: Merger,
    decoding: OnlineDecoding,
    /// All events of streams that are not known yet have later tickets than this.
    floor: u64,
}

impl Online {
    /// A merge before the first piece. Times count from `start_monotonic_ns`.
    #[must_use]
    pub fn new(start_monotonic_ns: u64) -> Self {
        let timeline = Timeline::new(Some(start_monotonic_ns), None);
        let mut merger = Merger::new(timeline, Vec::new());
        // The program waits for its recorder, so names are left to reports.
        merger.tables.without_names = true;
        Self { merger, ..Self::default() }
    }

    /// The same for a consumer that looks at marks of short-lived blocks; `threshold`: see
    /// [`Consumer::short_lived_threshold`].
    pub(super) fn marking(mut self, threshold: Option<u32>) -> Self {
        self.decoding.marker = Some(ShortLivedMarker::new(threshold, ReplayPlace::ThisThread));
        self
    }

    /// The times of the events that come are exact, where they were recorded.
    pub(super) fn set_scale(&mut self, scale: ClockScale) {
        self.merger.timeline.set_scale(scale);
    }

    /// Adds bytes of a stream: those from `offset` on of this segment, which begin and end between two records. Bytes
    /// after a gap are lost, and counted.
    pub fn records(&mut self, stream: u32, segment: u32, offset: u32, bytes: &[u8]) {
        let floor = self.floor;
        let stream =
            self.streams.entry(stream).or_insert_with(|| OnlineStream { past: floor, ..OnlineStream::default() });
        stream.decode((segment, offset), bytes, &mut self.decoding);
    }

    /// Adds an observation of the collector, in the order of tickets.
    pub fn observe(&mut self, observation: &Observation) {
        self.merger.observe(observation);
    }

    /// Adds a mapped file of the image with this first ticket. Must be called before events that run its code are
    /// emitted.
    pub fn mapped(&mut self, ticket: u64, file: &MappedFile) {
        self.merger.mapped(ticket, file);
    }

    /// The process replaced itself by exec: this ticket and later ones belong to its next image. Must be called before
    /// any event of that image comes.
    pub fn replaced(&mut self, ticket: u64) {
        self.merger.replaced(ticket);
    }

    /// Emits every complete run. The caller guarantees that all records of runs before `before_ticket` have come,
    /// except those of the `busy` streams (ascending): a busy stream may still add to the last run that it has shown,
    /// which others may share; all other streams are past `before_ticket`.
    ///
    /// # Errors
    /// [`Error::TooMany`] when ids run out.
    pub fn watermark<C: Consumer>(&mut self, before_ticket: u64, busy: &[u32], consumer: &mut C) -> Result<(), Error> {
        let mut bound = before_ticket;
        for stream in busy {
            let at = self.streams.get(stream).map_or(self.floor, |stream| stream.past);
            bound = bound.min(at.saturating_sub(1));
        }
        for (number, stream) in &mut self.streams {
            if busy.binary_search(number).is_err() {
                stream.past = stream.past.max(before_ticket);
            }
        }
        // A stream that is busy before its first piece came is not past this ticket, so it must be known.
        for &number in busy {
            let floor = self.floor;
            self.streams.entry(number).or_insert_with(|| OnlineStream { past: floor, ..OnlineStream::default() });
        }
        self.floor = self.floor.max(before_ticket);
        self.give(bound, consumer)
    }

    /// Emits everything that has come: all streams have ended.
    ///
    /// # Errors
    /// [`Error::TooMany`] when ids run out.
    pub fn finish<C: Consumer>(mut self, consumer: &mut C) -> Result<ReadSummary, Error> {
        self.give(u64::MAX, consumer)?;
        Ok(self.merger.finish(self.decoding.lost))
    }

    /// By how much the times of the events so far may be too early, in nanoseconds.
    #[must_use]
    pub fn time_uncertainty_ns(&self) -> u64 {
        self.merger.timeline.coarsest_ns()
    }

    /// What the stacks of the events so far are.
    #[must_use]
    pub fn frames(&self) -> &Frames {
        &self.merger.tables.frames
    }

    /// What their thread ids are.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.merger.tables.threads
    }

    /// Emits all runs up to this ticket, which are complete, and the ticks and snapshots up to it.
    fn give<C: Consumer>(&mut self, bound: u64, consumer: &mut C) -> Result<(), Error> {
        let mut heap = BinaryHeap::new();
        for (&number, stream) in &mut self.streams {
            let next = stream.next(&mut self.merger, &mut self.decoding.spare, consumer)?;
            heap.extend(next.map(|turn| Reverse((turn, number))));
        }
        while let Some(Reverse((turn, number))) = heap.pop().filter(|Reverse((turn, _))| turn.ticket <= bound) {
            let until = turn.until(heap.peek().map(|&Reverse((next, _))| next));
            let Some(stream) = self.streams.get_mut(&number) else { break };
            self.merger.give_run(&mut stream.cursor, until, consumer);
            // Tickets rise in a stream.
            let next = stream.next(&mut self.merger, &mut self.decoding.spare, consumer)?;
            heap.extend(next.map(|next| Reverse((next.not_before(turn), number))));
        }
        self.merger.pass(bound, consumer);
        Ok(())
    }
}
