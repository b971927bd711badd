//! Stack tops that were met before: takes one over, and keeps the newest frames of a walk as one.
//!
//! Invariant: a top is taken over only where all of its words, and those of the frames below it, are as they were.

use super::{Walk, replaced_at};
use crate::stacks::native::native_frame::NativeFrame;
use crate::stacks::native::own_frames::OWN_FRAMES;
use crate::stacks::native::rule::FrameState;
use crate::stacks::native::stack_top_cache::NewTop;
use crate::stacks::native::unwind_witnesses::Word;

impl Walk {
    /// Takes the frames from a tip that the stack ends in, above frames whose words are among the first `proven` ones.
    #[inline(always)]
    pub(super) fn take_tip(&mut self, start: FrameState, proven: usize) -> Option<usize> {
        let Self { tips, frames, words, .. } = self;
        let tip = tips.find(start)?;
        let (known, rest) = frames.as_slice().get(..self.length)?.split_at_checked(tip.kept())?;
        let under = known.last()?;
        if under.words as usize > proven || !tip.fits(under) {
            return None;
        }
        // Those of its frames that are there already stay.
        let mut same = 0_usize;
        for (there, frame) in rest.iter().zip(tip.frames()) {
            if there.words as usize > proven || !there.is_at(frame.state) {
                break;
            }
            same = same.wrapping_add(1);
        }
        let kept = tip.kept().wrapping_add(same);
        let below = under.words;
        let words_kept = frames.get(kept.wrapping_sub(1)).words;
        if !frames.grow(tip.end()) {
            return None;
        }
        self.start = FrameState::NONE;
        self.displaced = replaced_at(frames, self.length, kept);
        for (place, frame) in frames.as_mut_slice().get_mut(kept..)?.iter_mut().zip(tip.frames().get(same..)?) {
            *place = frame.with_words(frame.words.wrapping_add(below));
        }
        self.length = kept;
        let new_words = tip.words().get(words_kept.wrapping_sub(below) as usize..)?;
        if words.replace_newest(words_kept as usize, new_words, tip.own_count()) {
            self.length = tip.end();
            (self.start, self.frame_mask) = (start, tip.frame_mask());
            return Some(kept);
        }
        None
    }

    /// The words prove the whole stack from now on, if they can, and its newest frames are kept as a tip.
    #[inline(always)]
    pub(super) fn settle(&mut self, start: FrameState, caller: FrameState, kept: usize) {
        let Some(newest) = self.frames.as_slice().get(..self.length).and_then(<[NativeFrame]>::last) else { return };
        let Some(way) = self.own_paths.last() else { return };
        let mut own = [Word::default(); OWN_FRAMES + 2];
        let count = way.words(start, caller, newest.frame_matters, &mut own);
        let own = own.get(..count).unwrap_or_default();
        let is_callers = (newest.state.pc, newest.state.sp) == (caller.pc, caller.sp);
        let is_known = own.iter().all(|word| self.stack.holds(word.address));
        if !is_callers || !is_known || !self.words.close(own) {
            return;
        }
        self.start = start;
        self.frame_mask = if newest.frame_matters && way.keeps_frame() { usize::MAX } else { 0 };
        let (known, frames) = self.frames.as_slice().split_at_checked(kept).unwrap_or_default();
        let Some(under) = known.last() else { return };
        let frames = frames.get(..self.length.wrapping_sub(kept)).unwrap_or_default();
        let words = self.words.from(under.words as usize, count);
        self.tips.put(&NewTop { start, frame_mask: self.frame_mask, under, kept, frames, words, own: count });
    }
}
