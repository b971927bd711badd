//! The totals of a whole capture.
//!
//! Invariant: `allocations.count` is `deallocations + replaced + discarded + leaked_at_exit.count`: each allocation
//! that was seen ended in one of these ways.

use std::iter::Sum;
use std::ops::AddAssign;

use super::{SizeHistogram, Variance};

/// Bytes and number of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// How exact they are.
    pub variance: Variance,
}

impl Tally {
    /// Adds allocations. Sums stop at `u64::MAX`: only a forged capture gets there.
    pub fn add(&mut self, bytes: u64, count: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(count);
    }

    /// What is left of it without these, which are a part of it.
    #[must_use]
    pub fn less(self, Self { bytes, count, variance }: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(bytes),
            count: self.count.saturating_sub(count),
            variance: self.variance.less(variance),
        }
    }
}

impl Tally {
    /// The 95 % interval of the bytes.
    #[must_use]
    pub fn bytes_range(&self) -> (u64, u64) {
        self.variance.bytes_range(self.bytes)
    }

    /// The 95 % interval of the number, with the small blocks of which there may be many without a sample.
    #[must_use]
    pub fn count_range(&self) -> (u64, u64) {
        self.variance.number_range_of(self.count, self.bytes)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.add(more.bytes, more.count);
        self.variance += more.variance;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

/// A position in the total order and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The number of the event in the total order.
    pub order: u64,
    /// Nanoseconds since recording began.
    pub time_ns: u64,
}

/// The high-water mark: the maximum of live heap bytes, at the first moment they reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Live bytes.
    pub bytes: u64,
    /// Live allocations at that moment.
    pub allocations: u64,
    /// The event that reached it; `None` when nothing of more than 0 bytes was ever allocated.
    pub at: Option<Moment>,
}

/// The figures of a whole capture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Events replayed, of all kinds.
    pub events: u64,
    /// Everything ever allocated: blocks, and mappings that count as heap.
    pub allocations: Tally,
    /// Allocations that ended: freed, or the last part of a mapping unmapped or overlaid.
    pub deallocations: u64,
    /// The high-water mark.
    pub peak: Peak,
    /// Live when finalization began, or at the end where that was not seen.
    pub leaked: Tally,
    /// Live at the end.
    pub leaked_at_exit: Tally,
    /// Freed again at once: see [`View::Temporary`](super::View::Temporary).
    pub temporary: Tally,
    /// How many further allocations a temporary one may outlive.
    pub temporary_threshold: u32,
    /// Allocations by size.
    pub size_histogram: SizeHistogram,
    /// Frees of addresses at which no block was known.
    pub unmatched_frees: u64,
    /// Unmapped ranges in which no mapping was known.
    pub unmatched_unmaps: u64,
    /// Of a forked process, frees of what its parent had allocated.
    pub inherited_frees: u64,
    /// The same for unmapped ranges.
    pub inherited_unmaps: u64,
    /// Of a process that was recorded late, frees of what it had allocated before.
    pub earlier_frees: u64,
    /// The same for unmapped ranges.
    pub earlier_unmaps: u64,
    /// Blocks whose address was allocated again while they were live: their free was not seen.
    pub replaced: u64,
    /// Allocations that disappeared when the process replaced its image.
    pub discarded: u64,
    /// Frees and unmaps taken back because the call failed.
    pub undone: u64,
    /// Events whose stack was cut while recording.
    pub truncated_stacks: u64,
    /// The largest resident memory that is known, in bytes; 0: none is.
    pub rss_peak_bytes: u64,
    /// The resident memory of the last snapshot, in bytes; 0: there is none.
    pub rss_last_bytes: u64,
    /// Mappings by class.
    pub mappings: MappingTotals,
    /// When Python began to finalize.
    pub finalizing: Option<Moment>,
    /// The last time the process began an exec; if events of the same thread follow, it failed.
    pub exec: Option<Moment>,
    /// The end of recording, in nanoseconds since it began; of a recording that goes on the latest time of all events and snapshots.
    pub end_time_ns: u64,
}

impl Totals {
    /// Frees, and unmapped ranges, of what the process had allocated before it was recorded.
    #[must_use]
    pub fn frees_of_earlier_blocks(&self) -> u64 {
        self.earlier_frees.saturating_add(self.earlier_unmaps)
    }

    /// The largest resident memory, in bytes, where it is known.
    #[must_use]
    pub fn resident_peak(&self) -> Option<u64> {
        (self.rss_peak_bytes > 0).then_some(self.rss_peak_bytes)
    }

    /// The resident memory of the last snapshot, in bytes, where there is one.
    #[must_use]
    pub fn resident_last(&self) -> Option<u64> {
        (self.rss_last_bytes > 0).then_some(self.rss_last_bytes)
    }
}

/// Mappings by class. Those of class heap are counted among the allocations, too; the others only here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingTotals {
    /// Private, anonymous, readable or writable.
    pub heap: ClassTotals,
    /// Address space that is only reserved.
    pub reserved: ClassTotals,
    /// Private and backed by a file.
    pub file: ClassTotals,
    /// Shared.
    pub shared: ClassTotals,
}

/// The mappings of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTotals {
    /// Mappings ever made.
    pub count: u64,
    /// Bytes ever mapped.
    pub bytes: u64,
    /// Bytes mapped at the end.
    pub live_bytes: u64,
    /// The most bytes mapped at one moment.
    pub peak_bytes: u64,
}

impl ClassTotals {
    pub(crate) fn map(&mut self, bytes: u64) {
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.grow(bytes);
    }

    /// Adds live bytes without a new mapping: a part of an unmap was undone.
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    pub(crate) fn unmap(&mut self, bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
    }
}
