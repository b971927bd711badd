//! Asks the processor to load memory into its cache before it is needed.
//!
//! Invariant: this changes nothing but the time that later accesses take.
#![allow(unsafe_code)]

/// Loads the cache line in which this item begins, while the program goes on. Without such an item nothing happens.
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses no memory as the program sees it, and the item is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, index);
}
