//! Which process is recorded: the child of a vfork runs in its parent's memory, and is another one.
//!
//! Invariant: noted before any hook is installed, and anew in a forked child that records.

use std::sync::atomic::{AtomicI32, Ordering};

/// The process that is recorded; another number means a child that only borrows its memory.
static NUMBER: AtomicI32 = AtomicI32::new(0);

/// Notes the calling process as the recorded one: at start-up, and in a fork child once it records on its own.
pub(crate) fn note() {
    NUMBER.store(std::process::id().cast_signed(), Ordering::Relaxed);
}

/// Whether the calling process is the recorded one.
pub(super) fn is_this() -> bool {
    NUMBER.load(Ordering::Relaxed) == std::process::id().cast_signed()
}
