//! A memory reserve that is released on the first allocation failure.
//!
//! It exists because Rust aborts when an allocation fails: under `ulimit -v` or a small control group, memtrack would
//! end before the recorded program. Invariant: the reserve is released once, at the first failure, and is part of the
//! heap, so that it helps even if the address space cannot grow.
//!
//! Large tables of reports get the processor's large pages, if the system has any to spare: each access to a random place of
//! a gigabyte would miss the cache of page addresses, too, which costs as much as the access.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use super::ResourceLimits;

/// Blocks of the reserve, each below malloc's mmap threshold.
const BLOCKS: usize = 16;
const BLOCK: Layout = Layout::new::<[u64; 60 << 7]>();

#[global_allocator]
static ALLOCATOR: ReserveAllocator = ReserveAllocator::new();

/// The system's allocator, with a reserve.
struct ReserveAllocator {
    reserve: [AtomicPtr<u8>; BLOCKS],
    /// Whether blocks of [`LARGE`] bytes get large pages.
    large_pages: AtomicBool,
}

/// Size from which a block gets large pages. Those are two megabytes each, whose first access takes as long as that of a
/// hundred small ones.
const LARGE: usize = 16 << 20;
const LARGE_PAGE: usize = 2 << 20;

/// From now on large blocks get large pages.
pub(super) fn use_large_pages() {
    ALLOCATOR.large_pages.store(true, Relaxed);
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
    const fn new() -> Self {
        Self { reserve: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS], large_pages: AtomicBool::new(false) }
    }

    /// The layout of a block that gets large pages; `None`: it gets small ones.
    #[inline]
    fn large_layout(&self, size: usize) -> Option<Layout> {
        let is_large = size >= LARGE && self.large_pages.load(Relaxed);
        is_large.then(|| Layout::from_size_align(size, LARGE_PAGE).ok()).flatten()
    }

    /// Allocates a block with this layout, for which it asks for large pages.
    #[cold]
    fn alloc_large(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout has a size.
        let block = self.retried(|| unsafe { System.alloc(layout) });
        if !block.is_null() {
            let whole_pages = layout.size() / LARGE_PAGE * LARGE_PAGE;
            // SAFETY: the pages belong to the block alone, and what is in them is not changed.
            unsafe { libc::madvise(block.cast(), whole_pages, libc::MADV_HUGEPAGE) };
        }
        block
    }

    /// Stores a block in a slot of the reserve, and frees the previous one.
    fn put(&self, place: &AtomicPtr<u8>, block: *mut u8) {
        let old = place.swap(block, AcqRel);
        if !old.is_null() {
            // SAFETY: only blocks of this layout are in the places, and whoever takes one out frees it.
            unsafe { System.dealloc(old, BLOCK) };
        }
    }

    /// Releases the reserve, and lets threads that have no arena of malloc share those of others: each new one would take
    /// 64 MB of the address space.
    fn give_up(&self) {
        // SAFETY: sets a number of the allocator's own; where it is refused, that stays what it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
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
        if let Some(large) = self.large_layout(layout.size()) {
            return self.alloc_large(large);
        }
        // SAFETY: the caller's promise of a layout with a size.
        self.retried(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise of a layout with a size.
        self.retried(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The system's allocator copies aligned blocks, too; others it may move without.
        if let Some(large) = self.large_layout(size).filter(|_| layout.align() > align_of::<u128>()) {
            let grown = self.alloc_large(large);
            if !grown.is_null() {
                // SAFETY: both blocks have so many bytes, and the second is a new one.
                unsafe { ptr::copy_nonoverlapping(block, grown, layout.size().min(size)) };
                // SAFETY: the caller's promise; from here on the block is the new one.
                unsafe { System.dealloc(block, layout) };
            }
            return grown;
        }
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
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn an_allocation_that_failed_is_tried_once_more_without_the_reserve() {
        let allocator = ReserveAllocator::new();
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
