//! The end of a segment: the next one begins, with all that a reader needs to decode it on its own.
//!
//! Invariant: a thread that has no finished segment to be drained takes a free one at once; so it waits for the collector
//! only, never for what other threads hold.

use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::Encoder;
use memtrack_transport::layout::{MOST_UNDRAINED, PAGE, SEGMENT_ROOM};
use memtrack_transport::segment_chain;

use super::{Ring, RingSegment, SegmentRoom};

/// Threads in these slots use whole segments, unless the collector says otherwise. Others, of which there may be many,
/// begin with little.
const FIRST_FEW: u32 = 8;
/// What they begin with, in bytes, and use while much waits for the collector.
const LEAST_ROOM: usize = 4 * PAGE;
/// More bytes than a frame of the stack takes at the head of a segment.
const FRAME: usize = 16;

impl Ring {
    /// Begins the next segment, or ends recording.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self) {
        // Twice, for the segment that is begun may be all but full of a deep stack.
        for _ in 0..2 {
            if self.next_segment() && self.segment.at <= RingSegment::LAST {
                return;
            }
        }
        self.segment = RingSegment::NONE;
    }

    #[cold]
    #[inline(never)]
    pub(super) fn put_in_next<W: Fn(&mut Encoder, &mut SegmentRoom, usize) -> Option<usize> + Copy>(
        &mut self,
        write: W,
    ) {
        // Twice, for the segment that is begun may be all but full of a deep stack.
        if !(self.next_segment() && (self.try_put(write) || (self.next_segment() && self.try_put(write)))) {
            self.segment = RingSegment::NONE;
        }
    }

    /// Ends this segment and begins a free one. `false`: recording has ended.
    pub(super) fn next_segment(&mut self) -> bool {
        let Some(index) = self.free_segment() else {
            self.segment = RingSegment::NONE;
            return false;
        };
        let (Some(header), Some(room)) =
            (self.home.area.segment(self.home.index, index), self.home.area.segment_room(self.home.index, index))
        else {
            return false;
        };
        let sequence = self.turn.sequence();
        let start = self.segment_start();
        segment_chain::begin_segment(header, self.number, sequence, start);
        self.number = self.number.wrapping_add(1);
        let old = std::mem::replace(&mut self.segment, RingSegment { header, room, at: start as usize });
        let old = old.is_some().then_some((old.header, old.at as u32));
        if let Some((header, end)) = old {
            // Before the collector can see that the segment is finished, and subtracts this.
            let bytes = end.wrapping_sub(header.start.load(Relaxed));
            self.home.area.control().undrained.0.fetch_add(bytes, Relaxed);
        }
        segment_chain::link(self.home.slot, index, old);
        self.begin(sequence)
    }

    /// The head of a segment: who, when, and the whole stack.
    fn begin(&mut self, sequence: u64) -> bool {
        let (tid, ticks) = (self.tid, self.home.clock.now());
        let mut ok = self.try_put(|encoder, bytes, at| encoder.begin(bytes, at, sequence, ticks, tid));
        if self.truncated {
            ok &= self.try_put(|encoder, bytes, at| encoder.truncated(bytes, at, true));
        }
        for level in 0..self.depth {
            let Some(&frame) = self.wire.get(level) else { break };
            ok &= self.try_put(|encoder, bytes, at| encoder.push(bytes, at, frame));
        }
        self.publish();
        ok
    }

    /// Where the next segment's records begin: among many threads each uses little memory, but has room for its stack.
    fn segment_start(&self) -> u32 {
        let control = self.home.area.control();
        let said = match control.segment_room.load(Relaxed) as usize {
            0 => SEGMENT_ROOM,
            room => room,
        };
        let room = if self.home.index < FIRST_FEW {
            said
        } else if self.number == 0 || control.undrained.0.load(Relaxed) > MOST_UNDRAINED / 2 {
            LEAST_ROOM
        } else {
            // The collector learns how many threads record before they use much.
            let last = SEGMENT_ROOM.saturating_sub(self.segment.header.start.load(Relaxed) as usize);
            said.min(last.saturating_mul(2))
        };
        let needed = self.depth.saturating_mul(FRAME).saturating_add(LEAST_ROOM);
        SEGMENT_ROOM.saturating_sub(room.max(needed)) as u32
    }

    /// Takes the free segment with the lowest index; waits for one where there is none. `None`: recording has ended.
    fn free_segment(&self) -> Option<u32> {
        self.take_segment().or_else(|| self.wait_for_segment())
    }

    /// Takes a free segment, unless threads have finished too many. Who has none to be drained may always take one: a
    /// thread waits for what the collector does with its own segments, and for no other thread.
    pub(super) fn take_segment(&self) -> Option<u32> {
        let undrained = self.home.area.control().undrained.0.load(Relaxed);
        if undrained > MOST_UNDRAINED && segment_chain::has_finished(self.home.slot) {
            return None;
        }
        segment_chain::take_free(self.home.slot)
    }
}
