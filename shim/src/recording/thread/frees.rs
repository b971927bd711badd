//! Hot path of frees: records one free.
//!
//! As of an allocation's (see [`hot_path`](super::hot_path)), the fast path is straight-line code without calls. A free is
//! recorded without a stack, so there is one function for all programs, and one for those with times.
//!
//! Invariant: the fast path changes nothing before it is certain to be the right one.

use std::hint::cold_path;

use super::{RecordingState, StateAccess};
use crate::events::event_time::EventTime;
use crate::events::order::EventBlock;
use crate::recording::sampling;

/// What came of the fast path of a free.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeStep {
    /// The free is recorded.
    Recorded,
    /// Nothing has been done.
    NotBegun,
}

/// Frees.
impl StateAccess<'_> {
    /// Records a free without its time, if nothing else is to be done.
    #[inline(always)]
    pub(super) fn free_fast(&mut self, address: usize) -> FreeStep {
        let state = self.state();
        if state.ring.is_timed() { FreeStep::NotBegun } else { state.free_usual::<false>(address) }
    }

    /// Records a free that [`StateAccess::free_fast`] has left pending.
    #[inline(always)]
    pub(super) fn free_pending(mut self, address: usize) {
        let state = self.state();
        if !state.ring.is_timed() || state.free_usual::<true>(address) == FreeStep::NotBegun {
            cold_path();
            self.free(address);
        }
    }

    /// Any free of any thread.
    #[inline(never)]
    pub(super) fn free(self, address: usize) {
        self.free_here(address);
    }

    #[inline(always)]
    pub(super) fn free_here(mut self, address: usize) {
        if self.state().ring.is_timed() {
            cold_path();
            return self.free_with_time(address);
        }
        self.state().free_as::<false>(address);
    }

    #[inline(never)]
    fn free_with_time(mut self, address: usize) {
        if sampling::is_on() && !self.state().sampler.frees(address) {
            return;
        }
        self.state().free_as::<true>(address);
    }
}

/// What frees have in common.
impl RecordingState {
    #[inline(always)]
    fn free_usual<const TIMED: bool>(&mut self, address: usize) -> FreeStep {
        let Some(time) = self.ring.time_at_once::<TIMED>() else { return FreeStep::NotBegun };
        if !self.is_usual(EventBlock::new(address, 0)) {
            cold_path();
            return FreeStep::NotBegun;
        }
        let Some((encoder, mut room, at)) = self.ring.room() else { return FreeStep::NotBegun };
        let Some(at) = encoder.free_as(room.bytes(), at, address as u64, time.recorded::<TIMED>()) else {
            return FreeStep::NotBegun;
        };
        self.ring.written(at);
        FreeStep::Recorded
    }

    #[inline(always)]
    fn free_as<const TIMED: bool>(&mut self, address: usize) {
        self.note_finalizing();
        let time = self.ring.next_place::<TIMED>(EventBlock::new(address, 0), EventTime::UNREAD);
        let (address, time) = (address as u64, time.recorded::<TIMED>());
        self.ring.record(move |encoder, bytes, at| encoder.free_as(bytes, at, address, time));
    }
}
