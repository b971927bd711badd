//! What the samples of one process cannot show, by which the intervals of all its call stacks are wider.
//!
//! Invariant: where nothing is missing, intervals are those of the samples alone.

use std::num::NonZeroU64;

use super::estimate::{SampleWeights, Variance};
use crate::event::ThreadId;

/// What samples do not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingGaps {
    /// How many more allocations were counted than estimated, where that is beyond the interval of the estimate: small ones, of which
    /// none was sampled. Each call stack may have them.
    pub unaccounted: u64,
    /// The same of the allocations of each thread, which the call stacks of that thread may have. Of threads without samples nothing
    /// is known, and so nothing is said.
    pub by_thread: Vec<u64>,
    /// The process, whose gaps are none of another one's.
    pub pid: u32,
    /// Where the distance between samples changed while the program ran (`--sample=auto`): the largest one. A call stack with samples
    /// at shorter distances only may have allocated when it was this, and nothing was seen of it.
    pub largest_distance: Option<NonZeroU64>,
}

impl SamplingGaps {
    /// How many allocations have no sample, at least.
    pub(super) fn all_unaccounted(&self) -> u64 {
        self.by_thread.iter().fold(0, |all: u64, of_thread| all.saturating_add(*of_thread)).max(self.unaccounted)
    }

    /// The variance of a sum of a call stack in a thread, with what may be missing in it.
    pub(super) fn of_sum(&self, variance: Variance, (bytes, count): (u64, u64), thread: ThreadId) -> Variance {
        let weights = self.largest_distance.map(SampleWeights::new);
        let mean_size = bytes.checked_div(count).unwrap_or_default();
        let unseen = weights.filter(|weights| count > 0 && !variance.has_samples_of(*weights, mean_size));
        let (bytes, number) = unseen.map_or((0, 0), |weights| weights.unseen(mean_size));
        let of_thread = self.by_thread.get(thread.0 as usize).copied().unwrap_or_default();
        let (missing, of) =
            if of_thread > self.unaccounted { (of_thread, thread.0) } else { (self.unaccounted, u32::MAX) };
        variance.with_unseen((bytes, number)).with_missing(missing, (self.pid, of))
    }
}

#[cfg(test)]
mod tests {
    use super::{SampleWeights, SamplingGaps, ThreadId, Variance};
    use std::num::NonZeroU64;

    fn weights(bytes: u64) -> SampleWeights {
        SampleWeights::new(NonZeroU64::new(bytes).unwrap())
    }

    /// The variance of so many samples of this size.
    fn of_samples(number: u64, size: u64, distance: u64) -> Variance {
        let mut variance = Variance::default();
        (0..number).for_each(|_| variance += weights(distance).variance(size));
        variance
    }

    #[test]
    fn what_was_sampled_at_shorter_distances_only_may_have_more() {
        let gaps = SamplingGaps { largest_distance: NonZeroU64::new(10 << 20), ..SamplingGaps::default() };
        for size in [100_u64, 50_000, 1 << 20, 4 << 20] {
            // Ten samples at the short distance, then three at the long one.
            let (early, late) = (of_samples(10, size, 64 << 10), of_samples(3, size, 10 << 20));
            let mut both = early;
            both += late;
            let bytes = 13 * size;
            let high = |variance: Variance| gaps.of_sum(variance, (bytes, 13), ThreadId(0)).bytes_range(bytes).1;
            assert!(high(early) > 30 << 20, "{size}");
            assert_eq!(high(both), both.bytes_range(bytes).1, "{size}");
        }
    }

    #[test]
    fn blocks_that_are_always_sampled_were_seen_at_any_distance() {
        let gaps = SamplingGaps { largest_distance: NonZeroU64::new(10 << 20), ..SamplingGaps::default() };
        for size in [100_u64 << 20, 1 << 30] {
            let exact = gaps.of_sum(of_samples(1, size, 64 << 10), (size, 1), ThreadId(0));
            assert_eq!((exact.bytes_range(size), exact.count_range(1)), ((size, size), (1, 1)));
        }
    }

    #[test]
    fn unaccounted_allocations_may_be_of_each_stack_and_add_up_once() {
        let gaps = SamplingGaps { unaccounted: 1000, ..SamplingGaps::default() };
        let one = gaps.of_sum(of_samples(10, 100_000, 64 << 10), (1_000_000, 10), ThreadId(0));
        let high = one.count_range(12).1;
        assert!((1012..1030).contains(&high), "{high}");
        let mut both = one;
        both += one;
        assert!((1020..1050).contains(&both.count_range(24).1));
        assert_eq!(one.bytes_range(7), of_samples(10, 100_000, 64 << 10).bytes_range(7));
        assert_eq!(SamplingGaps::default().of_sum(Variance::EXACT, (5, 5), ThreadId(0)), Variance::EXACT);
    }

    #[test]
    fn what_a_thread_has_unaccounted_is_of_its_own_stacks() {
        let gaps = SamplingGaps { by_thread: vec![0, 1000], ..SamplingGaps::default() };
        let sum = of_samples(10, 100_000, 64 << 10);
        let high = |thread| gaps.of_sum(sum, (1_000_000, 10), ThreadId(thread)).count_range(12).1;
        assert_eq!((high(0), high(7)), (sum.count_range(12).1, sum.count_range(12).1));
        assert!((1012..1030).contains(&high(1)) && gaps.all_unaccounted() == 1000);
    }
    #[test]
    fn what_threads_have_unaccounted_adds_up_and_what_one_has_does_not() {
        let gaps = SamplingGaps { by_thread: vec![1000, 2000, 500], ..SamplingGaps::default() };
        let sum = of_samples(10, 100_000, 64 << 10);
        let mut all = Variance::EXACT;
        for thread in [0, 1, 0, 2, 1, 0] {
            all += gaps.of_sum(sum, (1_000_000, 10), ThreadId(thread));
        }
        assert_eq!(all.unseen(), [0.0, 3500.0]);
        let of_process = |pid| SamplingGaps { unaccounted: 700, pid, ..SamplingGaps::default() };
        let mut all = Variance::EXACT;
        for pid in [5, 6, 5, 6] {
            all += of_process(pid).of_sum(sum, (1_000_000, 10), ThreadId(0));
        }
        assert_eq!(all.unseen(), [0.0, 1400.0]);
    }
}
