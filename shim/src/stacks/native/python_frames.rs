//! The Python frames of a thread, as the chain reported them, for the merge with native frames.
//!
//! Invariant: `frames[..length]` is the Python stack, root first, and frames below `changed` are as they were at the
//! last merge.

use memtrack_format::record::RawFrame;

use crate::events::ring::Ring;
use crate::events::stack_model::MAX_DEPTH;
use crate::events::stack_model::{CodeObject, StackTop, StackWriter};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::stacks::python::Chain;

/// A frame, in a region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameSlot {
    code: u32,
    instruction: u32,
}

// SAFETY: integers only.
unsafe impl Zeroable for FrameSlot {}

impl FrameSlot {
    /// As it is recorded.
    pub(super) const fn raw(self) -> RawFrame {
        RawFrame { code: self.code, instruction: self.instruction }
    }
}

/// What has changed of the Python stack since the last merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    /// The lowest frame that has.
    pub(super) from: Option<usize>,
    /// More has than where the newest frame stands.
    pub(super) reshaped: bool,
}

impl Changed {
    /// The lowest frame that has changed, or the number of frames.
    #[inline(always)]
    pub(super) const fn lowest(self, python: &Python) -> usize {
        match self.from {
            Some(from) => from,
            None => python.length,
        }
    }
}

/// The Python stack.
#[derive(Debug)]
pub(super) struct Python {
    frames: MappedVec<FrameSlot>,
    length: usize,
    changed: usize,
    /// Frames of the chain, with those that it is too deep for, that have stayed since the entries were read.
    kept: u32,
    /// More has changed than where the newest frame stands.
    reshaped: bool,
    truncated: bool,
}

impl Python {
    pub(super) const fn new() -> Self {
        Self { frames: MappedVec::new(), length: 0, changed: usize::MAX, kept: 0, reshaped: false, truncated: false }
    }

    pub(super) fn reset(&mut self) {
        (self.length, self.changed, self.kept, self.truncated) = (0, 0, 0, false);
    }

    /// As [`Python::reset`], and gives the memory back.
    pub(super) fn begin_again(&mut self) {
        self.reset();
        self.frames.clear();
    }

    /// What has changed since the last merge.
    #[inline(always)]
    pub(super) const fn changed(&self) -> Changed {
        let from = if self.changed == usize::MAX { None } else { Some(self.changed) };
        Changed { from, reshaped: self.reshaped }
    }

    /// Nothing has changed from now on.
    #[inline(always)]
    pub(super) const fn forget_changed(&mut self) {
        (self.changed, self.reshaped) = (usize::MAX, false);
    }

    /// Whether frames of it are left out.
    pub(super) fn is_cut(&self, chain: &Chain) -> bool {
        self.truncated || chain.depth() > MAX_DEPTH
    }

    /// Whether one has.
    #[inline(always)]
    pub(super) const fn has_changed(&self) -> bool {
        self.changed != usize::MAX
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    pub(super) const fn truncated(&self) -> bool {
        self.truncated
    }

    pub(super) fn frame(&self, index: usize) -> RawFrame {
        self.frames.get(index).raw()
    }

    /// The frames from the one at `from` on.
    #[inline(always)]
    pub(super) fn frames_from(&self, from: usize) -> &[FrameSlot] {
        self.frames.as_slice().get(from..self.length).unwrap_or_default()
    }

    /// From which frame of the chain on its entries have to be read again, `changed` being the first one that is new in
    /// a stack that is not cut; from now on none has.
    pub(super) fn take_entries_from(&mut self, changed: usize, depth: u32) -> usize {
        let kept = std::mem::replace(&mut self.kept, u32::MAX).min(depth);
        // The newest of these may have moved on, to a call that entered another loop.
        if depth > MAX_DEPTH { kept.saturating_sub(1) as usize } else { changed }
    }

    fn touch(&mut self, index: usize) {
        self.changed = self.changed.min(index);
    }
}

/// Takes the Python walker's changes; code objects go on to the ring.
pub(super) struct PythonFrameRecorder<'a> {
    pub(super) python: &'a mut Python,
    pub(super) ring: &'a mut Ring,
}

impl StackWriter for PythonFrameRecorder<'_> {
    #[inline]
    fn keeps(&mut self, count: u32) {
        self.python.kept = self.python.kept.min(count);
    }

    #[inline]
    fn pop(&mut self, count: u32) {
        self.python.reshaped = true;
        self.python.length = self.python.length.saturating_sub(count as usize);
        self.python.touch(self.python.length);
    }

    #[inline]
    fn push(&mut self, code: u32, instruction: u32) {
        self.python.reshaped = true;
        let place = self.python.length;
        if self.python.frames.grow(place.wrapping_add(1)) {
            self.python.frames.set(place, FrameSlot { code, instruction });
            self.python.length = place.wrapping_add(1);
            self.python.touch(place);
        }
    }

    #[inline]
    fn move_top(&mut self, instruction: u32) {
        if let Some(place) = self.python.length.checked_sub(1) {
            self.python.frames.set(place, FrameSlot { instruction, ..self.python.frames.get(place) });
            self.python.touch(place);
        }
    }

    #[inline]
    fn replace_top<const N: usize>(&mut self, _number: u32, top: &mut StackTop<N>) {
        self.pop((self.python.length as u32).saturating_sub(top.below));
        top.frames().iter().for_each(|frame| self.push(frame.code, frame.instruction));
    }

    fn set_truncated(&mut self, truncated: bool) {
        (self.python.truncated, self.python.reshaped) = (truncated, true);
        self.python.touch(self.python.length);
    }

    fn compared_full(&mut self, changed: bool) {
        self.ring.compared_full(changed);
    }

    fn now(&self) -> u64 {
        self.ring.now()
    }

    fn compared_full_since(&mut self, begun: u64) {
        self.ring.compared_full_since(begun);
    }

    fn define_code(&mut self, id: u32, code: &CodeObject<'_>) {
        self.ring.define_code(id, code);
    }
}
