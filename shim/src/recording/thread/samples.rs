//! Hot path where allocations are sampled: counts each, and records those that are hit as they would be recorded anyway.
//!
//! The counts stand in the slot's shared header, so that they outlive the process; the collector reads them there. A slot's
//! next owner writes those of the one before, which the collector may not have met.
//!
//! Invariant: every allocation that a hook reports is counted once, sampled or not.

use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{AllocHead, AllocationCount};

use super::StateAccess;
use crate::events::ring;

impl StateAccess<'_> {
    /// Any allocation; the hook ends.
    pub(super) fn alloc_sampling(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        self.count(size);
        if self.state().sampler.takes(size) {
            return self.alloc_sample(head, address, size);
        }
        self.leave(address)
    }

    /// An allocation that is sampled.
    #[cold]
    #[inline(never)]
    fn alloc_sample(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        self.take_sample(address, size);
        let exact = self.state().exact_alloc;
        exact(StateAccess { thread: self.thread, borrow: std::marker::PhantomData }, head, address, size)
    }

    /// Counts an allocation; whether it is sampled.
    pub(super) fn samples(&mut self, address: usize, size: usize) -> bool {
        self.count(size);
        let is_sampled = self.state().sampler.takes(size);
        if is_sampled {
            self.take_sample(address, size);
        }
        is_sampled
    }

    /// The allocation whose record follows is sampled.
    fn take_sample(&mut self, address: usize, size: usize) {
        ring::add(&self.thread.slot.samples, 1);
        let state = self.state();
        if let Some(mean) = state.sampler.changing_mean() {
            // Of each sample: a lost block of the file then costs no weights.
            state.ring.next_place_and_time();
            state.ring.put(move |encoder, bytes, at| encoder.sample_distance(bytes, at, mean));
        }
        state.sampler.note(address, size);
    }

    /// The slot has a new owner, or the owner begins anew: writes what was counted before.
    pub(super) fn begin_stretch(&mut self, tid: i32) {
        let slot = self.thread.slot;
        let [stretch, allocations, bytes] =
            [&slot.stretch, &slot.allocations, &slot.allocated_bytes].map(|word| word.swap(0, Relaxed));
        let before = AllocationCount { stretch, allocations, bytes };
        let state = self.state();
        if allocations > 0 {
            state.ring.put(move |encoder, bytes, at| encoder.counted(bytes, at, &before));
            state.ring.publish();
        }
        let number = state.sampler.begin(tid);
        slot.stretch.store(number << 32 | u64::from(tid.cast_unsigned()), Relaxed);
    }

    #[inline(always)]
    fn count(&self, size: usize) {
        let slot = self.thread.slot;
        ring::add(&slot.allocations, 1);
        ring::add(&slot.allocated_bytes, size as u64);
    }
}
