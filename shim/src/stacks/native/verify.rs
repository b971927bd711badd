//! Unwinds and merges both whole stacks after every other allocation or so, and counts whether that is what was written
//! (`verify-marks` builds only).
//!
//! Invariant: the entries are read anew from the interpreter's frames.

use super::NativeStack;
use super::merge::{Changes, EvaluationEntries, StackMerge};
use super::native_frame::{NativeFrame, Replaced};
use super::rule::FrameState;
use crate::events::ring::Ring;
use crate::stacks::python::{Chain, note_shortcut};

impl NativeStack {
    /// Compares the native frames with those that unwinding finds, and the written stack with what a merge would write.
    pub(super) fn verify(&mut self, chain: &Chain, start: FrameState, ring: &mut Ring) {
        // Some in a row are left to the next one: what was put back is mostly not taken before that.
        self.verified = self.verified.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if self.verified >> 63 != 0 {
            return;
        }
        self.tops.take_from(start, &mut self.walk, ring);
        self.walk.verify(start, ring);
        if self.python.is_cut(chain) {
            return;
        }
        let frames = self.walk.frames();
        let before = (ring.place(), sum_of_places(frames));
        let entries = self.verified_entries.get_or_insert_with(EvaluationEntries::new);
        entries.update(chain, 0, frames);
        let cut = self.walk.truncated();
        let changes = Changes { first_new: 0, displaced: Replaced::NONE, python: Some(0), cut };
        let frames = self.walk.frames_mut();
        StackMerge::run(&self.python, entries, frames, &mut self.tail, ring, changes);
        note_shortcut(before == (ring.place(), sum_of_places(self.walk.frames())));
    }
}

/// A sum of where the frames are on the wire.
fn sum_of_places(frames: &[NativeFrame]) -> u64 {
    frames.iter().fold(0, |sum: u64, frame| {
        let place = u64::from(frame.wire) ^ u64::from(frame.python) << 32 ^ u64::from(frame.is_replaced) << 63;
        sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place)
    })
}
