//! What the threads of a sampled recording have counted, of the part of it that a capture has.
//!
//! Counts are sums since a thread began. A capture of a span of a recording has those up to its begin, and they are
//! subtracted; those after its end are left out. Invariant: the order in which counts come makes no difference.

use std::ops::RangeInclusive;

use memtrack_format::record::AllocationCount;
use rustc_hash::FxHashMap;

use crate::event::CountedAllocations;

/// The counts of each stretch.
#[derive(Debug)]
pub(super) struct StretchCounts {
    known: FxHashMap<u64, StretchCount>,
    /// The tickets of the first and the last moment of the capture.
    included: RangeInclusive<u64>,
}

/// The last counts of a stretch: before the first moment, and of all.
#[derive(Clone, Copy, Debug, Default)]
struct StretchCount {
    before: CountedAllocations,
    last: CountedAllocations,
}

impl Default for StretchCounts {
    fn default() -> Self {
        Self { known: FxHashMap::default(), included: 0..=u64::MAX }
    }
}

impl StretchCounts {
    /// Of a capture that has the events between the moments of these tickets.
    pub(super) fn new(included: RangeInclusive<u64>) -> Self {
        Self { included, ..Self::default() }
    }

    /// Notes what a thread has counted up to the moment of this ticket: what its stretch has counted in the capture, as it was
    /// known before and as it is now. `None`: it is not of the capture.
    pub(super) fn note(
        &mut self,
        count: &AllocationCount,
        ticket: u64,
    ) -> Option<(CountedAllocations, CountedAllocations)> {
        if ticket > *self.included.end() {
            return None;
        }
        let known = self.known.entry(count.stretch).or_default();
        let (before, now) = (known.counted(), CountedAllocations { bytes: count.bytes, count: count.allocations });
        known.last = known.last.later(now);
        if ticket <= *self.included.start() {
            known.before = known.before.later(now);
        }
        Some((before, known.counted()))
    }
}

impl StretchCount {
    fn counted(self) -> CountedAllocations {
        self.last.less(self.before)
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::record::AllocationCount;

    use super::StretchCounts;

    /// What a span from ticket 10 to 20 has of these counts of one stretch.
    fn counted(counts: &[(u64, u64)]) -> u64 {
        let mut all = StretchCounts::new(10..=20);
        let mut sum = 0;
        for &(ticket, allocations) in counts {
            let count = AllocationCount { stretch: 7, allocations, bytes: 3 * allocations };
            if let Some((before, now)) = all.note(&count, ticket) {
                assert_eq!((before.bytes, now.bytes), (3 * before.count, 3 * now.count));
                sum = sum - before.count + now.count;
            }
        }
        sum
    }

    #[test]
    fn a_span_has_what_was_counted_in_it_whatever_comes_first() {
        assert_eq!(counted(&[(3, 100), (10, 150), (15, 170), (20, 180), (21, 500)]), 30);
        assert_eq!(counted(&[(20, 180), (15, 170), (10, 150), (3, 100)]), 30);
        assert_eq!((counted(&[(12, 5)]), counted(&[(4, 5)]), counted(&[(21, 5)])), (5, 0, 0));
    }
}
