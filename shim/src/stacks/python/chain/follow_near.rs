//! Follows the usual change of a stack: a few of the newest frames are others, and all older ones are as they were.
//!
//! Most allocations of a real program see a stack that differs from the last one by some frames. The general case
//! ([`Chain::follow`]) costs three times as much for them: it can also make sentinels, describe code objects, take
//! memory, and cut a stack that is too deep. Where any of that is needed, this module answers that it cannot tell.
//!
//! Invariant: it answers only where each frame is compared, or proven by a sentinel, as in the general case, and then
//! gives the writer the same changes; before it is certain of the answer it changes nothing.

use std::hint::cold_path;

use super::super::frame::PythonFrame;
use super::super::frame_sentinels::FrameSentinel;
use super::super::layout::Version;
#[cfg(feature = "verify-marks")]
use super::super::{interpreter, verify_sentinels};
use super::compare::{is_same, is_shown_at};
use super::links::{ChainLink, MOST};
use super::{Chain, FrameDetail};
use crate::events::stack_model::StackWriter;

/// A frame that the cached chain does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct EnteredFrame {
    address: usize,
    /// But for the number of shown frames, which depends on the older ones.
    link: ChainLink,
}

impl EnteredFrame {
    pub(super) const NONE: Self =
        Self { address: 0, link: ChainLink { previous: 0, position: 0, detail: FrameDetail::NONE } };
}

/// What remains of the cached chain, and how many frames are new.
struct NearJoin {
    /// Frames that remain, from the root.
    kept: usize,
    /// Where the newest of them stands, if not where it stood.
    moved: Option<usize>,
    /// New frames above them: so many of [`Chain::entered`], newest first.
    entered: usize,
    /// Down to where those that remain were compared.
    floor: ComparedFloor,
}

/// How cached frames compare with memory.
enum NearComparison {
    /// They are equal, and the older ones are proven to be.
    Same(ComparedFloor),
    /// One more than the place of the newest that differs.
    Different(usize),
}

/// Where the comparison of a chain may end.
pub(super) struct ComparedFloor {
    /// The place of the oldest frame that is compared.
    pub(super) place: usize,
    /// Sentinels up to there.
    pub(super) sentinels: usize,
    /// The one that stands there; `None` at the root.
    pub(super) sentinel: Option<FrameSentinel>,
}

impl Chain {
    /// Writes what changed, if that is near the newest frame. `false`: nothing has been done.
    #[inline(always)]
    pub(super) fn follow_near<V: Version>(&mut self, newest: usize, writer: &mut impl StackWriter) -> bool {
        // In a copy of the bytecode that is the thread's own, a position takes more to understand.
        if V::L.thread_local_bytecode.is_some() || self.length.wrapping_add(MOST) > self.room {
            return false;
        }
        if !self.codes.is_current() || newest == 0 || self.is_tracing::<V>() {
            cold_path();
            return false;
        }
        let Some(join) = self.find_near::<V>(newest) else {
            cold_path();
            return false;
        };
        let changed = join.entered != 0 || join.kept != self.length;
        writer.compared_full(changed);
        self.apply_near::<V>(newest, &join, writer);
        self.set_compared_span::<V>(&join.floor);
        if changed {
            self.note_top::<V>(join.kept.wrapping_sub(usize::from(join.moved.is_some())));
        }
        #[cfg(feature = "verify-marks")]
        if let Some(python) = interpreter::interpreter() {
            verify_sentinels::note(self.shows_below::<V>(python, self.length, newest));
        }
        true
    }

    /// Walks from the newest frame to one that is cached, with the same callers, and puts the frames before it in
    /// [`Chain::entered`].
    #[inline(always)]
    fn find_near<V: Version>(&mut self, newest: usize) -> Option<NearJoin> {
        let (mut address, mut entered) = (newest, 0);
        // Cached frames from here on are known to have changed, or to stand above one that has.
        let mut limit = self.length;
        loop {
            // SAFETY: reached from this thread's newest frame by links that were just read.
            let frame = unsafe { PythonFrame::<V>::new(address) };
            let (previous, position) = (frame.previous(), frame.position());
            let link = ChainLink { previous, position, detail: FrameDetail::NONE };
            if let Some(place) = self.cached_at(address, limit) {
                limit = place;
                if self.links.get(place).previous == link.previous {
                    match self.matching_near::<V>(place, link.previous)? {
                        NearComparison::Same(floor) => {
                            return self.join_near::<V>(&frame, link, place, entered, floor);
                        }
                        NearComparison::Different(differing) => limit = differing,
                    }
                }
            }
            self.enter(&frame, link, &mut entered)?;
            address = link.previous;
            if address == 0 {
                cold_path();
                return None;
            }
        }
    }

    /// The join at a frame that is cached at `place`, and has the same callers.
    #[inline(always)]
    fn join_near<V: Version>(
        &mut self,
        frame: &PythonFrame<V>,
        link: ChainLink,
        place: usize,
        mut entered: usize,
        floor: ComparedFloor,
    ) -> Option<NearJoin> {
        let (cached, kept) = (self.links.get(place), place.wrapping_add(1));
        if is_same(frame, &cached) {
            return Some(NearJoin { kept, moved: None, entered, floor });
        }
        if is_shown_at(frame, &cached.detail, link.position) {
            return Some(NearJoin { kept, moved: Some(link.position), entered, floor });
        }
        // Another frame at the same address.
        self.enter(frame, link, &mut entered)?;
        Some(NearJoin { kept: place, moved: None, entered, floor })
    }

    /// Compares the frames below `length`, whose newest is at `address`, with the cached ones, down to the next sentinel.
    /// `None`: that cannot be told here.
    #[inline(always)]
    fn matching_near<V: Version>(&mut self, length: usize, address: usize) -> Option<NearComparison> {
        let floor = self.floor_below(length)?;
        let differing = self.matching_between::<V>(floor.place, length, address);
        if differing > floor.place {
            return Some(NearComparison::Different(differing));
        }
        self.is_proven_at::<V>(&floor).then_some(NearComparison::Same(floor))
    }

    /// Down to where frames below `length` have to be compared. `None`: that is too far.
    #[inline(always)]
    pub(super) fn floor_below(&self, length: usize) -> Option<ComparedFloor> {
        let sentinels = self.sentinels.count_below(length);
        let sentinel = self.sentinels.last_of(sentinels);
        let place = sentinel.map_or(0, |sentinel| sentinel.place);
        if length.wrapping_sub(place) > MOST {
            cold_path();
            return None;
        }
        Some(ComparedFloor { place, sentinels, sentinel: sentinel.copied() })
    }

    /// Whether the frames from the floor on and below `length`, whose newest is at `address`, are the cached ones, and all
    /// older ones are proven to be.
    #[inline(always)]
    pub(super) fn reaches_floor<V: Version>(&mut self, floor: &ComparedFloor, length: usize, address: usize) -> bool {
        self.matching_between::<V>(floor.place, length, address) == floor.place && self.is_proven_at::<V>(floor)
    }

    /// Whether the sentinel at the floor proves the older frames. At the root there is none, and nothing to be proven.
    #[inline(always)]
    fn is_proven_at<V: Version>(&mut self, floor: &ComparedFloor) -> bool {
        let Some(sentinel) = &floor.sentinel else { return true };
        sentinel.is_there::<V>(self.links.get(floor.place).position) && self.sentinels.count_unaudited()
    }

    /// Notes a frame that is new, if its code object is described.
    #[inline(always)]
    fn enter<V: Version>(&mut self, frame: &PythonFrame<V>, mut link: ChainLink, entered: &mut usize) -> Option<()> {
        let (executable, setting) = (frame.executable(), frame.setting());
        let detail = &mut link.detail;
        *detail = FrameDetail { executable, setting, shown_from: usize::MAX, ..FrameDetail::NONE };
        if frame.is_showable() {
            let code = self.codes.find(executable)?;
            detail.shown_from = frame.shown_from_code(executable, code.first_traceable);
            detail.id = if link.position >= detail.shown_from { code.id } else { 0 };
        }
        *self.entered.get_mut(*entered)? = EnteredFrame { address: frame.address(), link };
        *entered = entered.wrapping_add(1);
        Some(())
    }

    /// Takes over what [`Chain::find_near`] has found, and writes it.
    #[inline(always)]
    fn apply_near<V: Version>(&mut self, newest: usize, join: &NearJoin, writer: &mut impl StackWriter) {
        let (before, mut shown) = (self.shown(self.length), self.shown(join.kept));
        writer.keeps(shown);
        self.sentinels.keep(join.floor.sentinels);
        if before != shown {
            writer.pop(before.wrapping_sub(shown));
        }
        if let Some(position) = join.moved {
            let place = join.kept.wrapping_sub(1);
            if let Some(link) = self.links.get_mut(place) {
                link.position = position;
            }
            writer.move_top(V::L.inline_instruction(self.links.get(place).detail.executable, position));
        }
        let mut place = join.kept;
        for at in (0..join.entered).rev() {
            let Some(EnteredFrame { address, mut link }) = self.entered.get(at).copied() else { break };
            self.index.set(self.index_of(address), place as u32);
            if link.detail.id != 0 {
                shown = shown.wrapping_add(1);
                writer.push(link.detail.id, V::L.inline_instruction(link.detail.executable, link.position));
            }
            link.detail.shown = shown;
            self.links.set(place, link);
            place = place.wrapping_add(1);
        }
        self.links.end_at(place, newest);
        self.newest = newest;
        self.length = place;
    }
}
