//! What is remembered of the words that were changed: slots of loaded objects, and others.
//!
//! Invariant: a word stands here only after it was changed, with what stood there before.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::hook::Hook;
use super::protection::Protection;
use crate::platform::loaded_object::Range;

/// A slot that was patched, with the value written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchedSlot {
    /// Where it is.
    pub(super) address: usize,
    /// What it holds.
    pub(super) value: usize,
}

/// What stood in a patched slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedSlot {
    /// Where it is.
    pub(super) address: usize,
    /// What it held: a function, or the stub that binds it at the first call.
    pub(super) before: usize,
    /// What was written there.
    pub(super) hook: &'static Hook,
}

impl SavedSlot {
    /// Writes the hook once more, where a thread that was just binding the slot has written what it found before the
    /// name led to the hook. The object must be loaded still.
    pub(super) fn patch_again(&self, protection: &mut Protection) {
        // SAFETY: an aligned word of an object that is loaded; others read and write it as one word.
        let slot = unsafe { &*(self.address as *const AtomicUsize) };
        let current = slot.load(Ordering::Acquire);
        if current == self.hook.original() && !self.hook.is_target(current) && protection.make_writable(self.address) {
            // Fails when it was changed once more, which is then left.
            let _ = slot.compare_exchange(current, self.hook.slot_target(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// What came of patching one object.
#[derive(Clone, Debug, Default)]
pub(super) struct PatchOutcome {
    /// What stood in the slots that hold a hook.
    pub(super) saved: Vec<SavedSlot>,
    /// One of them, and what it holds.
    pub(super) slot: Option<PatchedSlot>,
    /// Some slot could not be decided on yet: the dlopen that brought the object has still to be followed up.
    pub(super) undecided: bool,
}

impl PatchOutcome {
    /// What stood in the slot at an address, if it was patched.
    pub(super) fn before(&self, address: usize) -> Option<usize> {
        self.saved.iter().find(|slot| slot.address == address).map(|slot| slot.before)
    }
}

/// Puts back the words that were changed, those of the same pages with one change of their protection if they follow one
/// another.
pub(super) fn restore(words: impl Iterator<Item = ChangedWord>) {
    let mut protection = None;
    words.for_each(|word| word.restore(&mut protection));
}

/// A word outside of any slot that was changed.
#[derive(Clone, Debug)]
pub(super) struct ChangedWord {
    /// Where it is.
    pub(super) address: usize,
    pub(super) before: usize,
    pub(super) after: usize,
    /// The pages that were made writable for it, and what they allow otherwise.
    pub(super) pages: Range,
    pub(super) usual: i32,
}

impl ChangedWord {
    /// Puts back what stood there, unless it has been changed again since. The object must be loaded still. `protection` is
    /// that of the word before, and of its pages afterwards.
    fn restore(&self, protection: &mut Option<Protection>) {
        let shared = protection.take().filter(|protection| protection.is_of(&self.pages, self.usual));
        let protection = protection.insert(shared.unwrap_or_else(|| Protection::new(self.pages.clone(), self.usual)));
        // SAFETY: an aligned word of an object that is loaded; others read it as one word.
        let word = unsafe { &*(self.address as *const AtomicUsize) };
        if word.load(Ordering::Acquire) == self.after && protection.make_writable(self.address) {
            // Fails when it was changed just now, which is then left.
            let _ = word.compare_exchange(self.after, self.before, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
