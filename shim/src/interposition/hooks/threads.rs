//! Functions that wait for other threads: what is recorded after them is ordered after what those threads recorded.
//!
//! Invariant: the real function is called last, and nothing is left to do when it returns, or if it never does.

use std::ffi::c_int;

use crate::interposition::got::Original;
use crate::recording::thread;

pub(crate) static PTHREAD_BARRIER_WAIT: Original<unsafe extern "C" fn(usize) -> c_int> = Original::new();
pub(crate) static PTHREAD_JOIN: Original<unsafe extern "C" fn(usize, usize) -> c_int> = Original::new();

pub(crate) unsafe extern "C" fn pthread_barrier_wait(barrier: usize) -> c_int {
    thread::synchronize_before_wait();
    // SAFETY: the caller's argument, for the function it meant.
    unsafe { PTHREAD_BARRIER_WAIT.get()(barrier) }
}

/// A thread that is cancelled here is unwound by the C library, which finds nothing to clean up in this frame.
pub(crate) unsafe extern "C" fn pthread_join(thread: usize, result: usize) -> c_int {
    thread::synchronize_before_wait();
    // SAFETY: the caller's arguments, for the function it meant.
    unsafe { PTHREAD_JOIN.get()(thread, result) }
}
