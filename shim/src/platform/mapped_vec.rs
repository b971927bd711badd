//! A vector of plain values in pages of its own.
//!
//! A hook may not allocate from the heap that is measured. Invariant: every element up to the capacity is initialised
//! (zero at first), so slices of it are always valid; nothing is ever given back to the heap.

use crate::platform::own_memory::{self, PAGE, map_zeroed};
use std::ptr::NonNull;

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// Only for types that any bytes, zeros included, make a valid value of and that need no drop.
pub(crate) unsafe trait Zeroable: Copy + Default {}

// SAFETY: an integer.
unsafe impl Zeroable for u8 {}
// SAFETY: an integer.
unsafe impl Zeroable for u32 {}

/// A growable array of plain values.
#[derive(Debug)]
pub(crate) struct MappedVec<T> {
    base: NonNull<T>,
    capacity: usize,
}

impl<T: Zeroable> MappedVec<T> {
    pub(crate) const fn new() -> Self {
        Self { base: NonNull::dangling(), capacity: 0 }
    }

    #[inline]
    pub(crate) const fn as_slice(&self) -> &[T] {
        // SAFETY: `base` points to `capacity` initialised elements, owned by this region (none while it dangles).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.capacity) }
    }

    #[inline]
    pub(crate) const fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and the region is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.capacity) }
    }

    /// The element at `index`, or the zero value beyond the capacity.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> T {
        self.as_slice().get(index).copied().unwrap_or_default()
    }

    /// The elements from `from` on and below `to`, without a look at the capacity.
    ///
    /// # Safety
    /// `from` must not be above `to`, and `to` not above the capacity.
    #[inline(always)]
    pub(crate) unsafe fn between_unchecked(&self, from: usize, to: usize) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { self.as_slice().get_unchecked(from..to) }
    }

    /// So many elements from `from` on, without a look at the capacity.
    ///
    /// # Safety
    /// `from` plus `N` must not be above the capacity.
    #[inline(always)]
    pub(crate) unsafe fn chunk_unchecked_mut<const N: usize>(&mut self, from: usize) -> &mut [T; N] {
        // SAFETY: the caller's promise.
        let first = unsafe { self.base.add(from) };
        // SAFETY: the caller's promise: the elements are initialised, and the region is borrowed mutably.
        unsafe { first.cast().as_mut() }
    }

    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: T) {
        if let Some(element) = self.as_mut_slice().get_mut(index) {
            *element = value;
        }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `count` elements and keeps the present ones. False when there is no memory: nothing has changed.
    #[inline]
    pub(crate) fn grow(&mut self, count: usize) -> bool {
        count <= self.capacity || self.enlarge(count)
    }

    #[cold]
    #[inline(never)]
    fn enlarge(&mut self, count: usize) -> bool {
        let Some(mut larger) = Self::map(count) else { return false };
        if let Some(start) = larger.as_mut_slice().get_mut(..self.capacity) {
            start.copy_from_slice(self.as_slice());
        }
        std::mem::replace(self, larger).release();
        true
    }

    /// A region of at least `count` zeros: a power of two, and at least a page.
    fn map(count: usize) -> Option<Self> {
        let size = count.checked_mul(size_of::<T>())?.checked_next_power_of_two()?.max(PAGE);
        Some(Self { base: map_zeroed(size)?.cast(), capacity: size / size_of::<T>() })
    }

    /// Sets all elements to zero, and gives their memory back to the system; there is room for as many as before.
    pub(crate) fn clear(&mut self) {
        // SAFETY: whole pages of this region alone, in which zeroes are values.
        if self.capacity != 0 && !unsafe { own_memory::give_back(self.base.cast(), self.bytes()) } {
            self.as_mut_slice().fill(T::default());
        }
    }

    /// Nobody needs it any more; its addresses stay unused. (Not a `Drop`: slots live as long as the process.)
    pub(crate) fn release(mut self) {
        self.clear();
    }

    const fn bytes(&self) -> usize {
        self.capacity * size_of::<T>()
    }
}
