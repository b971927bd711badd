//! A memory reserve that is released on the first allocation failure.
//!
//! It exists because Rust aborts when an allocation fails: under `ulimit -v` or a small control group, memtrack would
//! end before the recorded program. Invariant: the reserve is released once, at the first failure, and is part of the
//! heap, so that it helps even if the address space cannot grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::AcqRel;

use super::ResourceLimits;

/// Blocks of the reserve, each below malloc's mmap threshold.
const BLOCKS: usize = 16;
const BLOCK: Layout = Layout::new::<[u64; 60 << 7]>();

#[global_allocator]
static ALLOCATOR: ReserveAllocator = ReserveAllocator { reserve: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS] };

/// The system's allocator, with a reserve.
struct ReserveAllocator {
    reserve: [AtomicPtr<u8>; BLOCKS],
}

/// Allocates the reserve: one megabyte. Where the address space is limited, all threads then share one arena of malloc:
/// each further one would take 64 MB of it.
pub(crate) fn keep_reserve() {
    if ResourceLimits::of(0).address_space.is_some() {
        // SAFETY: sets a number of the allocator's own; where it is refused, that stays what it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
    for place in &ALLOCATOR.reserve {
        // SAFETY: the layout has a size.
        let block = unsafe { System.alloc(BLOCK) };
        ALLOCATOR.put(place, block);
    }
    // Leak a block above the reserve, because glibc returns the top of the heap to the system.
    std::mem::forget(Box::new([0_u64; 8]));
}

impl ReserveAllocator {
    /// Stores a block in a slot of the reserve, and frees the previous one.
    fn put(&self, place: &AtomicPtr<u8>, block: *mut u8) {
        let old = place.swap(block, AcqRel);
        if !old.is_null() {
            // SAFETY: only blocks of this layout are in the places, and whoever takes one out frees it.
            unsafe { System.dealloc(old, BLOCK) };
        }
    }

    /// Releases the reserve.
    fn give_up(&self) {
        self.reserve.iter().for_each(|place| self.put(place, ptr::null_mut()));
    }

    /// The second time is for a thread that finds the reserve released by another one, too.
    fn retried(&self, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        let block = allocate();
        if !block.is_null() {
            return block;
        }
        self.give_up();
        allocate()
    }
}

// SAFETY: everything is passed to the system's allocator, with the caller's own layout.
unsafe impl GlobalAlloc for ReserveAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise of a layout with a size.
        self.retried(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise of a layout with a size.
        self.retried(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; a block that could not grow is as it was, so that it may be tried again.
        self.retried(|| unsafe { System.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::ReserveAllocator;
    use std::cell::Cell;
    use std::ptr;
    use std::sync::atomic::AtomicPtr;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn an_allocation_that_failed_is_tried_once_more_without_the_reserve() {
        let allocator = ReserveAllocator { reserve: [const { AtomicPtr::new(ptr::null_mut()) }; super::BLOCKS] };
        // SAFETY: the layout has a size.
        let block = unsafe { std::alloc::GlobalAlloc::alloc(&std::alloc::System, super::BLOCK) };
        allocator.put(&allocator.reserve[0], block);
        let held = Cell::new(Vec::new());
        let fails = || {
            let mut seen = held.take();
            seen.push(!allocator.reserve[0].load(Relaxed).is_null());
            held.set(seen);
            ptr::null_mut()
        };
        assert!(allocator.retried(fails).is_null());
        assert!(allocator.retried(fails).is_null());
        assert_eq!(held.take(), [true, false, false, false]);
    }
}
