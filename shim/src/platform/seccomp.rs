//! Programs that forbid themselves system calls (seccomp), often on pain of death.
//!
//! What a filter allows is not known here. So from the moment that the program has set one, its children are not
//! connected to the collector, and programs in its place not given this library: both open sockets, which are what filters
//! forbid first. A thread in the strict mode may not even read the processor's clock: it records nothing any more.
//!
//! Invariant: what the program did not forbid itself is recorded as before.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the program may not do everything. A forked child inherits the answer with the filter.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Acquire)
}

/// The program has set a filter.
pub(crate) fn confine() {
    CONFINED.store(true, Release);
}
