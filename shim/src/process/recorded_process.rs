//! Which process is recorded: the child of a vfork runs in its parent's memory, and is another one.
//!
//! Invariant: noted before any hook is installed, anew in a forked child that records, and until recording ends.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::platform::recording_switch;

/// The process that is recorded; another number means a child that only borrows its memory.
static NUMBER: AtomicI32 = AtomicI32::new(0);

/// The process that was recorded last: threads of others have no slots.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Notes the calling process as the recorded one: when recording begins, and in a fork child once it records on its own.
pub(crate) fn note() {
    let process = std::process::id().cast_signed();
    NUMBER.store(process, Ordering::Relaxed);
    LAST.store(process, Ordering::Relaxed);
}

/// Whether the process that was recorded last is another, from which this one was forked.
pub(super) fn is_forked() -> bool {
    ![0, std::process::id().cast_signed()].contains(&LAST.load(Ordering::Relaxed))
}

/// For programs that use `memtrack.h`: whether events of this process are recorded now.
#[unsafe(no_mangle)]
extern "C" fn memtrack_is_recording() -> c_int {
    c_int::from(recording_switch::is_on() && is_this())
}

/// No process is recorded any more.
pub(super) fn forget() {
    NUMBER.store(0, Ordering::Relaxed);
}

/// Whether the calling process is the recorded one.
pub(super) fn is_this() -> bool {
    NUMBER.load(Ordering::Relaxed) == std::process::id().cast_signed()
}
