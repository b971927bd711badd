//! The newest evaluation loop of a merged stack: what may be written again without a merge.
//!
//! Most changes of a Python program's stack leave all evaluation loops where they are: the Python frames that the newest
//! one runs change, and the native frames above it.
//!
//! Invariant: all Python frames from `entered` on, and no older ones, stand in the loop's place.

use super::merge::EvaluationEntries;
use super::native_frame::{NativeFrame, Replaced};
use super::python_frames::{Changed, Python};
use super::rule::FrameState;
use crate::stacks::python::{Chain, evaluation_loop};

/// Most native frames above it.
const MOST: usize = 16;

/// The newest evaluation loop, as the last merge wrote it. In a stack without Python frames, the newest frame that stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewestLoop {
    /// Its place among the native frames.
    pub(super) place: usize,
    /// Frames on the wire, and Python frames among them, up to and with those in its place.
    pub(super) wire: usize,
    pub(super) python: usize,
    /// Python frames that are older than it.
    pub(super) entered: usize,
}

/// Whether one of these frames is an evaluation loop's.
#[inline(always)]
pub(super) fn are_in_loop(frames: &[NativeFrame]) -> bool {
    let function = evaluation_loop();
    frames.iter().any(|frame| function.contains(&frame.state.pc))
}

impl NewestLoop {
    /// That of the frames `known`, which stay, or of the one that is next: that one where it is the loop that stood there
    /// (`displaced`), at another instruction.
    #[inline(always)]
    pub(super) fn find(
        known: &[NativeFrame],
        (displaced, next): (Replaced, FrameState),
        python: &Python,
        entries: &EvaluationEntries,
    ) -> Option<Self> {
        let (below, place) = (known.last()?, known.len());
        if python.length() == 0 {
            let wire = below.wire as usize;
            return (below.python == 0).then_some(Self { place: place.wrapping_sub(1), wire, python: 0, entered: 0 });
        }
        let is_next = displaced.python != 0 && displaced.sp == next.sp && evaluation_loop().contains(&next.pc);
        let found = if is_next {
            let (wire, python) = (displaced.wire as usize, displaced.python as usize);
            Self { place, wire, python, entered: below.python as usize }
        } else {
            let above = known.iter().rev().take(MOST).position(|frame| frame.is_replaced)?;
            let place = place.wrapping_sub(above).wrapping_sub(1);
            let frame = known.get(place)?;
            let older = place.checked_sub(1).and_then(|older| known.get(older));
            let entered = older.map_or(0, |older| older.python as usize);
            Self { place, wire: frame.wire as usize, python: frame.python as usize, entered }
        };
        (entries.newest() == Some(found.entered)).then_some(found)
    }

    /// Whether it runs all Python frames that there are, of which those before `changed` are as they were.
    #[inline(always)]
    pub(super) fn runs_all(
        &self,
        python: &Python,
        changed: Changed,
        entries: &EvaluationEntries,
        chain: &Chain,
    ) -> bool {
        if changed.reshaped {
            let from = changed.lowest(python);
            from <= self.python
                && python.length() > self.entered
                && from >= self.entered
                && entries.are_as_before(chain, (from, usize::MAX))
        } else {
            self.python == python.length()
        }
    }
}
