//! The shim's own memory, from mappings and never from the measured heap: for start-up and what a dlopen brings.
//!
//! Invariant: no hook asks for any. Each request is counted, and a test reads the count before and after a million
//! events.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dlmalloc::GlobalDlmalloc;

/// Requests so far. A symbol of the library's, which tests look up by its name.
#[unsafe(no_mangle)]
#[used]
static memtrack_arena_allocations: AtomicU64 = AtomicU64::new(0);

/// dlmalloc, which counts.
pub(crate) struct CountingArena;

// SAFETY: every call is dlmalloc's own, with the caller's arguments.
unsafe impl GlobalAlloc for CountingArena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: the block is of this arena.
        unsafe { GlobalDlmalloc.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        memtrack_arena_allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise: the block is of this arena.
        unsafe { GlobalDlmalloc.realloc(place, layout, size) }
    }
}
