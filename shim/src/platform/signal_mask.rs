//! Blocks all signals of the calling thread for a time.
//!
//! Invariant: no allocation, and errno may change.

use std::mem::zeroed;
use std::ptr;

/// Calls `call` while no handler of the program can run in this thread, nor in what it clones.
pub(crate) fn with_signals_blocked<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: all zeroes is a valid set.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    let mut before = all;
    // SAFETY: a live local.
    unsafe { libc::sigfillset(&raw mut all) };
    // Not pthread_sigmask, which is of another library before glibc 2.32; on Linux this one is of the calling thread, too.
    // SAFETY: live locals.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
    let result = call();
    // SAFETY: a live local.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
