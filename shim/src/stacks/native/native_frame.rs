//! One frame of native code, as a walk found it and a merge wrote it.
//!
//! Invariant: the all-zero value represents no frame.

use super::rule::FrameState;
use crate::platform::mapped_vec::Zeroable;

/// One frame of native code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NativeFrame {
    pub(super) state: FrameState,
    /// Id of the module, and the offset in it.
    pub(super) code: u32,
    pub(super) instruction: u32,
    /// Frames on the wire, and Python frames among them, up to and with this frame: what the merge made of it.
    pub(super) wire: u32,
    pub(super) python: u32,
    /// How many of the words that are compared belong to it and to older ones.
    pub(super) words: u32,
    /// Python frames stand in its place.
    pub(super) is_replaced: bool,
    /// It or an older frame needs the frame pointer as it is here.
    pub(super) frame_matters: bool,
}

// SAFETY: integers and booleans, of which zero is a value; only ever written whole.
unsafe impl Zeroable for NativeFrame {}

impl NativeFrame {
    /// What the last merge made of it, if Python frames stand in its place.
    pub(super) const fn replaced(&self) -> Replaced {
        let Self { wire, python, state, .. } = *self;
        if self.is_replaced { Replaced { wire, python, sp: state.sp } } else { Replaced::NONE }
    }

    /// Whether unwinding comes to it in this state.
    #[inline(always)]
    pub(super) const fn is_at(&self, state: FrameState) -> bool {
        self.state.sp == state.sp && self.state.pc == state.pc && (self.state.bp == state.bp || !self.frame_matters)
    }

    /// The same, counted otherwise.
    pub(super) const fn with_words(self, words: u32) -> Self {
        Self { words, ..self }
    }
}

/// A frame that a walk has just found, with what its words are made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FoundFrame {
    pub(super) state: FrameState,
    /// The places of the words that lead to the caller's state; 0 where there is none to compare.
    pub(super) back_slot: usize,
    pub(super) frame_slot: usize,
    pub(super) cfa_slot: usize,
    /// Id of the module, and the offset in it.
    pub(super) code: u32,
    pub(super) instruction: u32,
    /// What of the frame pointer its rule does: needs it; leaves it as it is.
    pub(super) uses_frame: bool,
    pub(super) keeps_frame: bool,
}

// SAFETY: integers and booleans, of which zero is a value; only ever written whole.
unsafe impl Zeroable for FoundFrame {}

/// Frames on the wire, and Python frames among them, up to and with a frame in whose place Python frames stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    pub(super) wire: u32,
    pub(super) python: u32,
    /// Of the frame.
    pub(super) sp: usize,
}

impl Replaced {
    /// None do.
    pub(super) const NONE: Self = Self { wire: 0, python: 0, sp: 0 };
}
