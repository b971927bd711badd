//! What is remembered of the slots that were patched.
//!
//! Invariant: a slot stands here only after a hook was written into it.

/// A slot that was patched, with the value written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchedSlot {
    /// Where it is.
    pub(super) address: usize,
    /// What it holds.
    pub(super) value: usize,
}

/// What came of patching one object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PatchOutcome {
    /// Slots that hold a hook.
    pub(super) count: usize,
    /// One of them.
    pub(super) slot: Option<PatchedSlot>,
    /// Some slot could not be decided on yet: the dlopen that brought the object has still to be followed up.
    pub(super) undecided: bool,
}
