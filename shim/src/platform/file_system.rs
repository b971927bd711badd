//! Whether a file is memory (of tmpfs, as memfd_create makes it and files of /dev/shm are, or of huge pages), or another.
//!
//! Invariant: one system call that no file system is asked by, no allocation, errno as before; none where a filter forbids it.

use std::ffi::c_int;

use super::errno::Errno;
use super::seccomp::{self, OwnCall};

/// Whether the open file is on a disk or of another system, and not memory; `false`, too, where that is not known.
pub(crate) fn is_on_disk(file: c_int) -> bool {
    if cfg!(miri) || !seccomp::may(OwnCall::Seals) {
        return false;
    }
    let _errno = Errno::keep();
    // SAFETY: it takes no pointer; a wrong descriptor is refused.
    let seals = unsafe { libc::syscall(libc::SYS_fcntl, file, libc::F_GET_SEALS) };
    // Files in memory alone can be sealed.
    seals < 0 && Errno::keep().value() == libc::EINVAL
}
