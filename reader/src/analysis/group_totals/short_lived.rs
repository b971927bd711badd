//! Counts blocks that begin and end in one run by their sums.
//!
//! Invariant: the running sums become what they would have become block by block, once
//! [`GroupTotals::ends_after_peak`] was called for what was live at the peak.

use memtrack_format::Allocator;

use super::{GroupKey, GroupTotals};
use crate::analysis::groups::OptionalSum;
use crate::analysis::short_lived_sums::{RoundBlock, ShortLivedGroup, ShortLivedSums, Stretch};
use crate::analysis::{Moment, Peak};
use crate::event::{Event, EventKind};

impl GroupTotals {
    /// Whether nothing but sums of short-lived blocks is asked for.
    pub(crate) fn is_short_lived_summable(&self) -> bool {
        self.is_sums_only() && self.figures.lives.is_none() && self.shared_peak.is_none()
    }

    /// Counts a run of so many events, of which this is the first, but for what is counted by group, stretch and other event.
    pub(crate) fn add_short_lived(&mut self, sums: &ShortLivedSums, first: &Event, events: u64) {
        let totals = &mut self.totals;
        totals.events += events;
        totals.end_time_ns = totals.end_time_ns.max(first.time_ns);
        totals.deallocations = totals.deallocations.saturating_add(sums.blocks);
        totals.size_histogram.merge(&sums.sizes);
    }

    /// Counts the blocks of a group, the first of which begins at this event; the run's events are numbered from `start`.
    pub(crate) fn allocate_short_lived(&mut self, sum: &ShortLivedGroup, event: &Event, start: u64) {
        let group = self.group::<true>(key_of(event));
        self.figures.groups.row_mut(group).allocate(sum.allocated, event.order, event.time_ns);
        // In the same run.
        self.ended(group).into_iter().for_each(|ended| ended.add(sum.allocated.0, sum.allocated.1));
        let (bytes, count) = sum.temporary;
        if count > 0 {
            let order = start.saturating_add(u64::from(sum.first_temporary));
            self.figures.groups.part_mut(group, OptionalSum::Temporary).add(bytes, count, order, event.time_ns);
        }
    }

    /// Counts what a stretch changes, of a run with this first event.
    #[inline]
    pub(crate) fn pass_stretch(&mut self, stretch: &Stretch, first: &Event) {
        let nth = self.count_of_thread(first.thread);
        *nth = nth.wrapping_add(stretch.allocations);
        let bytes = self.live_bytes.wrapping_add_signed(stretch.top.0);
        if stretch.allocations > 0 && bytes > self.totals.peak.bytes {
            let order = first.order.saturating_add(u64::from(stretch.top_at));
            let at = Some(Moment { order, time_ns: first.time_ns });
            self.totals.peak = Peak { bytes, allocations: self.live_count.wrapping_add_signed(stretch.top.1), at };
            self.since_peak.clear();
            self.peak_end = order.saturating_add(1);
        }
        self.live_bytes = self.live_bytes.wrapping_add_signed(stretch.change.0);
        self.live_count = self.live_count.wrapping_add_signed(stretch.change.1);
    }

    /// Counts further rounds of so many events with these blocks, each of which begins and ends once in a round.
    pub(crate) fn repeat(&mut self, blocks: &[RoundBlock], events: u64, rounds: u64) {
        for RoundBlock { allocation, temporary } in blocks {
            let group = self.group::<true>(key_of(allocation));
            let bytes = allocation.size.saturating_mul(rounds);
            self.figures.groups.row_mut(group).allocate((bytes, rounds), allocation.order, allocation.time_ns);
            self.ended(group).into_iter().for_each(|ended| ended.add(bytes, rounds));
            self.totals.size_histogram.add(allocation.size, rounds);
            let nth = self.count_of_thread(allocation.thread);
            *nth = nth.wrapping_add(rounds as u32);
            if *temporary {
                let sum = self.figures.groups.part_mut(group, OptionalSum::Temporary);
                sum.add(bytes, rounds, allocation.order, allocation.time_ns);
            }
        }
        let totals = &mut self.totals;
        totals.events = totals.events.saturating_add(events.saturating_mul(rounds));
        totals.deallocations = totals.deallocations.saturating_add(rounds.saturating_mul(blocks.len() as u64));
    }

    /// How many events after this order the peak came, if it did not come before.
    pub(crate) fn peak_since(&self, order: u64) -> Option<u64> {
        self.peak_end.checked_sub(order)?.checked_sub(1)
    }

    /// A short-lived block with this allocation was live at the peak, and has ended.
    pub(crate) fn ends_after_peak(&mut self, allocation: &Event) {
        let group = self.group::<true>(key_of(allocation));
        self.since_peak.sum(group).add(allocation.size, 1, allocation.order, allocation.time_ns);
    }
}

fn key_of(allocation: &Event) -> GroupKey {
    // It was found by its allocation.
    let EventKind::Alloc(allocator) = allocation.kind else { return key(allocation, Allocator::Malloc) };
    key(allocation, allocator)
}

fn key(event: &Event, allocator: Allocator) -> GroupKey {
    GroupKey { stack: event.stack, thread: event.thread, allocator, selected: true }
}
