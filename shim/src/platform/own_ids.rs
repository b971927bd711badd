//! The system's ids of the calling thread and its process, also where a filter forbids to ask for them.
//!
//! Invariant: no call is made that a known filter forbids; where it does, the ids are those of a recorded process, which is the
//! only one that goes on recording under a filter.

use std::sync::atomic::Ordering::Relaxed;

use super::seccomp::{self, OwnCall};
use super::shared_area;

/// The calling thread's id.
pub(crate) fn thread_id() -> i32 {
    if !seccomp::may(OwnCall::ThreadId) {
        // SAFETY: no arguments, cannot fail.
        let own = unsafe { libc::pthread_self() };
        return id_of(own).unwrap_or_else(process_id);
    }
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// The id of the process, as it sees it itself.
pub(crate) fn process_id() -> i32 {
    if !seccomp::may(OwnCall::ProcessId) {
        return shared_area::area().map_or(0, |area| area.control().pid.load(Relaxed));
    }
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getpid() }
}

/// The id of a thread of the C library's, out of the number of its processor clock (`!tid << 3 | 6`), which is public. No
/// system call is made.
pub(crate) fn id_of(thread: libc::pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: a thread that the caller can name, and a place to store its clock.
    let error = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
    (error == 0 && clock & 7 == 6).then_some(!(clock >> 3))
}

#[cfg(test)]
mod tests {
    use super::id_of;

    #[test]
    fn a_threads_id_is_read_from_its_clock() {
        // SAFETY: no preconditions.
        let handle = unsafe { libc::pthread_self() };
        // SAFETY: no preconditions.
        let expected = unsafe { libc::gettid() };
        assert_eq!(id_of(handle), Some(expected));
    }
}
