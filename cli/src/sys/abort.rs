//! If memtrack itself aborts after the program has ended, it still exits with the program's status.
//!
//! Rust aborts when an allocation fails; without this the program's exit status would be lost. Invariant: the handler
//! makes one system call.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

static STATUS: AtomicI32 = AtomicI32::new(0);

/// From now on an abort of memtrack exits with this status. Rust has printed the reason before it aborts.
pub(crate) fn end_with(status: u8) {
    STATUS.store(status.into(), Relaxed);
    let handler: extern "C" fn(libc::c_int) = on_abort;
    // SAFETY: the handler does nothing that a handler may not do.
    unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
}

extern "C" fn on_abort(_signal: libc::c_int) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(STATUS.load(Relaxed)) };
}
