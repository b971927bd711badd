//! What is asked before the library that the program carries is written and loaded: whose it will be, and whether it can
//! be mapped.
//!
//! Why apart from `mod.rs`: a program of a system package carries none. Invariant: nothing stays mapped.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The user whose rights this process has.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Maps a page of a file as the loader maps code: refused where the file system is mounted noexec.
///
/// # Errors
/// mmap fails.
pub(crate) fn check_executable_mapping(file: &File) -> io::Result<()> {
    const LENGTH: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
    // SAFETY: the system chooses an address that is free.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just mapped with this length, and nothing refers to it.
    unsafe { libc::munmap(address, LENGTH) };
    Ok(())
}
