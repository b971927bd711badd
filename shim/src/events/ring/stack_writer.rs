//! Writes changes of a thread's call stack into its ring, and keeps [`Ring::wire`] the same as what the records say.
//!
//! Invariant: after each call `wire` and `depth` are the stack that a reader of the segment has.

use std::hint::{assert_unchecked, cold_path};
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{AllocHead, CodeHead, MAX_TEXT, RawFrame};
use memtrack_transport::segment_chain;

use super::{Ring, RingSegment, SegmentRoom};
use crate::events::stack_model::{CodeObject, StackTop, StackWriter, WritableTop};

impl Ring {
    /// As [`StackWriter::move_top`], and writes an allocation with the stack that is there then, if that takes no call.
    /// `false`: nothing has been done.
    #[inline(always)]
    pub(crate) fn alloc_after_move(
        &mut self,
        instruction: u32,
        head: AllocHead,
        block: (u64, u64),
        time: Option<u64>,
    ) -> bool {
        let (at, room) = (self.segment.at, &mut SegmentRoom(self.segment.room));
        if at > RingSegment::LAST_OF_TWO {
            cold_path();
            return false;
        }
        let Some(at) = self.encoder.move_top_near(room, at, instruction) else { return false };
        // SAFETY: there was room for two records, each of which is at most so long.
        unsafe { assert_unchecked(at <= RingSegment::LAST) };
        match self.depth.checked_sub(1).and_then(|level| self.wire.get_mut(level)) {
            Some(place) => place.instruction = instruction,
            None => cold_path(),
        }
        if let Some(at) = self.encoder.alloc_varied(room, at, head, block, time) {
            self.written(at);
        }
        true
    }

    /// Whether [`Ring::alloc_with_top`] can follow.
    #[inline(always)]
    pub(crate) const fn has_room_for(&self, top: &StackTop) -> bool {
        // A segment that began since does not know the number.
        self.has_top(top) && self.segment.at <= RingSegment::LAST_OF_TWO
    }

    /// As [`StackWriter::replace_top`], and writes an allocation with the stack that is there then.
    #[inline(always)]
    pub(crate) fn alloc_with_top(
        &mut self,
        (number, top): WritableTop<'_>,
        head: AllocHead,
        block: (u64, u64),
        time: Option<u64>,
    ) {
        let (at, room) = (self.segment.at, &mut SegmentRoom(self.segment.room));
        if at > RingSegment::LAST_OF_TWO {
            cold_path();
            return;
        }
        let popped = (self.depth as u32).wrapping_sub(top.below);
        let Some(at) = self.encoder.replace_top(room, at, popped, number, top.newest) else { return };
        self.enter_top(top);
        // SAFETY: there was room for two records, each of which is at most so long.
        unsafe { assert_unchecked(at <= RingSegment::LAST) };
        if let Some(at) = self.encoder.alloc_varied(room, at, head, block, time) {
            self.written(at);
        }
    }

    /// The frames of a top take the place of those above the ones below it; gives how many these were. `None`: there is no
    /// room for them, and nothing has been done.
    #[inline(always)]
    fn enter_top<const N: usize>(&mut self, top: &StackTop<N>) -> Option<u32> {
        let below = top.below as usize;
        // All of them, whose number the compiler knows: what is copied too much stands above the newest frame.
        *self.wire.get_mut(below..)?.first_chunk_mut()? = top.frames;
        let popped = self.depth.wrapping_sub(below) as u32;
        self.depth = below.wrapping_add(top.length);
        Some(popped)
    }

    /// Writes the frames of a top one by one, and gives them the number.
    #[inline(never)]
    fn define_top<const N: usize>(&mut self, number: u32, top: &mut StackTop<N>) {
        let popped = (self.depth as u32).saturating_sub(top.below);
        if popped != 0 {
            self.pop(popped);
        }
        top.frames().iter().for_each(|frame| self.push(frame.code, frame.instruction));
        self.number_top(number, top);
    }

    /// Whether the current segment has the top under its number.
    #[inline(always)]
    pub(crate) const fn has_top<const N: usize>(&self, top: &StackTop<N>) -> bool {
        top.defined == self.number
    }

    /// Gives the number to a top whose frames are the newest ones.
    pub(crate) fn number_top<const N: usize>(&mut self, number: u32, top: &mut StackTop<N>) {
        let count = top.length as u32;
        self.put(move |encoder, bytes, at| encoder.define_top(bytes, at, number, count));
        top.defined = self.number;
    }
}

impl StackWriter for Ring {
    #[inline]
    fn pop(&mut self, count: u32) {
        let depth = self.depth.saturating_sub(count as usize);
        let newest = depth.checked_sub(1).and_then(|level| self.wire.get(level)).copied().unwrap_or(RawFrame::NONE);
        self.put(move |encoder, bytes, at| encoder.pop(bytes, at, count, newest));
        self.depth = depth;
    }

    #[inline]
    fn push(&mut self, code: u32, instruction: u32) {
        let frame = RawFrame { code, instruction };
        self.put(move |encoder, bytes, at| encoder.push(bytes, at, frame));
        if let Some(place) = self.wire.get_mut(self.depth) {
            *place = frame;
            self.depth = self.depth.wrapping_add(1);
        }
    }

    #[inline]
    fn move_top(&mut self, instruction: u32) {
        self.put(move |encoder, bytes, at| encoder.move_top(bytes, at, instruction));
        if let Some(place) = self.depth.checked_sub(1).and_then(|level| self.wire.get_mut(level)) {
            place.instruction = instruction;
        }
    }

    #[inline(always)]
    fn replace_top<const N: usize>(&mut self, number: u32, top: &mut StackTop<N>) {
        let (at, room) = (self.segment.at, &mut SegmentRoom(self.segment.room));
        let is_known = self.has_top(top) && at <= RingSegment::LAST;
        let Some(popped) = is_known.then(|| self.enter_top(top)).flatten() else {
            cold_path();
            return self.define_top(number, top);
        };
        if let Some(at) = self.encoder.replace_top(room, at, popped, number, top.newest) {
            self.segment.at = at;
        }
    }

    fn set_truncated(&mut self, truncated: bool) {
        self.put(move |encoder, bytes, at| encoder.truncated(bytes, at, truncated));
        self.truncated = truncated;
    }

    #[inline]
    fn compared_full(&mut self, changed: bool) {
        let slot = self.home.slot;
        // This thread alone counts here.
        slot.python_compared.store(slot.python_compared.load(Relaxed).wrapping_add(1), Relaxed);
        if changed {
            slot.python_changed.store(slot.python_changed.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.home.clock.now()
    }

    fn compared_full_since(&mut self, begun: u64) {
        self.note_sampled(begun, |slot| &slot.python_ticks);
    }

    #[cold]
    fn define_code(&mut self, id: u32, code: &CodeObject<'_>) {
        let head = CodeHead {
            id,
            first_line: u32::try_from(code.first_line).unwrap_or(0),
            lines: code.line_table_format,
            lines_len: u32::try_from(code.line_table.len()).unwrap_or(u32::MAX),
            name: if code.qualname.is_empty() { code.name } else { code.qualname },
            file: code.filename,
        };
        self.put(move |encoder, bytes, at| encoder.code(bytes, at, &head));
        segment_chain::note_code(self.segment.header);
        for part in code.line_table.chunks(MAX_TEXT) {
            self.put(move |encoder, bytes, at| encoder.code_lines(bytes, at, id, part));
        }
    }
}
