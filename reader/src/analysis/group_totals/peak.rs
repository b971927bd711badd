//! The high-water mark while a replay goes on.
//!
//! Where samples are recorded, live bytes are looked at before each sample, and after it only where it stands for little more
//! than itself: see [`SampledPeak`].
//!
//! Invariant: `since_peak` has what has ended since the peak, and nothing else.

use super::GroupTotals;
use crate::analysis::block_weight::peak_weight_of;
use crate::analysis::estimate::{HALVES, Halves};
use crate::analysis::live_block::{LiveBlock, ReleasedBlock};
use crate::analysis::sampled_peak::{OtherMoments, SampledPeak};
use crate::analysis::{Moment, Peak};
use crate::event::Event;

/// What is live at a moment, and of it what each half of the samples stands for; of a process without samples all in each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveSample {
    pub(crate) bytes: u64,
    pub(crate) halves: Halves,
}

/// The moments that the common peak of several processes is corrected by.
#[derive(Clone, Debug, Default)]
pub(super) struct JointMoments {
    pub(super) moments: SampledPeak,
    before: Option<LiveSample>,
    is_settled: bool,
}

impl GroupTotals {
    /// The high-water mark up to now.
    pub(crate) fn peak(&self) -> Peak {
        if self.distances.is_none() {
            return self.totals.peak;
        }
        let Peak { bytes, allocations, at } = self.newest_peak();
        // Not less than what reports say is live, or was when finalization began.
        let least = self.live_bytes.max(self.live_at_finalizing).min(bytes);
        Peak { bytes: bytes.saturating_sub(self.sampled_peak.excess()).max(least), allocations, at }
    }

    /// The same as it is estimated, without a correction.
    pub(super) fn newest_peak(&self) -> Peak {
        if self.is_peak_now() { self.peak_of_now(self.sampled_peak.last) } else { self.totals.peak }
    }

    /// Whether nobody has looked yet at a new peak.
    pub(super) fn is_peak_now(&self) -> bool {
        self.distances.is_some() && self.live_bytes > self.totals.peak.bytes
    }

    /// One more than the order of the last event before the peak; `u64::MAX`: it is now.
    pub(super) fn newest_peak_end(&self) -> u64 {
        if self.is_peak_now() && self.shared_peak.is_none() { u64::MAX } else { self.peak_end }
    }

    fn peak_of_now(&self, at: Moment) -> Peak {
        Peak { bytes: self.live_bytes, allocations: self.live_count, at: Some(at) }
    }

    #[inline]
    pub(super) fn raise_peak<const SUMS_ONLY: bool>(&mut self, event: &Event) {
        if self.live_bytes > self.totals.peak.bytes {
            self.set_peak::<SUMS_ONLY>(Moment { order: event.order, time_ns: event.time_ns });
        }
    }

    #[inline]
    pub(super) fn set_peak<const SUMS_ONLY: bool>(&mut self, at: Moment) {
        self.totals.peak = self.peak_of_now(at);
        if self.shared_peak.is_none() {
            self.since_peak.clear();
            if !SUMS_ONLY {
                self.sampled.forget_since_peak();
            }
            self.peak_end = at.order.saturating_add(1);
        }
    }

    /// An allocation comes.
    #[inline]
    pub(super) fn look_before<const SUMS_ONLY: bool>(&mut self) {
        if !SUMS_ONLY && self.distances.is_some() {
            self.joint.before = self.shared_peak.is_some().then(|| self.live_sample());
            self.look_at_samples();
        }
    }

    /// Finalization begins: a moment as those before samples are.
    pub(super) fn look_at_finalizing(&mut self) {
        if self.distances.is_some() {
            self.look_at_samples();
            self.live_at_finalizing = self.live_bytes;
        }
    }

    fn look_at_samples(&mut self) {
        let is_raised = self.is_peak_now();
        if is_raised {
            self.set_peak::<false>(self.sampled_peak.last);
        }
        self.sampled_peak.look(self.live_bytes, is_raised);
    }

    /// The block was allocated by this event.
    #[inline]
    pub(super) fn raise_peak_by<const SUMS_ONLY: bool>(&mut self, block: &LiveBlock, event: &Event) {
        let Some(distances) = self.distances.as_ref().filter(|_| !SUMS_ONLY) else {
            return self.raise_peak::<SUMS_ONLY>(event);
        };
        let weight = peak_weight_of(distances, &self.figures.groups, block, block.size, true);
        self.each_moment(|moments| moments.allocate(&weight));
        self.joint.is_settled = weight.is_certain;
        self.sampled_peak.last = Moment { order: event.order, time_ns: event.time_ns };
        // After another sample it would be in all of the moments.
        if weight.is_certain {
            self.look_at_samples();
        }
    }

    pub(super) fn end_in_halves(&mut self, block: &LiveBlock, bytes: u64, whole: bool) {
        if let Some(distances) = &self.distances {
            let weight = peak_weight_of(distances, &self.figures.groups, block, bytes, whole);
            let peak_end = self.peak_end;
            self.each_moment(|moments| moments.end((block.group, block.order), &weight, peak_end));
        }
    }

    pub(super) fn restore_in_halves(&mut self, block: &LiveBlock, bytes: u64, whole: bool, ended: &ReleasedBlock) {
        if let Some(distances) = &self.distances {
            let weight = peak_weight_of(distances, &self.figures.groups, block, bytes, whole);
            let peak_end = self.peak_end;
            self.each_moment(|moments| moments.restore((block.group, block.order), &weight, ended.order, peak_end));
        }
    }

    fn each_moment(&mut self, mut change: impl FnMut(&mut SampledPeak)) {
        change(&mut self.sampled_peak);
        if self.shared_peak.is_some() {
            change(&mut self.joint.moments);
        }
    }

    /// What is needed to correct an estimated peak.
    pub(super) fn other_moments(&self) -> Option<OtherMoments> {
        let (groups, peak_end) = (self.figures.groups.len(), self.newest_peak_end());
        let moments = if self.shared_peak.is_some() { &self.joint.moments } else { &self.sampled_peak };
        self.distances.is_some().then(|| moments.other_moments(groups, self.live_bytes, peak_end))
    }

    /// Whether there are samples only.
    pub(crate) fn is_sampled(&self) -> bool {
        self.distances.is_some()
    }

    /// What is live, in all and of each half of the samples.
    pub(crate) fn live_sample(&self) -> LiveSample {
        let halves = if self.is_sampled() { self.sampled_peak.live() } else { [self.live_bytes; HALVES] };
        LiveSample { bytes: self.live_bytes, halves }
    }

    /// What was live before the last event, if that was an allocation.
    pub(crate) fn take_before(&mut self) -> Option<LiveSample> {
        self.joint.before.take()
    }

    /// Whether the last allocation stands for itself, so that the moment right after it may be the peak.
    pub(crate) fn is_settled(&self) -> bool {
        self.joint.is_settled
    }

    /// A half of all processes is at its maximum, after all events before `order`.
    pub(crate) fn mark_half(&mut self, at: usize, order: u64) {
        self.joint.moments.mark_half(at, order);
    }

    /// Sets the common peak of several processes to now, after all events before `order`; `at`: this process raised it.
    pub(crate) fn mark_peak(&mut self, order: u64, at: Option<Moment>) {
        self.shared_peak = Some(at);
        self.since_peak.clear();
        self.sampled.forget_since_peak();
        self.joint.moments.mark_peak();
        self.peak_end = order;
    }

    /// The order of the last event at the peak.
    pub(crate) fn last_at_peak(&self) -> Option<u64> {
        self.peak_end.checked_sub(1)
    }

    /// Takes how much more was live at the peak than it seemed there.
    pub(crate) fn take_restored(&mut self) -> u64 {
        std::mem::take(&mut self.restored_at_peak)
    }
}
