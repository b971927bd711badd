//! Handles of dlopen calls in progress, whose scopes are searched for names that are not in the global scope.
//!
//! Why: new objects see the global scope and that of the handle they were opened with, and nothing else tells which
//! that is. A loader's own description of an object is no substitute: asked for a mere dependency, dlsym crashes.
//! Invariant: a handle stands here only while its dlopen has not returned to the program, so it is open.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mark in the lowest bit of a handle that was opened with RTLD_DEEPBIND.
const DEEP: usize = 1;

static PENDING: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

/// Calls of dlopen with RTLD_DEEPBIND that are not over, in all threads.
static DEEP_OPENINGS: AtomicUsize = AtomicUsize::new(0);

/// A call of dlopen, until it is dropped. Objects come with it before its handle is known: a constructor may open
/// others.
pub(crate) struct DlopenInProgress {
    deep: bool,
}

impl DlopenInProgress {
    /// One with these flags begins.
    pub(crate) fn begin(flags: i32) -> Self {
        let deep = flags & libc::RTLD_DEEPBIND != 0;
        if deep {
            DEEP_OPENINGS.fetch_add(1, Ordering::AcqRel);
        }
        Self { deep }
    }
}

impl Drop for DlopenInProgress {
    fn drop(&mut self) {
        if self.deep {
            DEEP_OPENINGS.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Whether objects may have come that look for names in their own scope first.
pub(super) fn is_any_deep() -> bool {
    DEEP_OPENINGS.load(Ordering::Acquire) != 0
}

/// A handle in whose scope names may be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The loader's handle.
    pub(super) handle: *mut c_void,
    /// Its objects look there first, and in the global scope afterwards.
    pub(super) deep: bool,
}

impl Scope {
    /// The scope of a handle from dlopen with these flags.
    pub(crate) fn opened(handle: *mut c_void, flags: i32) -> Self {
        Self { handle, deep: flags & libc::RTLD_DEEPBIND != 0 }
    }
}

/// Takes its handle out again when it is dropped.
pub(super) struct PendingScope(Option<&'static AtomicUsize>);

impl Drop for PendingScope {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Release);
        }
    }
}

/// Puts a handle in. With more dlopens at once than there are places, it is left out.
pub(super) fn enter(scope: Scope) -> PendingScope {
    let value = scope.handle as usize | usize::from(scope.deep);
    let free = |place: &&AtomicUsize| place.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    PendingScope(PENDING.iter().find(free))
}

/// All handles that stand here now.
pub(super) fn pending() -> Vec<Scope> {
    let values = PENDING.iter().map(|place| place.load(Ordering::Acquire)).filter(|&value| value != 0);
    values.map(|value| Scope { handle: (value & !DEEP) as *mut c_void, deep: value & DEEP != 0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_dlopen_is_known_until_it_is_over() {
        let in_progress = DlopenInProgress::begin(libc::RTLD_DEEPBIND | libc::RTLD_NOW);
        drop(DlopenInProgress::begin(libc::RTLD_NOW));
        assert!(is_any_deep());
        drop(in_progress);
        assert!(!is_any_deep());
    }

    #[test]
    fn a_handle_is_there_until_its_entry_is_dropped() {
        let scope = Scope::opened(0x1000 as *mut c_void, libc::RTLD_DEEPBIND | libc::RTLD_NOW);
        let entry = enter(scope);
        assert!(pending().contains(&scope));
        drop(entry);
        assert!(!pending().contains(&scope));
    }
}
