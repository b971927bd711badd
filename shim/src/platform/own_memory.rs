//! Memory of memtrack's own for the state of threads.
//!
//! Who no longer needs what it holds gives its pages back; the addresses stay with whoever has them.

use std::ptr::NonNull;

use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};

/// What memory is counted in.
pub(crate) const PAGE: usize = 4096;
/// Memory for pages that are used a few at a time: they count when they are.
const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | NO_RESERVE;
/// Miri knows no other flags.
const NO_RESERVE: libc::c_int = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

/// So many zeroed bytes at the start of a page, in a mapping of their own.
pub(crate) fn map_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    if !seccomp::may(OwnCall::Map) {
        return None;
    }
    let _errno = Errno::keep();
    // SAFETY: a new private mapping touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, FLAGS, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// Gives a mapping back with its addresses.
///
/// # Safety
/// [`map_zeroed`] made it, with as many bytes, and nobody uses it any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    let _errno = Errno::keep();
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

/// Gives pages back that were mapped here: they are zeroes again. `false`: that is not possible, and nothing has changed.
///
/// # Safety
/// Nobody else uses these pages, and to their owner zeroes are as good as what they hold.
pub(crate) unsafe fn give_back(start: NonNull<u8>, bytes: usize) -> bool {
    // Miri does not know the call.
    if cfg!(miri) || !seccomp::may(OwnCall::Advise) {
        return false;
    }
    let _errno = Errno::keep();
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// Gives back the whole pages of a part of such memory.
///
/// # Safety
/// As of [`give_back`].
pub(crate) unsafe fn give_back_within(start: NonNull<u8>, bytes: usize) {
    let skipped = start.addr().get().wrapping_neg() % PAGE;
    let whole = bytes.saturating_sub(skipped) / PAGE * PAGE;
    if whole != 0 {
        // SAFETY: within the part.
        let first = unsafe { start.add(skipped) };
        // SAFETY: the caller's promise.
        unsafe { give_back(first, whole) };
    }
}
