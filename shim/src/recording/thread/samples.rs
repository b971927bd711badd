//! Hot path where allocations are sampled: counts each, and records those that are hit as they would be recorded anyway.
//!
//! The counts stand in the slot's shared header, so that they outlive the process; the collector reads them there. A slot's
//! next owner writes those of the one before, which the collector may not have met.
//!
//! The functions for slots where samples are recorded (`hook_macros`, `allocates_sampled` and below) do the common case
//! alone. An `operator new` of the C++ library is left to the malloc beneath unless it is hit, which is decided by the
//! same count.
//!
//! Invariant: every allocation that a hook reports is counted once, sampled or not.

use std::hint::cold_path;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{AllocHead, AllocationCount};
use memtrack_transport::layout::SlotHeader;
use memtrack_transport::segment_chain;

use super::{RecordingThread, StateAccess};
use crate::events::ring;

impl StateAccess<'_> {
    /// Any allocation; the hook ends.
    pub(super) fn alloc_sampling(self, head: AllocHead, address: usize, size: usize) -> usize {
        self.alloc_sampling_here(head, address, size)
    }

    #[inline(always)]
    pub(super) fn alloc_sampling_here(self, head: AllocHead, address: usize, size: usize) -> usize {
        let slot = self.thread.slot;
        if self.thread.counts_and_takes(slot, size) {
            cold_path();
            return self.alloc_sample(head, address, size);
        }
        segment_chain::leave_hook(slot);
        address
    }

    /// An allocation that may be sampled.
    #[cold]
    #[inline(never)]
    fn alloc_sample(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        if !self.take_sample(address, size) {
            segment_chain::leave_hook(self.thread.slot);
            return address;
        }
        let exact = self.state().exact_alloc;
        exact(StateAccess { thread: self.thread, borrow: std::marker::PhantomData }, head, address, size)
    }

    /// Counts an allocation; whether it is sampled.
    pub(super) fn samples(&mut self, address: usize, size: usize) -> bool {
        self.thread.counts_and_takes(self.thread.slot, size) && self.take_sample(address, size)
    }

    /// The bytes up to the next look are allocated: whether the allocation is sampled. Its record follows then.
    fn take_sample(&mut self, address: usize, size: usize) -> bool {
        let RecordingThread { slot, next_hit, .. } = self.thread;
        let allocated = slot.allocated_bytes.load(Relaxed);
        let state = self.state();
        if !state.sampler.is_hit(next_hit.passed(allocated)) {
            next_hit.set(state.sampler.draw(), allocated);
            return false;
        }
        if let Some(mean) = state.sampler.changing_mean() {
            // Of each sample: a lost block of the file then costs no weights.
            state.ring.next_place_and_time();
            state.ring.put(move |encoder, bytes, at| encoder.sample_distance(bytes, at, mean));
        }
        ring::add(&slot.samples, 1);
        next_hit.set(state.sampler.note(address, size), allocated);
        true
    }

    /// The slot has a new owner, or the owner begins anew: writes what was counted before.
    pub(super) fn begin_stretch(&mut self, tid: i32) {
        let RecordingThread { slot, next_hit, .. } = self.thread;
        let [stretch, allocations, bytes] =
            [&slot.stretch, &slot.allocations, &slot.allocated_bytes].map(|word| word.swap(0, Relaxed));
        let before = AllocationCount { stretch, allocations, bytes };
        let state = self.state();
        if allocations > 0 {
            state.ring.put(move |encoder, bytes, at| encoder.counted(bytes, at, &before));
            state.ring.publish();
        }
        let number = state.sampler.begin(tid);
        next_hit.set(state.sampler.draw(), 0);
        slot.stretch.store(number << 32 | u64::from(tid.cast_unsigned()), Relaxed);
    }
}

impl RecordingThread {
    /// Counts an allocation; whether it may be sampled. The slot is this thread's.
    #[inline(always)]
    fn counts_and_takes(&self, slot: &SlotHeader, size: usize) -> bool {
        let allocated = slot.allocated_bytes.load(Relaxed).wrapping_add(size as u64);
        slot.allocated_bytes.store(allocated, Relaxed);
        ring::add(&slot.allocations, 1);
        self.next_hit.takes(size, allocated)
    }

    /// Whether an allocation of this size would not be sampled, nor would one of the size that is made of it.
    #[inline(always)]
    pub(super) fn passes(&self, size: usize) -> bool {
        let allocated = self.slot.allocated_bytes.load(Relaxed).wrapping_add(size as u64);
        // In place of 0 bytes the C++ library asks for 1.
        size != 0 && !self.next_hit.takes(size, allocated)
    }
}
