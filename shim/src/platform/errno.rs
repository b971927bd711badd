//! The program's `errno`, kept over system calls of ours.
//!
//! Invariant: what a hook does beside calling the original function never shows in `errno`.

/// Puts `errno` back when it goes out of scope.
pub(crate) struct Errno(i32);

impl Errno {
    /// Remembers it.
    pub(crate) fn keep() -> Self {
        // SAFETY: gives the address of this thread's errno, which is always valid.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the errno of this thread can always be read.
        Self(unsafe { place.read() })
    }

    /// What it was.
    pub(crate) fn value(&self) -> i32 {
        self.0
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: gives the address of this thread's errno, which is always valid.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the errno of this thread can always be written.
        unsafe { place.write(self.0) };
    }
}
