//! The protocol of one slot: what its writer and the collector do with the shared words of the slot and its segments, and in
//! which order.
//!
//! The writer fills a segment, links the next free one to it, and goes on there. The collector follows that chain and gives
//! finished segments back. Both sides' accesses stand here, so that `tests/chain_model.rs` can check them under every
//! reordering that the memory model allows.
//!
//! Invariant: the collector reads each published byte of the chain once and in order, and the writer writes no segment that
//! the collector may still read.

use super::atomics::{AcqRel, Acquire, Relaxed, Release, SeqCst, compiler_fence};
use super::layout::{ALL_SEGMENTS, SEGMENT_ROOM, SEGMENTS_PER_SLOT, SegmentHeader, SlotHeader};

/// Writer: a hook begins, and a record may be under way from now on.
///
/// The collector reads `busy` after a [barrier](crate::barrier) in all threads of the target. So only the compiler must be
/// kept from moving the load of the ticket word before this store.
#[inline(always)]
pub fn enter_hook(slot: &SlotHeader) {
    slot.busy.store(1, Relaxed);
    compiler_fence(SeqCst);
}

/// Writer: ends the hook. A release store: a reader that sees `busy` at 0 also sees the record.
#[inline(always)]
pub fn leave_hook(slot: &SlotHeader) {
    slot.busy.store(0, Release);
}

/// Either side: whether the owner of the slot is inside a hook, and may add a record that has a ticket already.
#[inline(always)]
#[must_use]
pub fn is_in_hook(slot: &SlotHeader) -> bool {
    slot.busy.load(Acquire) != 0
}

/// Writer: takes the free segment with the lowest index; `None`: none is free.
#[must_use]
pub fn take_free(slot: &SlotHeader) -> Option<u32> {
    let free = ALL_SEGMENTS & !slot.taken.load(Acquire);
    if free == 0 {
        return None;
    }
    let index = free.trailing_zeros();
    slot.taken.fetch_or(1_u32.wrapping_shl(index), AcqRel);
    Some(index)
}

/// Writer: whether the collector has to drain segments of this slot besides the one that is being written.
#[must_use]
pub fn has_finished(slot: &SlotHeader) -> bool {
    (ALL_SEGMENTS & slot.taken.load(Acquire)).count_ones() > 1
}

/// Writer: prepares a segment that it has taken, the `number`-th of the stream, whose first record stands at `start` and has
/// the ticket `sequence` or a later one. The segment is not part of the chain before [`link`].
pub fn begin_segment(header: &SegmentHeader, number: u32, sequence: u64, start: u32) {
    header.fill.store(start, Relaxed);
    header.start.store(start, Relaxed);
    header.next.store(0, Relaxed);
    header.number.store(number, Relaxed);
    header.has_code.store(0, Relaxed);
    header.first_ticket.store(sequence, Relaxed);
    header.last_ticket.store(sequence, Relaxed);
}

/// Writer: appends the segment `index` to the chain. `old` is the segment before it, with all that was written there.
pub fn link(slot: &SlotHeader, index: u32, old: Option<(&SegmentHeader, u32)>) {
    let next = index.wrapping_add(1);
    if let Some((header, fill)) = old {
        publish(header, fill);
        header.next.store(next, Release);
    }
    slot.current.store(next, Release);
}

/// Writer: the first `fill` bytes of the segment's records are for the collector to read.
#[inline(always)]
pub fn publish(header: &SegmentHeader, fill: u32) {
    header.fill.store(fill, Release);
}

/// Writer: a run with this ticket has begun, of which nothing is published yet.
#[inline(always)]
pub fn begin_run(header: &SegmentHeader, sequence: u64) {
    header.last_ticket.store(sequence, Release);
}

/// Writer: a code object is described in the records that are published next.
pub fn note_code(header: &SegmentHeader) {
    header.has_code.store(1, Relaxed);
}

/// The words of a segment's header, read in an order that makes them consistent.
#[derive(Clone, Copy, Debug)]
pub struct FillLevel {
    /// Where the records begin.
    pub start: u32,
    /// No record of the segment has an earlier ticket.
    pub first_ticket: u64,
    /// What is published later, above `fill`, has this ticket or a later one.
    pub ticket_before: u64,
    /// Index of the segment that follows, plus one; 0: this one is still being written.
    pub next: u32,
    /// Bytes that are published.
    pub fill: u32,
    /// Whether a code object is described in what is published; may be true before it is.
    pub has_code: bool,
    /// What is published up to `fill` has this ticket or an earlier one.
    pub ticket_after: u64,
}

impl FillLevel {
    fn read(header: &SegmentHeader) -> Self {
        Self {
            start: header.start.load(Relaxed).min(SEGMENT_ROOM as u32),
            first_ticket: header.first_ticket.load(Acquire),
            ticket_before: header.last_ticket.load(Acquire),
            // Before `fill`: a segment that has a successor is not written any more.
            next: header.next.load(Acquire),
            fill: header.fill.load(Acquire).min(SEGMENT_ROOM as u32),
            has_code: header.has_code.load(Relaxed) != 0,
            ticket_after: header.last_ticket.load(Acquire),
        }
    }
}

/// The collector's position in a slot's segment chain. Words of the shared memory are validated; impossible values are
/// errors.
#[derive(Debug, Default)]
pub struct ChainReader {
    begun: bool,
    segment: u32,
    number: u32,
    seen: u32,
}

impl ChainReader {
    /// Whether the chain has a first segment, which is segment 0 of the slot, since all are free then.
    pub fn has_begun(&mut self, slot: &SlotHeader) -> bool {
        self.begun = self.begun || slot.current.load(Acquire) != 0;
        self.begun
    }

    /// Index in the slot of the segment that is being read.
    #[must_use]
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// Its number in the stream.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes of it that were published when it was looked at last.
    #[must_use]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Reads the header of the current segment.
    ///
    /// # Errors
    /// A description of the inconsistency: the target has overwritten the shared memory.
    pub fn look(&mut self, header: &SegmentHeader) -> Result<FillLevel, &'static str> {
        if header.number.load(Acquire) != self.number {
            return Err("segment number out of sequence");
        }
        let level = FillLevel::read(header);
        if level.fill < self.seen.max(level.start) {
            return Err("fill level decreased");
        }
        self.seen = level.fill;
        Ok(level)
    }

    /// Gives the segment back, whose bytes were copied, and goes on with the one that follows: [`FillLevel::next`]. Returns
    /// whether a thread is to be woken that waits for a free segment.
    ///
    /// # Errors
    /// A description of the inconsistency: the target has overwritten the shared memory.
    pub fn advance(&mut self, slot: &SlotHeader, next: u32) -> Result<bool, &'static str> {
        let next = next.wrapping_sub(1);
        if next as usize >= SEGMENTS_PER_SLOT || next == self.segment {
            return Err("segment index out of range");
        }
        let has_waiter = release(slot, 1 << self.segment);
        self.segment = next;
        self.number = self.number.wrapping_add(1);
        self.seen = 0;
        Ok(has_waiter)
    }
}

/// Collector: gives segments back; returns whether the writer waits for one. Sequentially consistent, so that either the
/// writer sees the bits before it waits, or this side sees that it waits.
#[must_use]
pub fn release(slot: &SlotHeader, segments: u32) -> bool {
    slot.taken.fetch_and(!segments, SeqCst);
    slot.waiting.load(SeqCst) != 0
}
