//! The shim's own memory, from mappings and never from the measured heap: for start-up and what a dlopen brings.
//!
//! Where the system refuses a mapping, as at a limit of address space, the request is met from a reserve, and recording
//! stops, as it does where there is no room for another thread's records: a program is not to be ended for want of memory that it did not ask for.
//!
//! Invariant: no hook asks for any. Each request is counted, and a test reads the count before and after a million
//! events.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use dlmalloc::GlobalDlmalloc;
use memtrack_transport::layout::{state, stop_reason};

use super::{recording_switch, shared_area};

/// Bytes of the reserve: what is begun can be ended, as recording in a process with hundreds of libraries.
const RESERVE: usize = 512 << 10;

/// Requests so far. A symbol of the library's, which tests look up by its name.
#[unsafe(no_mangle)]
#[used]
static memtrack_arena_allocations: AtomicU64 = AtomicU64::new(0);
/// The system has refused memory since recording began last.
static WAS_SHORT: AtomicBool = AtomicBool::new(false);
static RESERVED: Reserve = Reserve { bytes: UnsafeCell::new([0; RESERVE]), used: AtomicUsize::new(0) };

/// Memory that is handed out once.
#[repr(C, align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE]>,
    used: AtomicUsize,
}

// SAFETY: each part of the bytes is handed out once, to one caller.
unsafe impl Sync for Reserve {}

impl Reserve {
    /// A part that was not handed out yet; null if there is none.
    fn take(&self, layout: Layout) -> *mut u8 {
        // Pages are aligned to more than what is asked for here.
        let start = |used: usize| used.checked_next_multiple_of(layout.align());
        let end = |used| start(used)?.checked_add(layout.size()).filter(|end| *end <= RESERVE);
        let taken = self.used.fetch_update(Relaxed, Relaxed, end).ok().and_then(start);
        taken
            .filter(|_| layout.align() <= align_of::<Self>())
            .map_or(std::ptr::null_mut(), |start| self.bytes.get().cast::<u8>().wrapping_add(start))
    }

    fn has(&self, place: *mut u8) -> bool {
        place.addr().wrapping_sub(self.bytes.get().addr()) < RESERVE
    }
}

/// Recording begins.
pub(crate) fn forget_shortage() {
    WAS_SHORT.store(false, Relaxed);
}

/// Whether the system has refused memory since.
pub(crate) fn was_short() -> bool {
    WAS_SHORT.load(Relaxed)
}

/// The system has refused memory, or would leave the program next to none. Recording ends, if this process is recorded.
#[cold]
pub(crate) fn note_shortage() {
    WAS_SHORT.store(true, Relaxed);
    if recording_switch::is_on() {
        recording_switch::off();
        if let Some(area) = shared_area::area() {
            let control = area.control();
            // Before the state, which tells readers that there is one; the first reason stands.
            let none = stop_reason::NONE;
            let is_first = control.stop_reason.compare_exchange(none, stop_reason::NO_MEMORY, Relaxed, Relaxed).is_ok();
            // Not over a CLOSED.
            let stops = control.state.compare_exchange(state::RECORDING, state::STOPPED, Release, Relaxed).is_ok();
            if is_first && !stops {
                control.stop_reason.store(none, Relaxed);
            }
        }
    }
}

/// Meets a request that the system refuses.
#[cold]
fn from_reserve(layout: Layout) -> *mut u8 {
    note_shortage();
    RESERVED.take(layout)
}

/// dlmalloc, which counts.
pub(crate) struct CountingArena;

// SAFETY: every call is dlmalloc's own, with the caller's arguments, or concerns memory of the reserve.
unsafe impl GlobalAlloc for CountingArena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        let made = unsafe { GlobalDlmalloc.alloc(layout) };
        if made.is_null() { from_reserve(layout) } else { made }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if !RESERVED.has(place) {
            // SAFETY: the caller's promise: the block is of this arena.
            unsafe { GlobalDlmalloc.dealloc(place, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        let made = unsafe { GlobalDlmalloc.alloc_zeroed(layout) };
        // What is handed out once has not been written to.
        if made.is_null() { from_reserve(layout) } else { made }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        if !RESERVED.has(place) {
            // SAFETY: the caller's promise: the block is of this arena.
            let made = unsafe { GlobalDlmalloc.realloc(place, layout, size) };
            if !made.is_null() {
                return made;
            }
        }
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the caller's promise: the size is not 0.
        let made = unsafe { self.alloc(new) };
        if !made.is_null() {
            // SAFETY: both blocks have as many bytes, and the new one is no part of the old one.
            unsafe { made.copy_from_nonoverlapping(place, layout.size().min(size)) };
            // SAFETY: the caller's promise: the block is of this arena.
            unsafe { self.dealloc(place, layout) };
        }
        made
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{CountingArena, RESERVE, RESERVED, forget_shortage, was_short};
    use std::alloc::{GlobalAlloc, Layout};

    /// What the arena does where the system refuses every mapping; 0: what it should do.
    fn without_address_space() -> i32 {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads a live local.
        if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const none) } != 0 {
            return 2;
        }
        forget_shortage();
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let mut filled = 0_u8;
        while !was_short() {
            filled = filled.wrapping_add(1);
            // SAFETY: the size is not 0.
            let made = unsafe { CountingArena.alloc(layout(40_000)) };
            if made.is_null() {
                return 3;
            }
        }
        // SAFETY: the size is not 0.
        let first = unsafe { CountingArena.alloc_zeroed(layout(40_000)) };
        // SAFETY: a block of that size.
        if !RESERVED.has(first) || unsafe { std::slice::from_raw_parts(first, 40_000) }.iter().any(|byte| *byte != 0) {
            return 4;
        }
        // SAFETY: within the block.
        unsafe { first.write_bytes(7, 40_000) };
        // SAFETY: a block of the arena, of that layout.
        let grown = unsafe { CountingArena.realloc(first, layout(40_000), 60_000) };
        // SAFETY: a block of at least that size.
        if grown.is_null() || unsafe { std::slice::from_raw_parts(grown, 40_000) }.iter().any(|byte| *byte != 7) {
            return 5;
        }
        // SAFETY: a block of the arena, of that layout.
        unsafe { CountingArena.dealloc(grown, layout(60_000)) };
        // SAFETY: the size is not 0.
        if unsafe { CountingArena.alloc(layout(RESERVE)) }.is_null() { 0 } else { 6 }
    }

    #[test]
    fn what_the_system_refuses_comes_from_the_reserve() {
        // SAFETY: the tests' own instance of the allocator; a child may allocate then.
        unsafe { dlmalloc::enable_alloc_after_fork() };
        // SAFETY: the child calls the arena and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = without_address_space();
            // SAFETY: takes a number only.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: writes to a live local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "{status:#x}");
        assert!(!was_short(), "this process had memory");
    }
}
