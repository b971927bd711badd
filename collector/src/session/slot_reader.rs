//! Reads one slot: follows the chain of segments that its threads write, and hands their records to the sink.
//!
//! Invariant: the bytes handed over for a stream are its published bytes, each once and in order. Values in the shared
//! memory are not trusted: the chain's are checked by [`ChainReader`], and loops are bounded.

use memtrack_transport::layout::{ALL_SEGMENTS, MOST_UNDRAINED, PAGE, SEGMENTS_PER_SLOT, SlotHeader};
use memtrack_transport::segment_chain::{self, ChainReader, FillLevel};
use memtrack_transport::{Area, futex};

use crate::session::touched_pages::TouchedPages;
use crate::sink::sink_queue::{PieceHead, SinkQueue};

/// Maximum number of finished segments that are taken in one visit, so that one slot does not delay the others.
const SEGMENTS_A_VISIT: u32 = 2 * SEGMENTS_PER_SLOT as u32;
/// Pages of all slots that stay in memory. Beyond that a drained segment's are given back, before the thread gets it.
pub(crate) const MOST_KEPT: u64 = (MOST_UNDRAINED as usize / PAGE) as u64;

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
    pages: TouchedPages,
    /// Segment and fill level when idle threads were last looked for.
    idle_at: (u32, u32),
    /// It has recorded in this interval.
    is_active: bool,
    given_up: Option<&'static str>,
}

/// The result of a visit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotVisit {
    /// There were new records.
    pub(crate) changed: bool,
    /// These are the first of the interval.
    pub(crate) resumed: bool,
    /// Segments that were taken whole and freed.
    pub(crate) freed: u32,
    /// Pages that were touched for the first time, or anew.
    pub(crate) new_pages: u64,
    /// Pages that were given back to the system.
    pub(crate) discarded_pages: u64,
}

impl SlotReader {
    pub(crate) fn new(slot: u32, stream: u32) -> Self {
        Self {
            slot,
            stream,
            chain: ChainReader::default(),
            saved: 0,
            first_ticket: 0,
            pages: TouchedPages::default(),
            idle_at: (0, 0),
            is_active: false,
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

    /// Takes all finished segments, and with `save` the published bytes of the unfinished one. `resident`: pages of all slots
    /// that are in memory.
    pub(crate) fn visit(&mut self, area: &Area, save: bool, resident: u64, queue: &mut SinkQueue) -> SlotVisit {
        let mut visit = SlotVisit::default();
        let Some(slot) = area.slot(self.slot) else { return visit };
        if self.given_up.is_some() {
            wake(slot, segment_chain::release(slot, ALL_SEGMENTS));
            return visit;
        }
        let begun = self.chain.has_begun(slot);
        while begun && visit.freed < SEGMENTS_A_VISIT {
            match self.read_segment(area, slot, save, resident, queue, &mut visit) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => {
                    self.given_up = Some(reason);
                    break;
                }
            }
        }
        visit.resumed = visit.changed && !std::mem::replace(&mut self.is_active, true);
        visit
    }

    /// An interval begins in which it has recorded nothing yet.
    pub(crate) fn begin_interval(&mut self) {
        self.is_active = false;
    }

    /// Reads the current segment; `true`: it was finished, and the next one is current now.
    fn read_segment(
        &mut self,
        area: &Area,
        slot: &SlotHeader,
        save: bool,
        resident: u64,
        queue: &mut SinkQueue,
        visit: &mut SlotVisit,
    ) -> Result<bool, &'static str> {
        let header = area.segment(self.slot, self.chain.segment()).ok_or("segment index out of range")?;
        let seen = self.chain.seen();
        let level = self.chain.look(header)?;
        if self.saved <= level.start {
            self.saved = level.start;
            self.first_ticket = level.first_ticket;
        }
        visit.changed |= level.fill > seen;
        visit.new_pages += self.pages.note(self.chain.segment(), level.start, level.fill);
        if (save || level.next != 0) && level.fill > self.saved {
            self.hand_over(area, &level, queue);
        }
        if level.next == 0 {
            return Ok(false);
        }
        if (resident + visit.new_pages).saturating_sub(visit.discarded_pages) > MOST_KEPT
            && area.discard_pages(self.slot, self.chain.segment(), 0..usize::MAX)
        {
            visit.discarded_pages += self.pages.forget(self.chain.segment());
        }
        area.control().note_drained(level.fill - level.start);
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
            offset: self.saved - level.start,
            first_ticket: self.first_ticket,
            last_ticket: level.ticket_after.max(self.first_ticket),
            has_code: level.has_code,
        };
        queue.records(place, bytes);
        self.saved = level.fill;
        self.first_ticket = level.ticket_before.max(self.first_ticket);
    }

    /// Of a thread that has recorded nothing since the last call: gives back the memory of what is drained. Returns the
    /// number of pages.
    pub(crate) fn give_back_idle(&mut self, area: &Area, queue: &mut SinkQueue) -> u64 {
        let (Some(slot), segment) = (area.slot(self.slot), self.chain.segment()) else { return 0 };
        let Some(header) = area.segment(self.slot, segment).filter(|_| self.chain.has_begun(slot)) else { return 0 };
        let before = self.idle_at;
        self.idle_at = (self.chain.number(), self.chain.seen());
        let Ok(level) = self.chain.look(header) else { return 0 };
        if self.given_up.is_some() || level.next != 0 || (self.chain.number(), level.fill) != before {
            return 0;
        }
        if level.fill > self.saved {
            self.hand_over(area, &level, queue);
        }
        // The thread writes behind these pages only. Nobody reads them again but its process for sums of its own, which finds
        // zeroes in them, and then asks for the sums.
        let pages = self.pages.before(segment, self.saved);
        if pages.is_empty() || !area.discard_pages(self.slot, segment, pages.clone()) {
            return 0;
        }
        self.pages.forget_before(segment, &pages)
    }
}

/// Wakes the writing thread, if it waits for a free segment.
fn wake(slot: &SlotHeader, waits: bool) {
    if waits {
        futex::wake(&slot.taken);
    }
}
