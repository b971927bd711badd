//! Reads one slot: follows the chain of segments that its threads write, and hands their records to the sink.
//!
//! Invariant: the bytes handed over for a stream are its published bytes, each once and in order. Values in the shared
//! memory are not trusted: the chain's are checked by [`ChainReader`], and loops are bounded.

use memtrack_transport::layout::{ALL_FREE, PAGE, SEGMENT_HEADER, SEGMENTS_PER_SLOT, SlotHeader};
use memtrack_transport::segment_chain::{self, ChainReader, FillLevel};
use memtrack_transport::{Area, futex};

use crate::sink_queue::{PieceHead, SinkQueue};

/// Maximum number of finished segments that are taken in one visit, so that one slot does not delay the others.
const SEGMENTS_A_VISIT: u32 = 2 * SEGMENTS_PER_SLOT as u32;

/// The reader of one slot.
#[derive(Debug)]
pub(crate) struct SlotReader {
    slot: u32,
    stream: u32,
    chain: ChainReader,
    /// Bytes of the current segment that were handed over.
    saved: u32,
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

impl SlotReader {
    pub(crate) fn new(slot: u32, stream: u32) -> Self {
        Self {
            slot,
            stream,
            chain: ChainReader::default(),
            saved: 0,
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
            wake(slot, segment_chain::release(slot, ALL_FREE));
            return visit;
        }
        let begun = self.chain.has_begun(slot);
        while begun && visit.freed < SEGMENTS_A_VISIT {
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
        let header = area.segment(self.slot, self.chain.segment()).ok_or("segment index out of range")?;
        let seen = self.chain.seen();
        let level = self.chain.look(header)?;
        if self.saved == 0 {
            self.first_ticket = level.first_ticket;
        }
        visit.changed |= level.fill > seen;
        visit.new_pages += self.note_touched_pages();
        if (save || level.next != 0) && level.fill > self.saved {
            self.hand_over(area, &level, queue);
        }
        if level.next == 0 {
            return Ok(false);
        }
        wake(slot, self.chain.advance(slot, level.next)?);
        self.saved = 0;
        visit.freed += 1;
        Ok(true)
    }

    fn hand_over(&mut self, area: &Area, level: &FillLevel, queue: &mut SinkQueue) {
        let mut bytes = queue.buffer();
        area.copy_records(self.slot, self.chain.segment(), self.saved, level.fill, &mut bytes);
        let place = PieceHead {
            stream: self.stream,
            segment: self.chain.number(),
            offset: self.saved,
            first_ticket: self.first_ticket,
            last_ticket: level.ticket_after.max(self.first_ticket),
            has_code: level.has_code,
        };
        queue.records(place, bytes);
        self.saved = level.fill;
        self.first_ticket = level.ticket_before.max(self.first_ticket);
    }

    /// Notes how far the current segment was written; returns the number of newly touched pages.
    fn note_touched_pages(&mut self) -> u64 {
        let pages = (SEGMENT_HEADER + self.chain.seen() as usize).div_ceil(PAGE) as u16;
        let Some(known) = self.pages.get_mut(self.chain.segment() as usize) else { return 0 };
        let new = pages.saturating_sub(*known);
        *known += new;
        u64::from(new)
    }
}

/// Wakes the writing thread, if it waits for a free segment.
fn wake(slot: &SlotHeader, waits: bool) {
    if waits {
        futex::wake(&slot.free);
    }
}
