//! Writes the usual change of a stack: the Python frames that the newest evaluation loop runs are others, and the native
//! frames above it.
//!
//! The merge of both stacks takes three times as long, for it also finds out which Python frames stand where. Here that
//! is known: [`NewestLoop`] runs all that have changed.
//!
//! Invariant: where [`rewrite`] gives `Some`, the wire is what [`StackMerge::run`](super::merge::StackMerge::run) would
//! have made it, and where it gives `None`, nothing has been done.

use memtrack_format::record::RawFrame;

use super::merge::{EvaluationEntries, HEAD};
use super::native_frame::{NativeFrame, Replaced};
use super::newest_loop::{NewestLoop, are_in_loop};
use super::python_frames::{Changed, Python};
use super::rule::FrameState;
use crate::events::ring::{Ring, add};
use crate::events::stack_model::StackWriter;
use crate::stacks::python::{Chain, evaluates_by_tail_calls};

/// Writes the Python frames that have changed and the native frames from `first_new` on.
#[inline(always)]
pub(super) fn rewrite(
    native_frames: &mut [NativeFrame],
    (first_new, displaced): (usize, Replaced),
    (python, changed): (&Python, Changed),
    (entries, chain): (&EvaluationEntries, &Chain),
    ring: &mut Ring,
) -> Option<()> {
    let (known, mut new) = native_frames.split_at_mut(first_new.min(native_frames.len()));
    let below = *known.last()?;
    let next = new.first().map_or(FrameState::NONE, |frame| frame.state);
    let runs = NewestLoop::find(known, (displaced, next), python, entries)?;
    let is_next = runs.place == known.len();
    let most = runs.wire.wrapping_add(python.length()).wrapping_add(known.len()).wrapping_add(new.len());
    // Where the loop is built of tail calls, the frame after it is a part of it.
    let is_in_two = (below.is_replaced || is_next || changed.reshaped) && evaluates_by_tail_calls();
    // A frame that has stood there without a loop may be run by a new one.
    if are_in_loop(new.get(usize::from(is_next)..)?) && python.length() != 0 {
        return None;
    }
    if most.max(ring.depth()) > HEAD || is_in_two || !runs.runs_all(python, changed, entries, chain) {
        return None;
    }
    add(&ring.slot().native_levels, new.len() as u64);
    let from = changed.lowest(python);
    let has_moved = from < python.length() || runs.python != python.length();
    let mut writer = TopWriter { ring, at: below.wire as usize, is_there: true };
    if has_moved {
        writer.at = runs.wire.wrapping_sub(runs.python.wrapping_sub(from));
        python.frames_from(from).iter().for_each(|frame| writer.put(frame.raw()));
    } else if is_next {
        writer.at = runs.wire;
    }
    let length = python.length() as u32;
    if is_next {
        let (again, above) = new.split_first_mut()?;
        (again.wire, again.python, again.is_replaced) = (writer.at as u32, length, true);
        new = above;
    } else if has_moved {
        let (again, above) = known.get_mut(runs.place..)?.split_first_mut()?;
        let mut was = std::mem::replace(&mut again.wire, writer.at as u32);
        again.python = length;
        for frame in above {
            // Of those in a loop's place none is written.
            if frame.wire != was {
                writer.put(RawFrame { code: frame.code, instruction: frame.instruction });
            }
            was = std::mem::replace(&mut frame.wire, writer.at as u32);
            frame.python = length;
        }
    }
    for frame in new {
        writer.put(RawFrame { code: frame.code, instruction: frame.instruction });
        (frame.wire, frame.python, frame.is_replaced) = (writer.at as u32, length, false);
    }
    writer.pop_to(writer.at);
    Some(())
}

/// Writes these frames over those that are on the wire from `wire` on.
#[inline(never)]
pub(super) fn write_from(wire: usize, frames: impl Iterator<Item = RawFrame>, ring: &mut Ring) {
    let mut writer = TopWriter { ring, at: wire, is_there: true };
    frames.for_each(|frame| writer.put(frame));
    writer.pop_to(writer.at);
}

/// Writes frames over those that are on the wire.
struct TopWriter<'a> {
    ring: &'a mut Ring,
    /// Frames that are as they shall be.
    at: usize,
    /// What is beyond them is what was there.
    is_there: bool,
}

impl TopWriter<'_> {
    #[inline(always)]
    fn put(&mut self, frame: RawFrame) {
        let there = if self.is_there { self.ring.frame_at(self.at) } else { None };
        if there != Some(frame) {
            let stays = there.is_some_and(|there| there.code == frame.code);
            if self.is_there {
                self.is_there = false;
                self.pop_to(self.at.wrapping_add(usize::from(stays)));
            }
            if stays { self.ring.move_top(frame.instruction) } else { self.ring.push(frame.code, frame.instruction) }
        }
        self.at = self.at.wrapping_add(1);
    }

    #[inline(always)]
    fn pop_to(&mut self, depth: usize) {
        let count = self.ring.depth().saturating_sub(depth);
        if count > 0 {
            self.ring.pop(count as u32);
        }
    }
}
