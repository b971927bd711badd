//! Whether a file is on a disk, or in memory: of tmpfs (what memfd_create makes, and files of /dev/shm) or of huge pages.
//!
//! Invariant: one system call, no allocation, errno as before; where a filter judges calls, none is made.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::errno::Errno;
use super::seccomp;

/// The file systems whose files are memory (`linux/magic.h`).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x9584_58f6];

/// Whether the open file is on a disk, or on another system; `false`, too, where that is not known.
pub(crate) fn is_on_disk(file: c_int) -> bool {
    if cfg!(miri) || seccomp::has_seccomp_filter() {
        return false;
    }
    let _errno = Errno::keep();
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: room for what is told of the file; a wrong descriptor is refused.
    let told = unsafe { libc::syscall(libc::SYS_fstatfs, file, about.as_mut_ptr()) };
    // SAFETY: it was filled in if the call succeeded.
    told == 0 && !IN_MEMORY.contains(&unsafe { about.assume_init() }.f_type)
}
