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
use super::compare::same_code;
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
}

impl ChainTops {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; TOPS] }
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
        for (link, detail) in links.iter().zip(&self.details).rev() {
            // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
            let frame = unsafe { PythonFrame::<V>::new(address) };
            if frame.previous() != link.previous || frame.position() != link.position || !same_code(&frame, detail) {
                return None;
            }
            address = link.previous_from_cache();
        }
        Some(address)
    }
}

impl Chain {
    /// As [`Chain::recall_top`], but for changes that are to be timed: `false` for these.
    #[inline(always)]
    pub(crate) fn recall_top_untimed<V: Version>(&mut self, state: usize, writer: &mut impl StackWriter) -> bool {
        !self.timer.is_due() && self.recall_top::<V>(state, writer)
    }

    /// Takes over a known top, if the chain of the thread's state ends in one. `false`: nothing has been done.
    #[inline(always)]
    pub(super) fn recall_top<V: Version>(&mut self, state: usize, writer: &mut impl StackWriter) -> bool {
        // SAFETY: the caller has got the calling thread's own state from the interpreter, in this hook.
        let thread = unsafe { OwnThreadState::<V>::new(state) };
        let newest = thread.newest();
        if newest == 0 || thread.is_tracing() || self.truncated || !self.codes.is_current() {
            cold_path();
            return false;
        }
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { PythonFrame::<V>::new(newest) };
        let caller = frame.previous();
        if caller == 0 {
            return false;
        }
        // SAFETY: reached from this thread's newest frame by a link that was just read.
        let caller = unsafe { PythonFrame::<V>::new(caller) };
        let number = ChainTops::number(ChainTops::hash(newest, frame.position(), caller.position()));
        let Some(top) = self.tops.list.as_slice().get(number) else { return false };
        let (place, shown_below) = (top.place, top.written.below);
        if top.newest != newest || top.deaths != self.codes.deaths() {
            return false;
        }
        let Some(below) = top.compare::<V>() else { return false };
        let is_above = self.links.get(place).previous == below && self.shown(place) == shown_below;
        if place > self.length || !is_above || place.wrapping_add(2 * MOST) > self.room {
            return false;
        }
        let Some(floor) = self.floor_below(place) else { return false };
        if !self.reaches_floor::<V>(&floor, place, below) {
            return false;
        }
        writer.compared_full(true);
        self.sentinels.keep(floor.sentinels);
        self.take_top(number, writer);
        self.set_compared_span::<V>(&floor);
        #[cfg(feature = "verify-marks")]
        if let Some(python) = interpreter::interpreter() {
            verify_sentinels::note(self.shows_below::<V>(python, self.length, newest));
        }
        true
    }

    /// The frames of the top take the place of the cached ones from its place on.
    #[inline(always)]
    fn take_top(&mut self, number: usize, writer: &mut impl StackWriter) {
        let Self { tops, links, details, .. } = self;
        let Some(top) = tops.list.as_mut_slice().get_mut(number) else { return };
        if let (Some(to_links), Some(to_details)) = (links.top_mut(top.place), details_mut(details, top.place)) {
            // Some frames, whose number the compiler knows: what is copied too much stands above the newest frame.
            const FEW: usize = 3;
            copy_first::<_, FEW>(to_links, &top.links);
            copy_first::<_, FEW>(to_details, &top.details);
            if top.count > FEW {
                cold_path();
                (*to_links, *to_details) = (top.links, top.details);
            }
        }
        self.length = top.place.wrapping_add(top.count);
        self.newest = top.newest;
        links.set(self.length, ChainLink { previous: top.newest, position: 0 });
        writer.replace_top(number as u32, &mut top.written);
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
fn details_mut(details: &mut MappedVec<FrameDetail>, place: usize) -> Option<&mut [FrameDetail; TOP_FRAMES]> {
    details.as_mut_slice().get_mut(place..)?.first_chunk_mut()
}

#[inline(always)]
const fn copy_first<T: Copy, const N: usize>(to: &mut [T; TOP_FRAMES], from: &[T; TOP_FRAMES]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
}
