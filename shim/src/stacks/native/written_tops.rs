//! What was written for stack tops that come again: one record puts it back.
//!
//! For a native top of the cache it is remembered what the frames on the wire were: the Python frames that had changed,
//! which the newest evaluation loop runs, and all native frames above that loop.
//!
//! Invariant: a written top is put back only where it is what [`rewrite`](super::top_rewrite::rewrite) would have written.

use memtrack_format::record::{MAX_TOP, RawFrame, STACK_TOPS};

use super::merge::{EvaluationEntries, HEAD};
use super::native_frame::{NativeFrame, Replaced};
use super::newest_loop::NewestLoop;
use super::python_frames::{Changed, Python};
use super::rule::FrameState;
use super::stack_top_cache::KnownTop;
use super::walk::Walk;
use crate::events::ring::Ring;
use crate::events::stack_model::{StackTop, StackWriter};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::stacks::python::{Chain, evaluates_by_tail_calls};

/// A power of two.
const TOPS: usize = 512;
const _: () = assert!(TOPS.is_power_of_two() && TOPS <= STACK_TOPS);

/// A top of the merged stack.
#[derive(Clone, Copy, Debug, Default)]
struct WrittenTop {
    /// Of the native top; 0: none is kept here.
    serial: u64,
    /// What it was written above.
    base: LoopPlace,
    /// Python frames below it, and with those in it.
    below: usize,
    length: usize,
    written: StackTop<MAX_TOP>,
}

// SAFETY: integers only.
unsafe impl Zeroable for WrittenTop {}

/// Where the newest evaluation loop is. All zero where there are no Python frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LoopPlace {
    /// Among the native frames, and its stack pointer.
    place: usize,
    sp: usize,
    /// Of its first Python frame on the wire, and among the Python frames.
    wire: usize,
    entered: usize,
}

/// A top that is on the wire, but of which the native frames were not taken yet.
#[derive(Clone, Copy, Debug)]
struct TopToTake {
    top: KnownTop,
    number: usize,
    /// How many native frames are below it.
    kept: usize,
}

/// Those of one thread.
#[derive(Debug)]
pub(super) struct WrittenTops {
    list: MappedVec<WrittenTop>,
    /// The top that was last seen at each place, and is kept when it is seen again.
    candidates: [u32; TOPS],
    /// Of the stack as it is; `None`: no top can be put back.
    base: Option<LoopPlace>,
    to_take: Option<TopToTake>,
}

impl WrittenTops {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; TOPS], base: None, to_take: None }
    }

    /// Another stack from now on.
    pub(super) const fn reset(&mut self) {
        (self.base, self.to_take) = (None, None);
    }

    /// None is known: their numbers and code objects are not described.
    pub(super) fn begin_again(&mut self) {
        self.list.as_mut_slice().fill(WrittenTop::default());
        self.reset();
    }

    /// Of a native top, and of the newest Python frame where that has changed.
    #[inline(always)]
    fn hash(serial: u64, python: &Python, changed: Changed) -> u64 {
        let newest = if changed.from.is_some() { python.newest() } else { RawFrame::NONE };
        let place = u64::from(newest.code).rotate_left(32) ^ u64::from(newest.instruction);
        (serial.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    const fn number(hash: u64) -> usize {
        (hash >> (64 - TOPS.ilog2())) as usize
    }

    /// Writes the stack where its top was written before, and what it stands on has not changed. The stack begins at
    /// `start`, and `stays` where its native frames are as they were. Its native frames are taken when they are needed:
    /// mostly the next top stands where this one did. `None`: nothing has been written.
    #[inline(always)]
    pub(super) fn put_back(
        &mut self,
        (start, stays, truncated): (FrameState, bool, bool),
        walk: &mut Walk,
        python: &mut Python,
        (entries, chain): (&EvaluationEntries, &Chain),
        ring: &mut Ring,
    ) -> Option<()> {
        let base = self.base?;
        let (top, kept) = if stays { walk.current_kept()? } else { walk.find(start)? };
        let changed = python.changed();
        if let Some(last) = self.to_take
            && !stays
        {
            let is_same = last.top.serial == top.serial && changed.from.is_none();
            if is_same || kept > last.kept {
                self.take(walk);
            }
            if is_same {
                return walk.is_still(top);
            }
        }
        let number = Self::number(Self::hash(top.serial, python, changed));
        let found = self.list.as_slice().get(number)?;
        let fits = found.serial == top.serial
            && found.base == base
            && ring.has_top(&found.written)
            && found.fits(python, changed)
            && found.stands_on(walk.below(kept)?);
        let may_be_entered = changed.reshaped
            && (truncated || python.is_cut(chain) || !entries.are_as_before(chain, changed.lowest(python)));
        if !fits || may_be_entered || !(stays || walk.takes_later(top, ring.slot()).is_some()) {
            return None;
        }
        self.to_take = Some(TopToTake { top, number, kept });
        python.forget_changed();
        let found = self.list.as_mut_slice().get_mut(number)?;
        ring.replace_top(number as u32, &mut found.written);
        Some(())
    }

    /// Takes the native frames of the top that was put back last.
    #[inline(always)]
    pub(super) fn take(&mut self, walk: &mut Walk) {
        if let Some(last) = self.to_take.take() {
            self.take_frames(walk, last);
        }
    }

    #[inline(never)]
    fn take_frames(&self, walk: &mut Walk, last: TopToTake) {
        match self.list.as_slice().get(last.number) {
            Some(found) if walk.take_whole(last.top).is_some() => found.note_places(walk, last.kept),
            _ => walk.forget(),
        }
    }

    /// The stack has been written otherwise. If it `is_known`, that is if its native top was met before, then it gets a
    /// number the second time.
    #[inline(always)]
    pub(super) fn note(
        &mut self,
        is_known: bool,
        walk: &mut Walk,
        (python, changed): (&Python, Changed),
        entries: &EvaluationEntries,
        ring: &mut Ring,
    ) {
        self.base = LoopPlace::of(walk.frames(), python, entries, ring);
        let Some(base) = self.base.filter(|_| is_known) else { return };
        let Some((top, kept)) = walk.stand_on(base.place) else { return };
        let hash = Self::hash(top.serial, python, changed);
        let Some(candidate) = self.candidates.get_mut(Self::number(hash)) else { return };
        if std::mem::replace(candidate, hash as u32) == hash as u32 {
            let number = Self::number(hash);
            let below = changed.lowest(python);
            let _kept = self.keep(number, (top.serial, base), (below, python.length()), walk.below(kept), ring);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep(
        &mut self,
        number: usize,
        (serial, base): (u64, LoopPlace),
        (below, length): (usize, usize),
        under: Option<&[NativeFrame]>,
        ring: &mut Ring,
    ) -> Option<()> {
        // Without Python frames, it begins above the native frames that it stands on.
        let wire = if length == 0 {
            under?.last()?.wire as usize
        } else {
            base.wire.wrapping_add(below).wrapping_sub(base.entered)
        };
        let count = ring.depth().checked_sub(wire).filter(|count| *count != 0)?;
        if below < base.entered || !self.list.grow(TOPS) {
            return None;
        }
        let mut written = StackTop { below: wire as u32, defined: 0, length: count, frames: [RawFrame::NONE; MAX_TOP] };
        for (at, place) in written.frames.get_mut(..count)?.iter_mut().enumerate() {
            *place = ring.frame_at(wire.wrapping_add(at))?;
        }
        ring.number_top(number as u32, &mut written);
        self.list.set(number, WrittenTop { serial, base, below, length, written });
        Some(())
    }
}

impl LoopPlace {
    /// Of a stack that has just been written; `None`: a top of it cannot be put back.
    #[inline(always)]
    fn of(frames: &[NativeFrame], python: &Python, entries: &EvaluationEntries, ring: &Ring) -> Option<Self> {
        if ring.depth() > HEAD.saturating_sub(MAX_TOP) || evaluates_by_tail_calls() {
            return None;
        }
        if python.length() == 0 {
            return Some(Self::default());
        }
        let runs = NewestLoop::find(frames, (Replaced::NONE, FrameState::NONE), python, entries)?;
        let above = frames.len().wrapping_sub(runs.place).wrapping_sub(1);
        let is_usual = runs.python == python.length() && ring.depth() == runs.wire.wrapping_add(above);
        let wire = runs.wire.wrapping_sub(runs.python.wrapping_sub(runs.entered));
        let sp = frames.get(runs.place)?.state.sp;
        is_usual.then_some(Self { place: runs.place, sp, wire, entered: runs.entered })
    }
}

impl WrittenTop {
    /// Whether it has the Python frames that there are now, and no others have changed.
    #[inline(always)]
    fn fits(&self, python: &Python, changed: Changed) -> bool {
        let frames = python.frames_from(self.below);
        self.length == python.length()
            && self.below <= changed.lowest(python)
            && frames.iter().zip(self.written.frames()).all(|(frame, there)| frame.raw() == *there)
    }

    /// Whether the native frames `under` its native top are on the wire where they were, and those of them that are in it
    /// are the same.
    #[inline(always)]
    fn stands_on(&self, under: &[NativeFrame]) -> bool {
        if self.length == 0 {
            return under.last().is_some_and(|last| last.python == 0 && last.wire == self.written.below);
        }
        let natives = self.written.frames().get(self.length.wrapping_sub(self.below)..).unwrap_or_default();
        let again = under.get(self.base.place.wrapping_add(1)..).unwrap_or_default();
        let is_there = |(frame, there): (&NativeFrame, &RawFrame)| {
            (frame.code, frame.instruction) == (there.code, there.instruction)
        };
        again.len() <= natives.len() && again.iter().zip(natives).all(is_there)
    }

    /// It is on the wire: notes where its native frames are, which stand on the first `kept` ones.
    #[inline(always)]
    fn note_places(&self, walk: &mut Walk, kept: usize) {
        let mut at = (self.written.below as usize).wrapping_add(self.length.wrapping_sub(self.below));
        let mut is_loop = self.length != 0;
        let place = if is_loop { self.base.place } else { kept.wrapping_sub(1) };
        for frame in walk.frames_mut().get_mut(place..).unwrap_or_default() {
            (frame.wire, frame.python, frame.is_replaced) = (at as u32, self.length as u32, is_loop);
            (at, is_loop) = (at.wrapping_add(1), false);
        }
    }
}
