//! Merges events during the recording: for aggregated captures and the live view.
//!
//! Pieces of segments come as the collector drains them, or as they stand in a file. A run is emitted when no stream can add an
//! earlier run, or more of the same run: see [`Online::watermark`]. What stands in a file is decoded batch by batch when its turn
//! comes: the events of a second take hundreds of megabytes, and those of a batch are still in the cache.
//!
//! Invariant: the order is that of reading a file with the same pieces; memory is bounded by the pieces in memory that cannot be
//! emitted yet, a batch of each stream, and the tables.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use memtrack_format::mapped::MappedFile;
use memtrack_format::meta::Process;
use memtrack_format::observe::Observation;
use rustc_hash::FxHashMap;

use super::file::{OpenCaptureFile, StoredPiece};
use super::followed_group::FollowedGroup;
use super::merge::{Cursor, Merger, RunTurn};
use super::repeats::PiecePlace;
use super::segment::{Batch, DecodeProgress, SegmentReader};
use super::{Consumer, DataLoss, ReadSummary};
use crate::error::Error;
use crate::event::Thread;
use crate::frames::Frames;
use crate::timeline::{ClockPair, ClockScale, Timeline};

/// Events of a batch that is decoded: it fits into a processor's own cache.
const BATCH: usize = if cfg!(test) { 64 } else { 16 << 10 };
/// Batches that are kept for what comes next.
const MOST_SPARE: usize = 16;
/// Events after which a caller may look at something else.
const TOGETHER: u64 = if cfg!(test) { 8 } else { 1 << 16 };

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
    /// Its pieces in the file, behind all batches.
    stored: FollowedGroup,
}

impl OnlineStream {
    fn decode(&mut self, (segment, offset): (u32, u32), bytes: &[u8], decoding: &mut OnlineDecoding) {
        if !self.begin((segment, offset), bytes.len()) {
            decoding.lost.add(1, bytes.len() as u64);
            return;
        }
        self.place.begin();
        loop {
            let mut batch = decoding.spare.pop().unwrap_or_default();
            let progress = self.reader.decode_rounds(bytes, &mut self.place, &mut batch, BATCH);
            self.add(batch);
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

    /// A piece of so many bytes begins; `false`: what is before it is lost.
    fn begin(&mut self, (segment, offset): (u32, u32), length: usize) -> bool {
        if offset == 0 {
            self.reader = SegmentReader::default();
            self.at = Some((segment, 0));
        }
        if self.at != Some((segment, offset)) {
            self.at = None;
            return false;
        }
        self.at = u32::try_from(length).ok().and_then(|len| Some((segment, offset.checked_add(len)?)));
        true
    }

    fn add(&mut self, batch: Batch) {
        self.past = self.past.max(batch.last_ticket);
        self.batches.push_back(batch);
    }

    /// Decodes a batch of what stands in the file; `false`: there is nothing left.
    fn decode_stored(&mut self, file: Option<&OpenCaptureFile>, decoding: &mut OnlineDecoding) -> Result<bool, Error> {
        let Some(file) = file else { return Ok(false) };
        while !self.stored.is_open() {
            let Some(piece) = self.stored.next_piece() else { return Ok(false) };
            let header = piece.header;
            if !self.stored.open(file, &piece)? {
                decoding.lost.add(1, piece.stored_bytes());
            } else if !self.begin((header.segment, header.offset), header.raw_len as usize) {
                self.stored.close();
                decoding.lost.add(1, u64::from(header.raw_len));
            }
        }
        let mut batch = decoding.spare.pop().unwrap_or_default();
        let progress = self.stored.decode(&mut self.reader, &mut batch, BATCH);
        self.add(batch);
        if let DecodeProgress::Damaged { left } = progress {
            decoding.lost.add(1, left as u64);
            self.at = None;
        }
        Ok(true)
    }

    /// The turn of the next run; loads the batch that contains it.
    fn next<C: Consumer>(
        &mut self,
        merger: &mut Merger,
        file: Option<&OpenCaptureFile>,
        decoding: &mut OnlineDecoding,
        consumer: &mut C,
    ) -> Result<Option<RunTurn>, Error> {
        loop {
            if let Some(turn) = self.cursor.next() {
                return Ok(Some(turn));
            }
            let Some(batch) = self.batches.pop_front() else {
                if self.decode_stored(file, decoding)? {
                    continue;
                }
                return Ok(None);
            };
            let mut used = merger.load(&mut self.cursor, batch, consumer)?;
            if decoding.spare.len() < MOST_SPARE {
                used.clear();
                decoding.spare.push(used);
            }
        }
    }
}

/// What the streams share while their records are decoded.
#[derive(Debug, Default)]
struct OnlineDecoding {
    /// Batches whose memory is used again.
    spare: Vec<Batch>,
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
    /// What is being emitted.
    giving: Option<Giving>,
}

/// What a watermark allows to emit.
#[derive(Debug)]
struct Giving {
    /// Up to this ticket.
    bound: u64,
    /// Streams that may add to the last run that they have shown.
    busy: Vec<u32>,
    /// Runs up to this ticket are known to be complete.
    complete: u64,
    /// The turns of the streams that have one.
    heap: BinaryHeap<Reverse<(RunTurn, u32)>>,
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

    /// A moment on the stamping clock and on CLOCK_MONOTONIC, after everything that is emitted next: with it the times of these
    /// events are exact, where they were recorded.
    pub(crate) fn measure(&mut self, process: &Process, (ticks, monotonic_ns): (u64, u64)) {
        if let Some(scale) = ClockScale::new(process, Some(ClockPair { ticks, monotonic_ns })) {
            self.merger.timeline.set_scale(scale);
        }
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

    /// Adds a piece that stands in the file that [`Online::begin_watermark`] belongs to.
    pub(super) fn stored(&mut self, piece: StoredPiece) {
        let floor = self.floor;
        let stream = self
            .streams
            .entry(piece.header.stream)
            .or_insert_with(|| OnlineStream { past: floor, ..OnlineStream::default() });
        stream.stored.push(piece);
    }

    /// Emits every complete run. The caller guarantees that all records of runs before `before_ticket` have come,
    /// except those of the `busy` streams (ascending): a busy stream may still add to the last run that it has shown,
    /// which others may share; all other streams are past `before_ticket`.
    ///
    /// # Errors
    /// [`Error::TooMany`] when ids run out.
    pub fn watermark<C: Consumer>(&mut self, before_ticket: u64, busy: &[u32], consumer: &mut C) -> Result<(), Error> {
        self.begin_watermark(before_ticket, busy, None, consumer)?;
        while self.give_on(None, consumer)? {}
        Ok(())
    }

    /// The same, but emits nothing yet: [`Online::give_on`] does.
    pub(super) fn begin_watermark<C: Consumer>(
        &mut self,
        before_ticket: u64,
        busy: &[u32],
        file: Option<&OpenCaptureFile>,
        consumer: &mut C,
    ) -> Result<(), Error> {
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
        self.begin_giving(before_ticket, busy, file, consumer)
    }

    /// Emits everything that has come: all streams have ended.
    ///
    /// # Errors
    /// [`Error::TooMany`] when ids run out.
    pub fn finish<C: Consumer>(self, consumer: &mut C) -> Result<ReadSummary, Error> {
        self.finish_in(None, consumer)
    }

    /// The same of a file's.
    pub(super) fn finish_in<C: Consumer>(
        mut self,
        file: Option<&OpenCaptureFile>,
        consumer: &mut C,
    ) -> Result<ReadSummary, Error> {
        while self.give_on(file, consumer)? {}
        self.begin_giving(u64::MAX, &[], file, consumer)?;
        while self.give_on(file, consumer)? {}
        Ok(self.merger.finish(self.decoding.lost))
    }

    /// What could not be read of records.
    pub(crate) fn lost(&self) -> DataLoss {
        self.decoding.lost
    }

    /// Events of batches that are decoded.
    #[cfg(test)]
    pub(super) fn decoded_events(&self) -> usize {
        let batches = self.streams.values().flat_map(|stream| stream.batches.iter().chain([&stream.cursor.batch]));
        batches.map(|batch| batch.events.len()).sum()
    }

    /// Bytes in the file that are to be emitted and are not decoded yet.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let waiting = || self.streams.values().map(|stream| stream.stored.waiting_bytes()).sum();
        self.giving.as_ref().map_or(0, |_| waiting())
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

    /// All runs up to this ticket are complete, but for the last ones of these streams.
    fn begin_giving<C: Consumer>(
        &mut self,
        bound: u64,
        busy: &[u32],
        file: Option<&OpenCaptureFile>,
        consumer: &mut C,
    ) -> Result<(), Error> {
        let mut heap = BinaryHeap::new();
        for (&number, stream) in &mut self.streams {
            let next = stream.next(&mut self.merger, file, &mut self.decoding, consumer)?;
            heap.extend(next.map(|turn| Reverse((turn, number))));
        }
        self.giving = Some(Giving { bound, busy: busy.to_vec(), complete: 0, heap });
        Ok(())
    }

    /// Emits some of the runs that are complete, with the ticks and snapshots between them; `false`: these were the last.
    pub(super) fn give_on<C: Consumer>(
        &mut self,
        file: Option<&OpenCaptureFile>,
        consumer: &mut C,
    ) -> Result<bool, Error> {
        let Some(mut giving) = self.giving.take() else { return Ok(false) };
        let end = self.merger.given().saturating_add(TOGETHER);
        let mut runs = 0;
        while let Some(&Reverse((turn, number))) = giving.heap.peek() {
            if turn.ticket > giving.complete {
                giving.complete = self.complete_up_to(turn.ticket, &giving, file)?;
            }
            if turn.ticket > giving.complete {
                break;
            }
            giving.heap.pop();
            let until = turn.until(giving.heap.peek().map(|&Reverse((next, _))| next));
            let Some(stream) = self.streams.get_mut(&number) else { break };
            self.merger.give_run(&mut stream.cursor, until, consumer);
            // Tickets rise in a stream.
            let next = stream.next(&mut self.merger, file, &mut self.decoding, consumer)?;
            giving.heap.extend(next.map(|next| Reverse((next.not_before(turn), number))));
            runs += 1;
            if self.merger.given() >= end || runs >= TOGETHER {
                self.giving = Some(giving);
                return Ok(true);
            }
        }
        let bound = self.complete_up_to(giving.bound, &giving, file)?;
        self.merger.pass(bound, consumer);
        Ok(false)
    }

    /// Up to which ticket runs are complete, or one that is not less than the wanted one. What a busy stream has shown is known
    /// as far as it is decoded.
    fn complete_up_to(&mut self, wanted: u64, giving: &Giving, file: Option<&OpenCaptureFile>) -> Result<u64, Error> {
        let mut bound = giving.bound;
        loop {
            let past = giving.busy.iter().filter_map(|number| Some((self.streams.get(number)?.past, *number)));
            // The one that is behind all others goes on: what is decoded beyond it waits in memory, and nothing of that is emitted if it
            // has shown all.
            let Some((past, number)) = past.min() else { break };
            let Some(stream) = self.streams.get_mut(&number).filter(|_| past <= wanted.min(bound)) else {
                bound = bound.min(past.saturating_sub(1));
                break;
            };
            if !stream.decode_stored(file, &mut self.decoding)? {
                bound = past.saturating_sub(1);
                break;
            }
        }
        Ok(bound)
    }
}
