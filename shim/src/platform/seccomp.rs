//! Tracks whether the program has installed a seccomp filter, which may kill it on a forbidden call.
//!
//! The shim does not know what a filter allows. So once the program has set one, its children are not connected to the
//! collector, and programs that replace it are not given this library: both open sockets, which filters forbid first.
//!
//! Invariant: what the program still may do is recorded as before.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a filter. A forked child inherits the answer with the filter.
pub(crate) fn has_seccomp_filter() -> bool {
    HAS_FILTER.load(Acquire)
}

/// The program has installed a filter.
pub(crate) fn note_seccomp_filter() {
    HAS_FILTER.store(true, Release);
}
