//! Counts correct and wrong shortcuts, by a full comparison after each (`verify-marks` builds only).
//!
//! It exists only in the build of `scripts/verify-marks`. Invariant: the counts are in a file that all processes share,
//! so none is lost however a process ends.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The counts, in the mapped file; null without one.
static COUNTS: AtomicPtr<[AtomicU64; 2]> = AtomicPtr::new(std::ptr::null_mut());

/// Opens the file: two 64-bit counts, shortcuts that were right and shortcuts that were wrong. Call it at start-up.
pub(crate) fn start(path: &CStr) {
    // SAFETY: a path; the C library need not be set up for this.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file, 0) };
    // SAFETY: the descriptor was just made; when it could not be, nothing is closed.
    unsafe { libc::close(file) };
    if memory != libc::MAP_FAILED {
        COUNTS.store(memory.cast(), Ordering::Relaxed);
    }
}

/// Counts a shortcut.
pub(crate) fn note(right: bool) {
    // SAFETY: null, or a mapping that is never undone, of a file of a page.
    let counts = unsafe { COUNTS.load(Ordering::Relaxed).as_ref() };
    if let Some([rights, wrongs]) = counts {
        let count = if right { rights } else { wrongs };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
