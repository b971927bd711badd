//! Forks that call no handlers: `_Fork`, which signal handlers may call, and system calls by `syscall`.
//!
//! Invariant: their children are not recorded, and are parted from their parent as those of `fork`.

use std::ffi::{c_int, c_long};

use crate::interposition::got::Original;
use crate::platform::{fallible_read, recording_switch};
use crate::recording::parted_memory;

pub(crate) static FORK_AT_ONCE: Original<unsafe extern "C" fn() -> c_int> = Original::new();

/// The numbers of system calls that fork; where there is no `fork`, one of them twice.
#[cfg(target_arch = "x86_64")]
pub(super) const CALLS: [c_long; 3] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const CALLS: [c_long; 3] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_clone];

pub(crate) unsafe extern "C" fn fork_at_once() -> c_int {
    // SAFETY: no arguments.
    parting(|| unsafe { FORK_AT_ONCE.get()() }, |result| result == 0)
}

/// Makes a call that forks, after which a child is to be parted.
pub(super) fn parting<T: Copy>(fork: impl FnOnce() -> T, is_child: impl FnOnce(T) -> bool) -> T {
    parted_memory::before_fork();
    let result = fork();
    if is_child(result) {
        parted_memory::part(true);
    }
    result
}

/// Whether a system call of a recorded process forks a child that goes on where the call returns, with a copy of its parent's memory.
pub(super) fn forks(number: c_long, first: usize, second: usize) -> bool {
    match number {
        _ if !recording_switch::is_on() => false,
        libc::SYS_clone => second == 0 && is_copy(first),
        libc::SYS_clone3 => is_clone3_fork(first, second),
        number => CALLS.contains(&number),
    }
}

const fn is_copy(flags: usize) -> bool {
    flags as c_int & libc::CLONE_VM == 0
}

/// Looks at the `clone_args`, which may not be readable: their first version has 64 bytes.
fn is_clone3_fork(arguments: usize, bytes: usize) -> bool {
    const LEAST: usize = 64;
    const STACK: usize = 40;
    bytes >= LEAST
        && fallible_read::word(arguments).is_some_and(is_copy)
        && fallible_read::word(arguments.wrapping_add(STACK)) == Some(0)
}
