//! Pages of a loaded object that the loader has protected, made writable for as long as words in them are written.
//!
//! Invariant: what was lifted is put back when the value is dropped.

use std::ffi::c_void;

use crate::platform::loaded_object::Range;

/// Some pages of one object.
#[derive(Debug)]
pub(super) struct Protection {
    pages: Range,
    /// What the pages allow otherwise.
    usual: i32,
    lifted: bool,
}

impl Protection {
    /// Of whole pages that usually allow this.
    pub(super) fn new(pages: Range, usual: i32) -> Self {
        Self { pages, usual, lifted: false }
    }

    /// Whether it is that of these pages.
    pub(super) fn is_of(&self, pages: &Range, usual: i32) -> bool {
        (&self.pages, self.usual) == (pages, usual)
    }

    /// Makes the word at `address` writable if it lies there; false when the system refuses.
    pub(super) fn make_writable(&mut self, address: usize) -> bool {
        if !self.lifted && self.usual & libc::PROT_WRITE == 0 && self.pages.contains(&address) {
            self.lifted = self.set(self.usual | libc::PROT_READ | libc::PROT_WRITE);
            return self.lifted;
        }
        true
    }

    fn set(&self, protection: i32) -> bool {
        // SAFETY: whole pages of one object, which go on allowing what they did; nothing relies on them refusing writes.
        unsafe { libc::mprotect(self.pages.start as *mut c_void, self.pages.len(), protection) == 0 }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if self.lifted {
            self.set(self.usual);
        }
    }
}
