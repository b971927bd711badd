//! Programs that forbid themselves system calls (seccomp), often on pain of death.
//!
//! What a filter allows is not known here. So from the moment that the program has set one, its children are not
//! connected to the collector, and programs in its place not given this library: both open sockets, which are what filters
//! forbid first. A thread in the strict mode may not even read the processor's clock: it records nothing any more.
//!
//! Invariant: what the program did not forbid itself is recorded as before.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memtrack_transport::layout::stop_reason;

use crate::platform::shared_area;
use crate::recording::thread;

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the program may not do everything. A forked child inherits the answer with the filter.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Acquire)
}

/// Makes a call of prctl, whose first arguments these are.
pub(crate) fn watch(option: c_int, mode: usize, call: impl FnOnce() -> c_int) -> c_int {
    match (option, mode as u32) {
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => strictly(call),
        (libc::PR_SET_SECCOMP, _) => {
            let result = call();
            CONFINED.fetch_or(result == 0, Release);
            result
        }
        _ => call(),
    }
}

fn strictly(call: impl FnOnce() -> c_int) -> c_int {
    let left = thread::leave();
    let result = call();
    if result != 0 {
        thread::come_back(left);
    } else if let Some(area) = shared_area::area() {
        area.control().stop_reason.store(stop_reason::CONFINED, Relaxed);
        CONFINED.store(true, Release);
    }
    result
}
