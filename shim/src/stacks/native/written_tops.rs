//! What was written for stack tops that come again: one record puts it back.
//!
//! In a Python program a top is the Python frames that have changed, which the newest evaluation loop runs, and the native
//! frames above that loop ([`LoopPath`]): it is the same wherever the loop stands. Elsewhere it is what stands above the
//! frames below a native top of the cache.
//!
//! Invariant: a top is written only where it is what [`rewrite`](super::top_rewrite::rewrite) would have written.

use std::hint::cold_path;

use memtrack_format::record::{CallSite, MAX_TOP, RawFrame, STACK_TOPS};

use super::merge::{EvaluationEntries, HEAD};
use super::native_frame::{NativeFrame, Replaced};
use super::newest_loop::NewestLoop;
use super::python_frames::{Changed, FrameSlot, Python};
use super::rule::FrameState;
use super::stack_top_cache::KnownTop;
use super::top_rewrite::write_from;
use super::walk::{LoopPath, Walk, mix};
use crate::events::ring::Ring;
use crate::events::stack_model::{StackTop, StackWriter};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::stacks::python::{Chain, evaluates_by_tail_calls};

/// A power of two.
const TOPS: usize = 1024;
const _: () = assert!(TOPS.is_power_of_two() && TOPS <= STACK_TOPS);
/// Set in the keys of tops that stand on an evaluation loop, and in no native top's number.
const ON_LOOP: u64 = 1 << 63;

/// A top of the merged stack.
#[derive(Clone, Copy, Debug, Default)]
struct WrittenTop {
    /// The native top's number, or a number of the frames; 0: none is kept here.
    key: u64,
    /// How many Python frames it begins with.
    python: usize,
    /// The serial number of a known path whose frames the others are, or 0.
    path: u64,
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
enum TopToTake {
    /// It stands on so many native frames, and has this number.
    Native { top: KnownTop, kept: usize, number: usize },
    /// It stands on the loop at this place, which has this on the wire.
    OnLoop { place: usize, loops: Replaced },
}

/// Those of one thread.
#[derive(Debug)]
pub(super) struct WrittenTops {
    list: MappedVec<WrittenTop>,
    /// The top on a loop that was last seen at each place, and is kept when it is seen again. Native tops have those of the
    /// stack top cache.
    candidates: [u16; TOPS],
    /// Of the stack as it is; `None`: no top can be put back.
    base: Option<LoopPlace>,
    to_take: Option<TopToTake>,
    /// How often in a row the stack was what it was, without its frames being known.
    repeated: u32,
}

impl WrittenTops {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; TOPS], base: None, to_take: None, repeated: 0 }
    }

    /// Another stack from now on.
    pub(super) const fn reset(&mut self) {
        (self.base, self.to_take) = (None, None);
    }

    /// None is known: their numbers and code objects are not described. The memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
        self.reset();
    }

    #[inline(always)]
    const fn number(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TOPS.ilog2())) as usize
    }

    /// Of the path, with these Python frames below it.
    #[inline(always)]
    fn key(path: &LoopPath, frames: &[FrameSlot]) -> u64 {
        frames.iter().fold(path.key(), |key, frame| mix(key, frame.raw())) | ON_LOOP
    }

    /// Writes the stack where what its top stands on has not changed, which begins at `start`; without Python frames, only
    /// where the top was written before. `stays`: its native frames are as they were. They are taken when they are needed:
    /// mostly the next top stands where this one did. `None`: nothing has been written, but some frames of the last top may
    /// have been taken.
    #[inline(always)]
    pub(super) fn put_back(
        &mut self,
        (start, stays, truncated): (FrameState, bool, bool),
        walk: &mut Walk,
        python: &mut Python,
        (entries, chain): (&mut EvaluationEntries, &Chain),
        ring: &mut Ring,
    ) -> Option<()> {
        let (mut base, mut is_older) = (self.base?, false);
        if python.length() == 0 {
            return if stays { None } else { self.put_back_natives(start, walk, python, ring) };
        }
        let at = if stays {
            walk.path_from(base.place.wrapping_add(1))?
        } else {
            match walk.path_to_loop(start, (base.place, base.sp), ring) {
                Some(found) => found,
                None if !walk.may_have_left_loop() => return None,
                None => {
                    cold_path();
                    is_older = true;
                    base = base.older(walk, python, entries)?;
                    walk.path_to_loop(start, (base.place, base.sp), ring)?
                }
            }
        };
        let (path, serial) = (walk.path(at), walk.path_serial(at));
        let changed = python.changed();
        if changed.from.is_none() && base.has_on_wire(path.frames(), python, ring) {
            self.repeat(start, base, walk, python, ring);
            return Some(());
        }
        let below = changed.lowest(python);
        let frames = python.frames_from(below);
        let key = Self::key(path, frames);
        let may_be_entered = changed.reshaped
            && (truncated || python.is_cut(chain) || !entries.are_as_before(chain, (below, base.entered)));
        let is_in_loop = below >= base.entered && python.length() > base.entered;
        let loops = base.as_replaced(python);
        if may_be_entered || !is_in_loop || loops.wire as usize > HEAD.saturating_sub(2 * MAX_TOP) {
            return None;
        }
        let wire = base.wire.wrapping_add(below.wrapping_sub(base.entered));
        let number = Self::number(key);
        match self.list.as_mut_slice().get_mut(number) {
            Some(found) if found.key == key && found.consists_of(frames, path, serial) => {
                (found.path, found.written.below) = (serial, wire as u32);
                ring.replace_top(number as u32, &mut found.written);
            }
            _ => {
                cold_path();
                let natives = path.frames().iter().rev().copied();
                write_from(wire, frames.iter().map(|frame| frame.raw()).chain(natives), ring);
                self.see((key, frames.len(), wire), ring);
            }
        }
        if is_older {
            cold_path();
            entries.keep(base.entered);
            self.base = Some(base);
        }
        python.forget_changed();
        self.repeated = 0;
        walk.note_proof_below((base.place, base.entered));
        if stays {
            note_places(walk.frames_mut().get_mut(base.place..).unwrap_or_default(), loops);
        } else {
            walk.leave_top();
            self.to_take = Some(TopToTake::OnLoop { place: base.place, loops });
        }
        Some(())
    }

    /// As [`WrittenTops::put_back_without_python`], in a function of its own.
    #[inline(never)]
    fn put_back_natives(&mut self, start: FrameState, walk: &mut Walk, python: &Python, ring: &mut Ring) -> Option<()> {
        self.put_back_without_python(start, walk, python, ring)
    }

    /// As [`WrittenTops::put_back`], of a stack without Python frames, but for one whose last ones have just gone: that is to
    /// be written.
    #[inline(always)]
    pub(super) fn put_back_without_python(
        &mut self,
        start: FrameState,
        walk: &mut Walk,
        python: &Python,
        ring: &mut Ring,
    ) -> Option<()> {
        let is_native = self.base?.place == 0 && python.length() == 0 && !python.has_changed();
        if is_native { self.put_back_native(start, walk, ring) } else { None }
    }

    /// The same, where the stack is known to have none.
    #[inline(always)]
    fn put_back_native(&mut self, start: FrameState, walk: &mut Walk, ring: &mut Ring) -> Option<()> {
        let (top, kept) = walk.find(start)?;
        if let Some(TopToTake::Native { top: last, kept: under, number }) = self.to_take {
            if last.serial == top.serial {
                self.take(walk);
                return walk.is_still(top);
            }
            if kept > under {
                let wire = self.list.as_slice().get(number)?.written.below;
                note_native_places(walk.take_below(last, kept)?, wire);
            }
        }
        let number = Self::number(top.serial);
        let found = self.list.as_mut_slice().get_mut(number)?;
        let under = walk.below(kept)?.last()?;
        let stands = under.python == 0 && under.wire == found.written.below;
        if found.key != top.serial || !stands || !ring.has_top(&found.written) {
            return None;
        }
        walk.takes_later(top, ring.slot())?;
        self.to_take = Some(TopToTake::Native { top, kept, number });
        ring.replace_top(number as u32, &mut found.written);
        Some(())
    }

    /// The stack is what it was, but for where the loop has called from. Where that goes on, its frames are taken, and
    /// nothing has to be unwound any more.
    #[inline(always)]
    fn repeat(&mut self, start: FrameState, base: LoopPlace, walk: &mut Walk, python: &Python, ring: &mut Ring) {
        walk.leave_top();
        self.to_take = Some(TopToTake::OnLoop { place: base.place, loops: base.as_replaced(python) });
        self.repeated = self.repeated.wrapping_add(1);
        if self.repeated > 1 {
            self.repeated = 0;
            self.take_from(start, walk, ring);
        }
    }

    /// Prepares a walk: what is known of the frames of the top that was put back last.
    #[inline(always)]
    pub(super) fn take(&mut self, walk: &mut Walk) {
        if let Some(last) = self.to_take.take() {
            self.take_frames(walk, last);
        }
    }

    #[inline(never)]
    fn take_frames(&self, walk: &mut Walk, last: TopToTake) {
        match last {
            TopToTake::OnLoop { place, loops } => walk.cut_at_loop(place, loops),
            TopToTake::Native { top, kept, number } => match self.list.as_slice().get(number) {
                Some(found) if walk.take_whole(top).is_some() => {
                    let frames = walk.frames_mut().get_mut(kept..).unwrap_or_default();
                    note_native_places(frames, found.written.below);
                }
                _ => walk.forget(),
            },
        }
    }

    /// Takes all frames of the top that was put back last, of the stack that begins at `start`.
    #[cold]
    #[inline(never)]
    pub(super) fn take_from(&mut self, start: FrameState, walk: &mut Walk, ring: &mut Ring) {
        let Some(TopToTake::OnLoop { place, loops }) = self.to_take else { return self.take(walk) };
        self.take(walk);
        let top = walk.recall(start, ring);
        if walk.run(start, top, ring) == Some(place) {
            note_places(walk.frames_mut().get_mut(place..).unwrap_or_default(), loops);
        } else {
            walk.forget();
        }
    }

    /// The stack has been written otherwise. A top on a loop gets a number the second time, a native one the third: the second
    /// time the cache keeps it. `is_known`: the cache had it.
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
        let Some(base) = self.base else { return };
        if python.length() != 0 {
            if let Some(found) = Self::top_on_loop(base, walk, (python, changed)) {
                self.see(found, ring);
            }
        } else if is_known && let Some((key, python, wire)) = Self::native_top(walk) {
            let _kept = self.keep(key, python, wire, ring);
        }
    }

    /// What is on the wire from `wire` on is the top with this key, and so many Python frames.
    #[inline(always)]
    fn see(&mut self, (key, python, wire): (u64, usize, usize), ring: &mut Ring) {
        let Some(candidate) = self.candidates.get_mut(Self::number(key)) else { return };
        if std::mem::replace(candidate, key as u16) == key as u16 {
            let _kept = self.keep(key, python, wire, ring);
        }
    }

    /// The key of the top that changed, its Python frames, and where it begins on the wire.
    #[inline(always)]
    fn top_on_loop(
        base: LoopPlace,
        walk: &mut Walk,
        (python, changed): (&Python, Changed),
    ) -> Option<(u64, usize, usize)> {
        let at = walk.path_from(base.place.wrapping_add(1))?;
        let below = changed.lowest(python);
        let frames = python.frames_from(below);
        let wire = base.wire.wrapping_add(below.checked_sub(base.entered)?);
        Some((Self::key(walk.path(at), frames), frames.len(), wire))
    }

    /// The same of a stack without Python frames.
    fn native_top(walk: &Walk) -> Option<(u64, usize, usize)> {
        let (top, kept) = walk.current_kept()?;
        Some((top.serial, 0, walk.below(kept)?.last()?.wire as usize))
    }

    #[cold]
    #[inline(never)]
    fn keep(&mut self, key: u64, python: usize, wire: usize, ring: &mut Ring) -> Option<()> {
        let count = ring.depth().checked_sub(wire).filter(|count| *count != 0)?;
        if !self.list.grow(TOPS) {
            return None;
        }
        let newest = CallSite::of(ring.frame_at(ring.depth().wrapping_sub(1))?);
        let mut written = StackTop { below: wire as u32, length: count, newest, ..StackTop::default() };
        for (at, place) in written.frames.get_mut(..count)?.iter_mut().enumerate() {
            *place = ring.frame_at(wire.wrapping_add(at))?;
        }
        let number = Self::number(key);
        ring.number_top(number as u32, &mut written);
        self.list.set(number, WrittenTop { key, python, path: 0, written });
        Some(())
    }
}

/// Frames from an evaluation loop on, which stand on the wire one after the other.
#[inline(always)]
fn note_places(frames: &mut [NativeFrame], loops: Replaced) {
    let mut wire = loops.wire;
    for (at, frame) in frames.iter_mut().enumerate() {
        (frame.wire, frame.python, frame.is_replaced) = (wire, loops.python, at == 0);
        wire = wire.wrapping_add(1);
    }
}

/// Frames without Python frames, which stand on the wire one after the other above the first `wire` ones.
#[inline(always)]
fn note_native_places(frames: &mut [NativeFrame], mut wire: u32) {
    for frame in frames {
        wire = wire.wrapping_add(1);
        (frame.wire, frame.python, frame.is_replaced) = (wire, 0, false);
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

    /// The loop around it that runs the oldest Python frame that has changed, if this loop has no Python frame any more. Of
    /// those it was entered with, all are on the wire.
    #[inline(never)]
    fn older(&self, walk: &Walk, python: &Python, entries: &EvaluationEntries) -> Option<Self> {
        let changed = python.changed();
        let lowest = changed.lowest(python);
        if !changed.reshaped || lowest > self.entered {
            return None;
        }
        let frames = walk.below(self.place)?;
        let entered = |place: usize| place.checked_sub(1).and_then(|below| frames.get(below)).map(|below| below.python);
        let runs = |place: &usize| {
            let is_replaced = frames.get(*place).is_some_and(|frame| frame.is_replaced);
            is_replaced && entered(*place).is_some_and(|entered| entered as usize <= lowest)
        };
        let place = (1..frames.len()).rev().find(runs)?;
        let (frame, entered) = (frames.get(place)?, entered(place)? as usize);
        let wire = (frame.wire as usize).wrapping_sub((frame.python as usize).wrapping_sub(entered));
        entries.has(entered).then_some(Self { place, sp: frame.state.sp, wire, entered })
    }

    /// What the loop has on the wire, all of the Python frames being on it.
    #[inline(always)]
    const fn as_replaced(&self, python: &Python) -> Replaced {
        let wire = self.wire.wrapping_add(python.length().wrapping_sub(self.entered));
        Replaced { wire: wire as u32, python: python.length() as u32, sp: self.sp }
    }

    /// Whether these native frames, the newest first, are on the wire above the loop, and no others.
    #[inline(always)]
    fn has_on_wire(&self, frames: &[RawFrame], python: &Python, ring: &Ring) -> bool {
        let at = self.as_replaced(python).wire as usize;
        let mut end = ring.depth();
        end == at.wrapping_add(frames.len())
            && frames.iter().all(|frame| {
                end = end.wrapping_sub(1);
                ring.frame_at(end) == Some(*frame)
            })
    }
}

impl WrittenTop {
    /// Whether it is these Python frames, and the native ones of the path, which has this serial number or 0.
    #[inline(always)]
    fn consists_of(&self, python: &[FrameSlot], path: &LoopPath, serial: u64) -> bool {
        let (first, above) = self.written.frames().split_at_checked(self.python).unwrap_or_default();
        if first.len() != python.len() || !first.iter().zip(python).all(|(there, frame)| *there == frame.raw()) {
            return false;
        }
        (serial != 0 && serial == self.path) || above.iter().rev().eq(path.frames())
    }
}
