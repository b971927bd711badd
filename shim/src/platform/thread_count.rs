//! How many threads this process has.
//!
//! Invariant: one system call, no allocation.

use std::mem::MaybeUninit;

/// The number of this process's threads: the links of their directory without its own two. `None`: there is no /proc.
pub(crate) fn threads() -> Option<libc::nlink_t> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // By number, since glibc has the function from 2.33 only.
    let (call, path) = (libc::SYS_newfstatat, c"/proc/self/task".as_ptr());
    // SAFETY: a path that ends in a zero, and room for what is told of it.
    let told = unsafe { libc::syscall(call, libc::AT_FDCWD, path, about.as_mut_ptr(), 0) };
    // SAFETY: it was filled in if the call succeeded.
    (told == 0).then(|| unsafe { about.assume_init() }.st_nlink.saturating_sub(2))
}
