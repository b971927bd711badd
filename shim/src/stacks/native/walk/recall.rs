//! Stack tops that were met before: takes one over, and keeps the newest frames of a walk as one.
//!
//! Invariant: a top is taken over only where all of its words, and those of the frames below it, are as they were.

use memtrack_transport::layout::SlotHeader;

use super::{Walk, count, replaced_at};
use crate::events::ring::{Ring, add};
use crate::stacks::native::modules;
use crate::stacks::native::native_frame::NativeFrame;
use crate::stacks::native::own_frames::OWN_FRAMES;
use crate::stacks::native::rule::FrameState;
use crate::stacks::native::stack_top_cache::{KnownTop, NewTop};
use crate::stacks::native::unwind_witnesses::Word;

impl Walk {
    /// The top that the stack of a walk from `start` ends in, if it is known, and the frames below it are as they were.
    #[inline(always)]
    pub(in crate::stacks::native) fn recall(&mut self, start: FrameState, ring: &Ring) -> Option<KnownTop> {
        self.catch_up();
        add(&ring.slot().native_changed, 1);
        self.stack.begin(start.sp);
        let words = self.length.checked_sub(1).map_or(0, |last| self.frames.get(last).words);
        self.proven = self.words.same(words as usize, self.proven_words.words(), &mut self.stack);
        let tip = self.tips.find(start)?;
        let under = self.frames.as_slice().get(..self.length)?.get(tip.kept().checked_sub(1)?)?;
        (under.words as usize <= self.proven && tip.fits(under)).then(|| tip.known())
    }

    /// The top that the stack of a walk from `start` ends in, whatever it stands on, and on how many frames it does.
    #[inline(always)]
    pub(in crate::stacks::native) fn find(&self, start: FrameState) -> Option<(KnownTop, usize)> {
        let since = (modules::generation() ^ self.generation) | (modules::additions() ^ self.additions);
        let tip = if since == 0 { self.tips.find(start)? } else { return None };
        Some((tip.known(), tip.kept()))
    }

    /// The top that the stack ends in, which is as it was; and how many frames are below it.
    #[inline(always)]
    pub(in crate::stacks::native) fn current_kept(&self) -> Option<(KnownTop, usize)> {
        Some((self.current?, self.tips.get(self.current?)?.kept()))
    }

    /// If a top that was just found stands on frames that there are, it is the one that the stack ends in from now on:
    /// its frames are to be taken before any walk. `None`: nothing has been done.
    #[inline(always)]
    pub(in crate::stacks::native) fn takes_later(&mut self, top: KnownTop, slot: &SlotHeader) -> Option<()> {
        let tip = self.tips.get(top)?;
        let under = self.frames.as_slice().get(tip.kept().checked_sub(1)?)?;
        if !tip.fits(under) || !self.words.are_first_same(under.words as usize, self.proven_words.words()) {
            return None;
        }
        count(slot, tip.end(), 0);
        add(&slot.native_changed, 1);
        self.start = FrameState::NONE;
        self.current = Some(top);
        Some(())
    }

    /// Whether the frames that a top stands on which was just found are as they were.
    pub(in crate::stacks::native) fn is_still(&self, top: KnownTop) -> Option<()> {
        let tip = self.tips.get(top)?;
        let words = self.words_of(tip.kept());
        self.words.are_first_same(words, self.proven_words.words()).then_some(())
    }

    /// How many words belong to the first `kept` frames.
    pub(super) fn words_of(&self, kept: usize) -> usize {
        kept.checked_sub(1).map_or(0, |last| self.frames.get(last).words as usize)
    }

    /// The first `kept` frames.
    #[inline(always)]
    pub(in crate::stacks::native) fn below(&self, kept: usize) -> Option<&[NativeFrame]> {
        self.frames.as_slice().get(..self.length)?.get(..kept)
    }

    /// Takes the frames of a top that was just recalled.
    #[inline(always)]
    pub(in crate::stacks::native) fn take_whole(&mut self, top: KnownTop) -> Option<()> {
        let Self { tips, frames, words, .. } = self;
        let tip = tips.get(top)?;
        if !frames.grow(tip.end()) {
            return None;
        }
        let below = frames.get(tip.kept().wrapping_sub(1)).words;
        if !words.replace_newest(below as usize, tip.words(), tip.own_count()) {
            return None;
        }
        for (place, frame) in frames.as_mut_slice().get_mut(tip.kept()..)?.iter_mut().zip(tip.frames()) {
            *place = frame.with_words(frame.words.wrapping_add(below));
        }
        self.length = tip.end();
        (self.start, self.frame_mask) = (tip.start(), tip.frame_mask());
        self.current = Some(top);
        Some(())
    }

    /// Takes those frames of the top that was put back last which are among the first `end` ones of the stack; gives them.
    /// The cache still has it: only a walk puts others there, before which it is taken whole. What is noted of the whole
    /// stack stays: either another top is put back on these frames, or this one is taken whole, over them.
    #[inline(always)]
    pub(in crate::stacks::native) fn take_below(&mut self, top: KnownTop, end: usize) -> Option<&mut [NativeFrame]> {
        let Self { tips, frames, words, .. } = self;
        let tip = tips.get(top)?;
        let kept = tip.kept();
        let taken = tip.frames().get(..end.checked_sub(kept)?)?;
        let below = frames.get(kept.wrapping_sub(1)).words;
        let lead = tip.words().get(..taken.last()?.words as usize)?;
        if !frames.grow(end) || !words.replace_newest(below as usize, lead, 0) {
            return None;
        }
        let places = frames.as_mut_slice().get_mut(kept..end)?;
        for (place, frame) in places.iter_mut().zip(taken) {
            *place = frame.with_words(frame.words.wrapping_add(below));
        }
        self.length = end;
        Some(places)
    }

    /// Takes the frames of a top that was just recalled, and gives the first one that is new.
    #[inline(always)]
    pub(super) fn take_tip(&mut self, top: KnownTop, start: FrameState) -> Option<usize> {
        let Self { tips, frames, words, proven, .. } = self;
        let (tip, proven) = (tips.get(top)?, *proven);
        let (known, rest) = frames.as_slice().get(..self.length)?.split_at_checked(tip.kept())?;
        let under = known.last()?;
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
            self.current = Some(top);
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
        self.current =
            self.tips.put(&NewTop { start, frame_mask: self.frame_mask, under, kept, frames, words, own: count });
    }
}
