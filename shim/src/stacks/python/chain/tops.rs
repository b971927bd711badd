//! The tops that a thread's chain had before, for programs that go from one call path to another and back.
//!
//! A top is the newest frames of a chain, from the oldest on that had changed when it was noted. When the two newest
//! frames stand where those of a known top stood, its frames are compared with memory, and those below it with the cached
//! chain, as always. What is saved is finding out what the frames are, and writing them one by one.
//!
//! Invariant: a top is taken over only where each of its frames is as it was, each frame below is proven equal to the
//! cached one, and none of the code objects has died since the top was noted.

use std::hint::cold_path;

use memtrack_format::record::{CallSite, RawFrame, STACK_TOPS};

use super::super::frame::PythonFrame;
use super::super::layout::Version;
#[cfg(feature = "verify-marks")]
use super::super::{interpreter, verify_sentinels};
use super::Chain;
use super::compare::few_matching;
use super::links::{ChainLink, MOST, Newest};
use crate::events::stack_model::{StackTop, StackWriter, TOP_FRAMES, WritableTop};
use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// Tops that are kept: a power of two.
const TOPS: usize = 512;
const _: () = assert!(TOPS.is_power_of_two() && TOPS <= STACK_TOPS && TOP_FRAMES <= MOST);

/// The newest frames of a chain.
#[derive(Clone, Copy, Debug, Default)]
struct ChainTop {
    /// The newest frame's address; 0: none is kept here.
    newest: usize,
    /// The place of its oldest frame in the chain.
    place: usize,
    /// How many frames it has.
    count: usize,
    /// Its frames, the oldest first.
    links: [ChainLink; TOP_FRAMES],
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
    /// [`Chain::find_top_at_once`] has found a top that takes more.
    takes_more: bool,
}

impl ChainTops {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; TOPS], takes_more: false }
    }

    /// None is known: a code object has died.
    #[cold]
    pub(super) fn forget(&mut self) {
        // Pages that hold none stay untouched.
        self.list.as_mut_slice().iter_mut().filter(|top| top.newest != 0).for_each(|top| top.newest = 0);
    }

    /// None is known: no segment defines any, and their code objects are not described. The memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
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
        few_matching::<V>(self.links.get(..self.count)?, self.newest)
    }
}

/// A top that the chain of the thread's state ends in.
#[derive(Clone, Copy)]
struct FoundTop {
    number: usize,
    /// The address of the frame below it, which has its place in the cached chain.
    below: usize,
}

/// A known top that the chain of the thread's newest frame ends in: each frame is proven to be as it was.
#[derive(Clone, Copy)]
pub(crate) struct ProvenTop {
    number: usize,
    /// Sentinels that remain.
    sentinels: usize,
}

impl Chain {
    /// The known top that [`Chain::recall_top`] would take over, if that takes no call and is not to be timed: the caller
    /// writes it, which it `can_write` at once, and then takes it over by [`Chain::take_top`].
    #[inline(always)]
    pub(crate) fn find_top_at_once<V: Version>(
        &mut self,
        newest: usize,
        can_write: impl FnOnce(&StackTop) -> bool,
    ) -> Option<ProvenTop> {
        if self.timer.is_due() || newest == 0 {
            cold_path();
            return None;
        }
        let found = self.find_top::<V>(newest)?;
        let proven = self.prove_top::<V>(found, can_write);
        if proven.is_none() {
            cold_path();
            self.tops.takes_more = true;
        }
        proven
    }

    /// As [`Chain::recall_top`], unless [`Chain::find_top_at_once`] has said that there is none.
    #[inline(always)]
    pub(super) fn recall_top_left<V: Version>(&mut self, newest: usize, writer: &mut impl StackWriter) -> bool {
        std::mem::replace(&mut self.tops.takes_more, false) && self.recall_top::<V>(newest, writer)
    }

    /// Takes over a known top, if the chain of the thread's newest frame ends in one, each death of a code object is known,
    /// and no trace function runs. `false`: nothing has been done.
    #[inline(never)]
    pub(super) fn recall_top<V: Version>(&mut self, newest: usize, writer: &mut impl StackWriter) -> bool {
        let Some(FoundTop { number, below }) = self.find_top::<V>(newest) else { return false };
        let Some(top) = self.tops.list.as_slice().get(number) else { return false };
        let place = top.place;
        let Some(floor) = self.floor_below(place) else { return false };
        if !self.reaches_floor::<V>(&floor, place, below) {
            return false;
        }
        writer.compared_full(true);
        self.sentinels.keep(floor.sentinels);
        let _span = self.take_frames(number);
        if let Some(top) = self.tops.list.as_mut_slice().get_mut(number) {
            writer.replace_top(number as u32, &mut top.written);
        }
        self.set_compared_span::<V>(&floor);
        self.verify_top::<V>();
        true
    }

    /// The top that the chain of the thread's newest frame ends in, if it is known, and has the number of the frames below
    /// it that it had.
    #[inline(always)]
    fn find_top<V: Version>(&self, newest: usize) -> Option<FoundTop> {
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
        // There was room for the top when it was noted.
        if top.newest != newest || place > self.length {
            return None;
        }
        let below = top.compare::<V>()?;
        // SAFETY: there is room, and a known top has a frame below it.
        let [under, link] = (unsafe { self.links.between_unchecked(place.wrapping_sub(1), place.wrapping_add(1)) })
        else {
            return None;
        };
        (link.previous == below && under.detail.shown == top.written.below).then_some(FoundTop { number, below })
    }

    /// Whether the frames below a top are the cached ones, where the span reaches below it.
    #[inline(always)]
    fn prove_top<V: Version>(
        &mut self,
        FoundTop { number, below }: FoundTop,
        can_write: impl FnOnce(&StackTop) -> bool,
    ) -> Option<ProvenTop> {
        // SAFETY: a top that was found.
        let top = unsafe { self.tops.list.as_slice().get_unchecked(number) };
        let (floor, sentinels) = self.span.floor_below(top.place)?;
        // SAFETY: the floor is below the top, which has room.
        let links = unsafe { self.links.between_unchecked(floor, top.place) };
        few_matching::<V>(links, below)?;
        let may_count = self.span.is_proven::<V>() && can_write(&top.written);
        let is_proven = may_count && (sentinels == 0 || self.sentinels.count_unaudited());
        is_proven.then_some(ProvenTop { number, sentinels })
    }

    /// What is written of a top, and its number.
    #[inline(always)]
    pub(crate) fn top(&self, ProvenTop { number, .. }: ProvenTop) -> WritableTop<'_> {
        // SAFETY: a top that was found.
        (number as u32, unsafe { &self.tops.list.as_slice().get_unchecked(number).written })
    }

    /// Takes over a top.
    #[inline(always)]
    pub(crate) fn take_top<V: Version>(&mut self, ProvenTop { number, sentinels }: ProvenTop) {
        self.sentinels.keep(sentinels);
        let links = self.take_frames(number);
        self.span.stretch(self.length.wrapping_sub(1), links);
        self.verify_top::<V>();
    }

    /// The frames of the top, which was found, take the place of the cached ones from its place on. Gives the newest links.
    #[inline(always)]
    fn take_frames(&mut self, number: usize) -> Newest {
        let Self { tops, links, .. } = self;
        // SAFETY: a top that was found.
        let top = unsafe { tops.list.as_slice().get_unchecked(number) };
        let (place, count, newest) = (top.place, top.count, top.newest);
        // SAFETY: the top was found, so there is room for more frames than it has.
        let frames = unsafe { links.top_unchecked_mut(place) };
        // Some frames, whose number the compiler knows: what is copied too much stands above the newest frame.
        const FEW: usize = 2;
        if count <= FEW {
            copy_first::<FEW>(frames, &top.links);
        } else {
            cold_path();
            *frames = top.links;
        }
        (self.length, self.newest) = (place.wrapping_add(count), newest);
        // SAFETY: as before.
        unsafe { links.newest_before(self.length, newest) }
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
        let below = self.shown(place);
        let Self { tops, links, .. } = self;
        if place == 0 || place.wrapping_add(2 * MOST) > self.room || !tops.list.grow(TOPS) {
            return;
        }
        let Some(top) = tops.list.as_mut_slice().get_mut(number) else { return };
        let (mut shown, mut at, mut newest) = (0_usize, place, RawFrame::NONE);
        for link in top.links.iter_mut().take(count) {
            *link = links.get(at);
            if link.detail.id != 0
                && let Some(frame) = top.written.frames.get_mut(shown)
            {
                let instruction = V::L.inline_instruction(link.detail.executable, link.position);
                newest = RawFrame { code: link.detail.id, instruction };
                *frame = newest;
                shown = shown.wrapping_add(1);
            }
            at = at.wrapping_add(1);
        }
        (top.place, top.count) = (place, count);
        (top.written.length, top.written.below, top.written.defined) = (shown, below, 0);
        top.written.newest = CallSite::of(newest);
        // A top without a frame to be written would have no number.
        top.newest = if shown == 0 { 0 } else { self.newest };
    }
}

#[inline(always)]
const fn copy_first<const N: usize>(to: &mut [ChainLink; TOP_FRAMES], from: &[ChainLink; TOP_FRAMES]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
}
