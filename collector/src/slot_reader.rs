//! Reads one slot: follows the chain of segments that its threads write.
//!
//! Invariant: the bytes handed over for a stream are its published bytes, each once and in order. Values in the shared
//! memory are not trusted: fill levels are clamped, indices checked, numbers compared, loops bounded.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use memtrack_transport::layout::{
    ALL_FREE, PAGE, SEGMENT_HEADER, SEGMENT_ROOM, SEGMENTS_PER_SLOT, SegmentHeader, SlotHeader,
};
use memtrack_transport::{Area, futex};

use crate::sink_queue::{PieceHead, SinkQueue};

/// Maximum number of finished segments that are taken in one visit, so that one slot does not delay the others.
const SEGMENTS_A_VISIT: u32 = 2 * SEGMENTS_PER_SLOT as u32;

/// The reader of one slot.
#[derive(Debug)]
pub(crate) struct SlotReader {
    slot: u32,
    stream: u32,
    begun: bool,
    /// Index of the current segment, and its number in the stream.
    segment: u32,
    number: u32,
    /// Bytes of the current segment that were handed over, and that were seen.
    saved: u32,
    seen: u32,
    /// No record from `saved` on has an earlier ticket.
    first_ticket: u64,
    /// The highest page touched in each segment, plus one.
    pages: [u16; SEGMENTS_PER_SLOT],
    given_up: Option<&'static str>,
}

/// The result of a visit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotVisit {
    /// There were new records.
    pub(crate) changed: bool,
    /// Segments that were taken whole and freed.
    pub(crate) freed: u32,
    /// Pages that were touched for the first time.
    pub(crate) new_pages: u64,
}

/// The words of a segment header, read in an order that makes them consistent.
struct FillLevels {
    /// Read before `fill`: what is published after `fill` is of this ticket or a later one.
    ticket_before: u64,
    next: u32,
    fill: u32,
    /// Read after `fill`: what is published up to `fill` is of this ticket or an earlier one.
    ticket_after: u64,
}

impl FillLevels {
    fn read(header: &SegmentHeader) -> Self {
        Self {
            ticket_before: header.last_ticket.load(Acquire),
            // Before `fill`: a segment that has a successor is not written any more.
            next: header.next.load(Acquire),
            fill: header.fill.load(Acquire).min(SEGMENT_ROOM as u32),
            ticket_after: header.last_ticket.load(Acquire),
        }
    }
}

impl SlotReader {
    pub(crate) fn new(slot: u32, stream: u32) -> Self {
        Self {
            slot,
            stream,
            begun: false,
            segment: 0,
            number: 0,
            saved: 0,
            seen: 0,
            first_ticket: 0,
            pages: [0; SEGMENTS_PER_SLOT],
            given_up: None,
        }
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    /// Why the slot is no longer read.
    pub(crate) fn given_up(&self) -> Option<&'static str> {
        self.given_up
    }

    /// Takes all finished segments, and with `save` the published bytes of the unfinished one.
    pub(crate) fn visit(&mut self, area: &Area, save: bool, queue: &mut SinkQueue) -> SlotVisit {
        let mut visit = SlotVisit::default();
        let Some(slot) = area.slot(self.slot) else { return visit };
        if self.given_up.is_some() {
            release(slot, ALL_FREE);
            return visit;
        }
        // The first segment of a stream is the first of the slot, since all are free then.
        self.begun = self.begun || slot.current.load(Acquire) != 0;
        while self.begun && visit.freed < SEGMENTS_A_VISIT {
            match self.read_segment(area, slot, save, queue, &mut visit) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => {
                    self.given_up = Some(reason);
                    break;
                }
            }
        }
        visit
    }

    /// Reads the current segment; `true`: it was finished, and the next one is current now.
    fn read_segment(
        &mut self,
        area: &Area,
        slot: &SlotHeader,
        save: bool,
        queue: &mut SinkQueue,
        visit: &mut SlotVisit,
    ) -> Result<bool, &'static str> {
        let header = area.segment(self.slot, self.segment).ok_or("a segment index out of range")?;
        if header.number.load(Acquire) != self.number {
            return Err("a segment out of sequence");
        }
        if self.saved == 0 {
            self.first_ticket = header.first_ticket.load(Acquire);
        }
        let levels = FillLevels::read(header);
        if levels.fill < self.seen {
            return Err("a fill level that sank");
        }
        visit.changed |= levels.fill > self.seen;
        self.seen = levels.fill;
        visit.new_pages += self.note_touched_pages();
        if (save || levels.next != 0) && self.seen > self.saved {
            self.hand_over(area, &levels, queue);
        }
        if levels.next == 0 {
            return Ok(false);
        }
        self.advance(slot, levels.next)?;
        visit.freed += 1;
        Ok(true)
    }

    fn hand_over(&mut self, area: &Area, levels: &FillLevels, queue: &mut SinkQueue) {
        let mut bytes = queue.buffer();
        area.copy_records(self.slot, self.segment, self.saved, levels.fill, &mut bytes);
        let place = PieceHead {
            stream: self.stream,
            segment: self.number,
            offset: self.saved,
            first_ticket: self.first_ticket,
            last_ticket: levels.ticket_after.max(self.first_ticket),
        };
        queue.records(place, bytes);
        self.saved = levels.fill;
        self.first_ticket = levels.ticket_before.max(self.first_ticket);
    }

    fn advance(&mut self, slot: &SlotHeader, next: u32) -> Result<(), &'static str> {
        let next = next - 1;
        if next as usize >= SEGMENTS_PER_SLOT || next == self.segment {
            return Err("a segment index out of range");
        }
        release(slot, 1 << self.segment);
        self.segment = next;
        self.number = self.number.wrapping_add(1);
        self.saved = 0;
        self.seen = 0;
        Ok(())
    }

    /// Notes how far the current segment was written; returns the number of newly touched pages.
    fn note_touched_pages(&mut self) -> u64 {
        let pages = (SEGMENT_HEADER + self.seen as usize).div_ceil(PAGE) as u16;
        let Some(known) = self.pages.get_mut(self.segment as usize) else { return 0 };
        let new = pages.saturating_sub(*known);
        *known += new;
        u64::from(new)
    }
}

/// Gives segments back to the writing thread. Sequentially consistent, so that either it sees the bits before it waits,
/// or this side sees that it waits.
fn release(slot: &SlotHeader, segments: u32) {
    slot.free.fetch_or(segments, SeqCst);
    if slot.waiting.load(SeqCst) != 0 {
        futex::wake(&slot.free);
    }
}
