//! Checks with a system call whether memory is readable.
//!
//! Invariant: nothing is changed, whatever the address, and errno stays as it was.

use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};

/// Whether the page at this address can be read. Asks the system to read a set of signals there, for an operation that does not
/// exist: it reads first. Where a filter forbids to ask, the page counts as one that cannot be read.
pub(crate) fn is_readable(page: usize) -> bool {
    if !seccomp::may(OwnCall::Probe) {
        return false;
    }
    let _errno = Errno::keep();
    // SAFETY: nothing is changed, whatever the address.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, -1, page, 0, 8) };
    // SAFETY: gives the address of this thread's errno, which is always valid.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the errno of this thread can always be read.
    result != 0 && unsafe { place.read() } == libc::EINVAL
}
