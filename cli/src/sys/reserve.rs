//! A memory reserve that is released on the first allocation failure.
//!
//! It exists because Rust aborts when an allocation fails: under `ulimit -v` or a small control group, memtrack would
//! end before the recorded program. Invariant: the reserve is released once, at the first failure, and is part of the
//! heap, so that it helps even if the address space cannot grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::AcqRel;

/// Blocks of the reserve, each below malloc's mmap threshold.
const BLOCKS: usize = 16;
const BLOCK: Layout = Layout::new::<[u64; 60 << 7]>();

#[global_allocator]
static ALLOCATOR: ReserveAllocator = ReserveAllocator { reserve: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS] };

/// The system's allocator, with a reserve.
struct ReserveAllocator {
    reserve: [AtomicPtr<u8>; BLOCKS],
}

/// Allocates the reserve: one megabyte.
pub(crate) fn keep_reserve() {
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
    fn put(&self, place: &AtomicPtr<u8>, block: *mut u8) -> bool {
        let old = place.swap(block, AcqRel);
        if !old.is_null() {
            // SAFETY: only blocks of this layout are in the places, and whoever takes one out frees it.
            unsafe { System.dealloc(old, BLOCK) };
        }
        !old.is_null()
    }

    /// Releases the reserve; returns whether there was any.
    fn give_up(&self) -> bool {
        self.reserve.iter().fold(false, |any, place| self.put(place, ptr::null_mut()) | any)
    }

    fn retried(&self, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        let block = allocate();
        if block.is_null() && self.give_up() { allocate() } else { block }
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

    #[test]
    fn an_allocation_that_failed_is_tried_once_more_if_there_was_a_reserve() {
        let allocator = ReserveAllocator { reserve: [const { AtomicPtr::new(ptr::null_mut()) }; super::BLOCKS] };
        let tries = Cell::new(0);
        let fails = || {
            tries.set(tries.get() + 1);
            ptr::null_mut()
        };
        assert!(allocator.retried(fails).is_null());
        assert_eq!(tries.get(), 1);
        // SAFETY: the layout has a size.
        let block = unsafe { std::alloc::GlobalAlloc::alloc(&std::alloc::System, super::BLOCK) };
        allocator.put(&allocator.reserve[0], block);
        assert!(allocator.retried(fails).is_null());
        assert_eq!(tries.get(), 3);
        assert!(!allocator.give_up());
    }
}
