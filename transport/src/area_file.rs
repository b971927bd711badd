//! The file behind the shared memory: made, and told from others that another process sends or names.
//!
//! Invariant: the length of a file that this module has sealed, or has found to be one of memtrack's, never changes again.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::layout::{SLOT_COUNTS, total_bytes};

/// The maximum number of slots of a file on a disk: 128 MiB.
const MOST_RESERVED: u32 = 64;

/// What the links below /proc/PID/fd say of a memory file of memtrack's.
pub const MEMORY_LINK: &str = "/memfd:memtrack (deleted)";

/// What makes the length of a memory file final.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A new memory file, which is empty.
pub(crate) fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // By number, since glibc has the function from 2.27 only.
    // SAFETY: a NUL-terminated name and valid flags.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"memtrack".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets the length of a file.
pub(crate) fn set_length(file: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's descriptor is open.
    match unsafe { libc::ftruncate(file.as_raw_fd(), bytes.cast_signed() as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the limit of this process permits files of so many bytes.
pub(crate) fn may_have_file_of(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live local.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    got == 0 && limit.rlim_cur >= bytes as libc::rlim_t
}

/// Checks that this is a memory file of memtrack's for so many slots: another process has sent it.
pub(crate) fn check_memory(file: BorrowedFd<'_>, slots: u32) -> io::Result<()> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let is_memory = path.as_os_str() == MEMORY_LINK && SLOT_COUNTS.contains(&slots);
    let is_whole = is_memory && length(file)? == total_bytes(slots) as u64 && is_sealed(file);
    if is_whole { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The length of a file. Takes no descriptor: none may be left.
fn length(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeroes are a valid value.
    let mut facts: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a live local.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut facts) } {
        0 => Ok(facts.st_size.cast_unsigned()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Seals the length of a memory file for good: whoever has mapped it could otherwise be ended by a page that is not there any more.
/// `false`: it may not be sealed, as a file of another maker.
pub(crate) fn seal(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0 }
}

fn is_sealed(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers only.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEALS == SEALS
}

/// Whether this is a memory file of memtrack's that is empty. The process may have told the number of a descriptor which then is
/// that of another file, whose content is the program's.
pub(crate) fn is_empty_memory(file: BorrowedFd<'_>) -> io::Result<bool> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(path.as_os_str() == MEMORY_LINK && length(file)? == 0)
}

/// An unlinked file on a disk. A write to a page for which the disk has no space raises SIGBUS, so the whole file is
/// allocated at once, which limits the number of slots.
pub(crate) fn unlinked_file(dir: &std::path::Path, slots: u32) -> io::Result<OwnedFd> {
    if slots > MOST_RESERVED {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let path = dir.join("shared-memory");
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let bytes = total_bytes(slots).cast_signed() as libc::off_t;
    // SAFETY: the descriptor is open and ours.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(file.into()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{check_memory, memory_file, seal, set_length};
    use crate::layout::total_bytes;
    use std::os::fd::AsFd;

    #[test]
    fn memory_that_its_maker_could_shrink_is_not_taken() {
        let file = memory_file().unwrap();
        set_length(file.as_fd(), total_bytes(8)).unwrap();
        assert!(check_memory(file.as_fd(), 8).is_err());
        assert!(seal(file.as_fd()));
        assert!(check_memory(file.as_fd(), 8).is_ok() && check_memory(file.as_fd(), 64).is_err());
        assert!(set_length(file.as_fd(), 0).is_err() && set_length(file.as_fd(), total_bytes(64)).is_err());
    }
}
