//! The tops that a thread's chain had before, for programs that go from one call path to another and back.
//!
//! A top is the newest frames of a chain, from the oldest on that had changed when it was noted. When the two newest
//! frames stand where those of a known top stood, its frames are compared with memory, and those below it with the cached
//! chain, as always. What is saved is finding out what the frames are, and writing them one by one.
//!
//! Invariant: a top is taken over only where each of its frames is as it was, each frame below is proven equal to the
//! cached one, and no code object has died since the top was noted.

use std::hint::cold_path;

use memtrack_format::record::{RawFrame, STACK_TOPS};

use super::super::frame::{OwnThreadState, PythonFrame};
use super::super::layout::Version;
#[cfg(feature = "verify-marks")]
use super::super::{interpreter, verify_sentinels};
use super::compare::matching;
use super::links::{ChainLink, MOST};
use super::{Chain, FrameDetail};
use crate::events::stack_model::{StackTop, StackWriter, TOP_FRAMES};
use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// Tops that are kept: a power of two.
const TOPS: usize = 512;
const _: () = assert!(TOPS.is_power_of_two() && TOPS <= STACK_TOPS && TOP_FRAMES <= MOST);

/// The newest frames of a chain.
#[derive(Clone, Copy, Debug, Default)]
struct ChainTop {
    /// The newest frame's address; 0: none is kept here.
    newest: usize,
    /// Deaths of code objects that were known.
    deaths: u64,
    /// The place of its oldest frame in the chain.
    place: usize,
    /// How many frames it has.
    count: usize,
    /// Its frames, the oldest first.
    links: [ChainLink; TOP_FRAMES],
    details: [FrameDetail; TOP_FRAMES],
    /// What is written of it.
    written: StackTop,
}

// SAFETY: integers only.
unsafe impl Zeroable for ChainTop {}

/// Those of one chain.
#[derive(Debug)]
pub(super) struct ChainTops {
    list: MappedVec<ChainTop>,
    /// The top that was last seen at each place, and is noted when it is seen again: most are not.
    candidates: [u32; TOPS],
    /// [`Chain::recall_top_at_once`] has found a top that takes more.
    takes_more: bool,
}

impl ChainTops {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; TOPS], takes_more: false }
    }

    /// None is known: no segment defines any, and their code objects are not described.
    pub(super) fn begin_again(&mut self) {
        self.list.as_mut_slice().fill(ChainTop::default());
        self.candidates.fill(0);
    }

    /// A hash of where the two newest frames stand; its highest bits are the number of the top.
    #[inline(always)]
    const fn hash(newest: usize, position: usize, caller: usize) -> u64 {
        let address = (newest as u64).rotate_left(29);
        let positions = (position as u64).wrapping_add((caller as u64).rotate_left(13));
        address.wrapping_add(positions).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    const fn number(hash: u64) -> usize {
        (hash >> (64 - TOPS.ilog2())) as usize
    }
}

impl ChainTop {
    /// Whether the thread's newest frames are those of the top; gives the address of the frame below them.
    #[inline(always)]
    fn compare<V: Version>(&self) -> Option<usize> {
        let mut address = self.newest;
        let links = self.links.get(..self.count)?;
        (matching::<V>(links, &self.details, &mut address) == 0).then_some(address)
    }
}

/// A top that the chain of the thread's state ends in.
#[derive(Clone, Copy)]
struct FoundTop {
    number: usize,
    /// The address of the frame below it, which has its place in the cached chain.
    below: usize,
}

impl Chain {
    /// As [`Chain::recall_top`], if that takes no call and the change is not to be timed. `false`: nothing has been done.
    #[inline(always)]
    pub(crate) fn recall_top_at_once<V: Version>(&mut self, state: usize, writer: &mut impl StackWriter) -> bool {
        if self.timer.is_due() {
            cold_path();
            return false;
        }
        let Some(found) = self.find_top::<V>(state) else { return false };
        let is_recalled = self.take_top_at_once::<V>(found, writer);
        if !is_recalled {
            cold_path();
            self.tops.takes_more = true;
        }
        is_recalled
    }

    /// Takes over a known top, if the chain of the thread's state ends in one, and [`Chain::recall_top_at_once`] has not
    /// said that there is none. `false`: nothing has been done.
    #[inline(always)]
    pub(super) fn recall_top_left<V: Version>(&mut self, state: usize, writer: &mut impl StackWriter) -> bool {
        std::mem::replace(&mut self.tops.takes_more, false) && self.recall_top::<V>(state, writer)
    }

    /// Takes over a known top, if the chain of the thread's state ends in one. `false`: nothing has been done.
    #[inline(never)]
    pub(super) fn recall_top<V: Version>(&mut self, state: usize, writer: &mut impl StackWriter) -> bool {
        let Some(FoundTop { number, below }) = self.find_top::<V>(state) else { return false };
        let Some(top) = self.tops.list.as_slice().get(number) else { return false };
        let place = top.place;
        let Some(floor) = self.floor_below(place) else { return false };
        if !self.reaches_floor::<V>(&floor, place, below) {
            return false;
        }
        writer.compared_full(true);
        self.sentinels.keep(floor.sentinels);
        self.take_frames(number);
        if let Some(top) = self.tops.list.as_mut_slice().get_mut(number) {
            writer.replace_top(number as u32, &mut top.written);
        }
        self.set_compared_span::<V>(&floor);
        self.verify_top::<V>();
        true
    }

    /// The top that the chain of the thread's state ends in, if it is known, has the number of the frames below it that it
    /// had, and there is room for it.
    #[inline(always)]
    fn find_top<V: Version>(&self, state: usize) -> Option<FoundTop> {
        // SAFETY: the caller has got the calling thread's own state from the interpreter, in this hook.
        let thread = unsafe { OwnThreadState::<V>::new(state) };
        let newest = thread.newest();
        if newest == 0 || thread.is_tracing() || self.truncated || !self.codes.is_current() {
            cold_path();
            return None;
        }
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { PythonFrame::<V>::new(newest) };
        let caller = frame.previous();
        if caller == 0 {
            return None;
        }
        // SAFETY: reached from this thread's newest frame by a link that was just read.
        let caller = unsafe { PythonFrame::<V>::new(caller) };
        let number = ChainTops::number(ChainTops::hash(newest, frame.position(), caller.position()));
        let top = self.tops.list.as_slice().get(number)?;
        let place = top.place;
        let has_room = place <= self.length && place.wrapping_add(2 * MOST) <= self.room;
        if top.newest != newest || top.deaths != self.codes.deaths() || !has_room {
            return None;
        }
        let below = top.compare::<V>()?;
        // SAFETY: there is room, and a known top has a frame below it.
        let link = unsafe { self.links.between_unchecked(place, place.wrapping_add(1)) }.first()?;
        // SAFETY: as before.
        let detail = unsafe { self.details.between_unchecked(place.wrapping_sub(1), place) }.first()?;
        (link.previous == below && detail.shown == top.written.below).then_some(FoundTop { number, below })
    }

    /// Takes over a top, where the span reaches below it and the writer takes no call. `false`: nothing has been done.
    #[inline(always)]
    fn take_top_at_once<V: Version>(&mut self, found: FoundTop, writer: &mut impl StackWriter) -> bool {
        let FoundTop { number, mut below } = found;
        let Some(top) = self.tops.list.as_slice().get(number) else { return false };
        let Some((floor, sentinels)) = self.span.floor_below(top.place) else { return false };
        // SAFETY: the floor is below the top, which has room.
        let links = unsafe { self.links.between_unchecked(floor, top.place) };
        // SAFETY: as before.
        let details = unsafe { self.details.between_unchecked(floor, top.place) };
        if matching::<V>(links, details, &mut below) != 0 || !self.span.is_proven::<V>() {
            return false;
        }
        if sentinels != 0 && !self.sentinels.count_unaudited() {
            return false;
        }
        if !writer.replace_top_at_once(number as u32, &top.written) {
            return false;
        }
        writer.compared_full(true);
        self.sentinels.keep(sentinels);
        self.take_frames(number);
        // SAFETY: the chain, whose length is not 0, has room.
        let links = unsafe { self.links.newest_unchecked(self.length) };
        self.span.stretch(self.length.wrapping_sub(1), links);
        self.verify_top::<V>();
        true
    }

    /// The frames of the top, which was found, take the place of the cached ones from its place on.
    #[inline(always)]
    fn take_frames(&mut self, number: usize) {
        let Self { tops, links, details, .. } = self;
        let Some(top) = tops.list.as_slice().get(number) else { return };
        // SAFETY: the top was found, so there is room for more frames than it has.
        let to_links = unsafe { links.top_unchecked_mut(top.place) };
        // SAFETY: as before.
        let to_details = unsafe { details.chunk_unchecked_mut(top.place) };
        // Some frames, whose number the compiler knows: what is copied too much stands above the newest frame.
        const FEW: usize = 3;
        copy_first::<_, FEW, _>(to_links, &top.links);
        copy_first::<_, FEW, TOP_FRAMES>(to_details, &top.details);
        if top.count > FEW {
            cold_path();
            copy_first::<_, TOP_FRAMES, _>(to_links, &top.links);
            *to_details = top.details;
        }
        if let Some(end) = to_links.get_mut(top.count) {
            *end = ChainLink { previous: top.newest, position: 0 };
        }
        if let Some(newest) = top.count.checked_sub(1).and_then(|last| top.details.get(last)) {
            self.newest_detail = *newest;
        }
        self.length = top.place.wrapping_add(top.count);
        self.newest = top.newest;
    }

    #[inline(always)]
    #[cfg_attr(not(feature = "verify-marks"), expect(clippy::unused_self, reason = "only that build verifies"))]
    fn verify_top<V: Version>(&self) {
        #[cfg(feature = "verify-marks")]
        if let Some(python) = interpreter::interpreter() {
            verify_sentinels::note(self.shows_below::<V>(python, self.length, self.newest));
        }
    }

    /// The frames from `place` on have changed: they are a top that may come again.
    #[inline(always)]
    pub(super) fn note_top<V: Version>(&mut self, place: usize) {
        if self.length < 2 || self.length.wrapping_sub(place) > TOP_FRAMES {
            return;
        }
        let position = |below: usize| self.links.get(self.length.wrapping_sub(below)).position;
        let hash = ChainTops::hash(self.newest, position(1), position(2));
        let number = ChainTops::number(hash);
        let Some(candidate) = self.tops.candidates.get_mut(number) else { return };
        let is_seen = std::mem::replace(candidate, hash as u32) == hash as u32;
        if is_seen {
            self.keep_top::<V>(number, place);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_top<V: Version>(&mut self, number: usize, place: usize) {
        let count = self.length.wrapping_sub(place);
        let (below, deaths) = (self.shown(place), self.codes.deaths());
        let Self { tops, links, details, .. } = self;
        if place == 0 || !tops.list.grow(TOPS) {
            return;
        }
        let Some(top) = tops.list.as_mut_slice().get_mut(number) else { return };
        let (mut shown, mut at) = (0_usize, place);
        for (kept_link, kept_detail) in top.links.iter_mut().zip(&mut top.details).take(count) {
            (*kept_link, *kept_detail) = (links.get(at), details.get(at));
            if kept_detail.id != 0
                && let Some(frame) = top.written.frames.get_mut(shown)
            {
                let instruction = V::L.inline_instruction(kept_detail.executable, kept_link.position);
                *frame = RawFrame { code: kept_detail.id, instruction };
                shown = shown.wrapping_add(1);
            }
            at = at.wrapping_add(1);
        }
        (top.deaths, top.place, top.count) = (deaths, place, count);
        (top.written.length, top.written.below, top.written.defined) = (shown, below, 0);
        // A top without a frame to be written would have no number.
        top.newest = if shown == 0 { 0 } else { self.newest };
    }
}

#[inline(always)]
const fn copy_first<T: Copy, const N: usize, const M: usize>(to: &mut [T; M], from: &[T; TOP_FRAMES]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
}
