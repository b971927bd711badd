//! The native frames between a hook and the newest evaluation loop, unwound without noting how.
//!
//! Most allocations of a Python program come from below another C function than the last one, above the same evaluation
//! loop. Whether their stack was written before is known by the frames alone, wherever the stack pointer is.
//!
//! Invariant: a path is what a walk would find above the loop, and the frames below the loop are as they were.

use memtrack_format::record::RawFrame;

use super::known_paths::{KnownPath, KnownPaths};
use super::path_frames::LoopPath;
use super::{Walk, count, plain_caller, plain_step};
use crate::events::ring::{Ring, add};
use crate::stacks::native::modules;
use crate::stacks::native::native_frame::{NativeFrame, Replaced};
use crate::stacks::native::own_frames::OWN_FRAMES;
use crate::stacks::native::rule::FrameState;
use crate::stacks::native::unwind_witnesses::Word;
use crate::stacks::python::evaluation_loop;

/// Where a path is that was found last: among those that were met before, or alone.
#[derive(Clone, Copy, Debug)]
pub(in crate::stacks::native) struct PathPlace(Option<usize>);

/// The path that was found last, and those that were met before.
#[derive(Debug)]
pub(super) struct LoopPaths {
    found: LoopPath,
    /// There is a newer loop on the way that was last looked for.
    meets_newer: bool,
    known: KnownPaths,
}

impl LoopPaths {
    pub(super) const fn new() -> Self {
        Self { found: LoopPath::new(), meets_newer: false, known: KnownPaths::new() }
    }

    /// None is known.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// As [`LoopPaths::clear`], and gives the memory back.
    pub(super) fn begin_again(&mut self) {
        self.known.begin_again();
    }
}

impl Walk {
    /// That of the frames from the one at `first` on, which a walk has found. `None`: they are too many.
    #[inline(always)]
    pub(in crate::stacks::native) fn path_from(&mut self, first: usize) -> Option<PathPlace> {
        let found = &mut self.paths.found;
        found.clear();
        let mut newest_first = self.frames.as_slice().get(first..self.length)?.iter().rev();
        newest_first.try_for_each(|frame| found.add(RawFrame { code: frame.code, instruction: frame.instruction }))?;
        Some(PathPlace(None))
    }

    /// One that was just found.
    #[inline(always)]
    pub(in crate::stacks::native) fn path(&self, place: PathPlace) -> &LoopPath {
        match place.0.and_then(|number| self.paths.known.get(number)) {
            Some(known) => known.path(),
            None => &self.paths.found,
        }
    }

    /// The serial number of one that was just found, 0 where it was not met before: as long as the thread lives, paths with
    /// the same number are the same.
    #[inline(always)]
    pub(in crate::stacks::native) fn path_serial(&self, place: PathPlace) -> u64 {
        place.0.and_then(|number| self.paths.known.get(number)).map_or(0, KnownPath::serial)
    }

    /// Finds the way from `start` to the evaluation loop which stood above the first `place` frames, with this stack pointer,
    /// and was called from where it was. `None`: it stands there no more, or the way is not a usual one.
    #[inline(always)]
    pub(in crate::stacks::native) fn path_to_loop(
        &mut self,
        start: FrameState,
        (place, sp): (usize, usize),
        ring: &Ring,
    ) -> Option<PathPlace> {
        let since = (modules::generation() ^ self.generation) | (modules::additions() ^ self.additions);
        let under = self.frames.as_slice().get(..self.length)?.get(place.checked_sub(1)?)?;
        if since != 0 || !self.words.are_first_same(under.words as usize, self.proven_words.words()) {
            self.paths.meets_newer = since != 0;
            return None;
        }
        add(&ring.slot().native_changed, 1);
        if let Some((number, known)) = self.paths.known.find(start)
            && known.leads_to(sp, under)
        {
            count(ring.slot(), place.wrapping_add(1).wrapping_add(known.path().length()), 0);
            self.paths.known.note_hit();
            return Some(PathPlace(Some(number)));
        }
        let under = *under;
        self.unwind_to_loop(start, sp, &under)?;
        count(ring.slot(), place, self.paths.found.length().wrapping_add(1));
        Some(PathPlace(None))
    }

    /// Whether the loop to which no way was found has ended, as far as is known.
    pub(in crate::stacks::native) const fn may_have_left_loop(&self) -> bool {
        !self.paths.meets_newer
    }

    #[inline(never)]
    fn unwind_to_loop(&mut self, start: FrameState, sp: usize, under: &NativeFrame) -> Option<()> {
        self.stack.begin(start.sp);
        let mut state = self.own_paths.take(start, &mut self.stack)?;
        let path = &mut self.paths.found;
        path.clear();
        self.paths.meets_newer = false;
        let function = evaluation_loop();
        loop {
            let known = self.rules.find(state.pc.wrapping_sub(1))?;
            let (caller, _, _) = plain_caller(&self.stack, state, &known.rule)?;
            let is_loop = function.contains(&state.pc);
            if state.sp >= sp {
                if state.sp != sp || !is_loop || !under.is_at(caller) {
                    return None;
                }
                if self.paths.known.is_to_be_kept(start, self.paths.found.key()) {
                    let _kept = self.keep_path(start, sp, under);
                }
                return Some(());
            }
            // A newer loop: which frames it runs is to be found out.
            if is_loop {
                self.paths.meets_newer = true;
                return None;
            }
            path.add(RawFrame { code: known.module, instruction: known.offset })?;
            state = caller;
        }
    }

    /// Keeps the path that was just found, with the words that lead from `start` to the loop.
    #[cold]
    #[inline(never)]
    fn keep_path(&mut self, start: FrameState, sp: usize, under: &NativeFrame) -> Option<()> {
        let caller = self.own_paths.take(start, &mut self.stack)?;
        self.fresh_length = 0;
        let mut state = caller;
        for _ in 0..=self.paths.found.length() {
            let known = self.rules.find(state.pc.wrapping_sub(1))?;
            let (found, next) = plain_step(&self.stack, state, known)?;
            self.add(found);
            state = next;
        }
        let Self { fresh, fresh_length, own_paths, paths, stack, .. } = self;
        let LoopPaths { found, known, .. } = paths;
        let (kept, way) = (known.place(start)?, own_paths.last()?);
        kept.renew(*found, sp, under);
        // As a walk does: a frame pointer is a proof where an older frame needs it.
        let mut frame_matters = under.frame_matters;
        for frame in fresh.as_slice().get(..*fresh_length)?.iter().rev() {
            kept.add_word(frame.back_slot, stack)?;
            if frame_matters && frame.frame_slot != 0 {
                kept.add_word(frame.frame_slot, stack)?;
            }
            frame_matters = frame.uses_frame || (frame.keeps_frame && frame_matters);
        }
        let mut own = [Word::default(); OWN_FRAMES + 2];
        let count = way.words(start, caller, frame_matters, &mut own);
        own.get(..count)?.iter().try_for_each(|word| kept.add_word(word.address, stack))?;
        kept.begin_at(start, if frame_matters && way.keeps_frame() { usize::MAX } else { 0 });
        Some(())
    }

    /// The frames above the first `place` ones are not known any more.
    #[inline(always)]
    pub(in crate::stacks::native) const fn leave_top(&mut self) {
        self.start = FrameState::NONE;
        self.current = None;
    }

    /// Nothing but what it has on the wire is known of the frame at `place`, a loop's, and nothing of those above it.
    #[inline(always)]
    pub(in crate::stacks::native) fn cut_at_loop(&mut self, place: usize, loops: Replaced) {
        let words = place.checked_sub(1).map_or(0, |under| self.frames.get(under).words);
        let Replaced { wire, python, sp } = loops;
        let state = FrameState { sp, ..FrameState::NONE };
        self.frames.set(place, NativeFrame { state, wire, python, words, is_replaced: true, ..NativeFrame::default() });
        self.length = place.wrapping_add(1);
    }
}
