//! How often each size of allocation was asked for.
//!
//! The bins are fixed, so that one pass is exact and two captures can be compared bin by bin: 0 bytes, 1-16, and from
//! there one bin for each power of two (17-32, 33-64, ...), upper bound included, because sizes that programs ask for
//! pile up on the powers themselves. Invariant: each allocation is in one bin.

use super::estimate::{SampleWeights, Variance};

/// The number of bins: zero, 1-16, and one for each power from 2^5 to 2^64.
const BINS: usize = 62;
/// The upper bound of the first bin after zero, as a power of two.
const FIRST_BIN_BITS: u32 = 4;

/// Counts of allocations by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeHistogram {
    /// The count of each bin.
    counts: [u64; BINS],
}

/// One bin of the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeBin {
    /// The smallest size in it, in bytes.
    pub min_bytes: u64,
    /// The largest size in it, in bytes.
    pub max_bytes: u64,
    /// The number of allocations.
    pub count: u64,
}

impl SizeBin {
    /// The 95 % interval of the number where it is estimated from samples: as wide as if all had the smallest of the sizes, since
    /// each of these stands for most.
    #[must_use]
    pub fn count_range(&self, weights: SampleWeights) -> (u64, u64) {
        let size = self.min_bytes.max(1);
        let of_one = weights.of(size, 0).0 as f64 / size as f64;
        let miss = of_one - 1.0;
        let variance = self.count as f64 * miss;
        let count = (variance as f32, (variance * miss) as f32);
        let of_samples = Variance { count: count.0, skewed_count: count.1, ..Variance::EXACT };
        let unseen = if self.count == 0 { weights.unseen(size) } else { (0, 0) };
        of_samples.with_unseen(unseen).count_range(self.count)
    }
}

impl Default for SizeHistogram {
    fn default() -> Self {
        Self { counts: [0; BINS] }
    }
}

impl SizeHistogram {
    /// Counts so many allocations.
    #[inline]
    pub(crate) fn add(&mut self, size: u64, number: u64) {
        if let Some(count) = self.counts.get_mut(bin(size)) {
            *count = count.saturating_add(number);
        }
    }

    /// Adds the counts of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count = count.saturating_add(*more));
    }

    /// The bins from the first to the last that is not empty.
    #[must_use]
    pub fn bins(&self) -> Vec<SizeBin> {
        let used = |&index: &usize| self.counts[index] > 0;
        let first = (0..BINS).find(used).unwrap_or(0);
        let end = (0..BINS).rev().find(used).map_or(0, |last| last + 1);
        (first..end).map(|index| self.bin(index)).collect()
    }

    /// The counts of all bins, smallest sizes first: to save the histogram.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The smallest and the largest size of the bin that has this size, in bytes.
    #[must_use]
    pub fn bounds_of(size: u64) -> (u64, u64) {
        bounds(bin(size))
    }

    /// The histogram with these counts; bins that are not given are empty, too many are ignored.
    #[must_use]
    pub fn from_counts(counts: &[u64]) -> Self {
        let mut histogram = Self::default();
        histogram.counts.iter_mut().zip(counts).for_each(|(bin, &count)| *bin = count);
        histogram
    }

    fn bin(&self, index: usize) -> SizeBin {
        let (min_bytes, max_bytes) = bounds(index);
        SizeBin { min_bytes, max_bytes, count: self.counts[index] }
    }
}

#[inline]
fn bin(size: u64) -> usize {
    match size.checked_sub(1) {
        None => 0,
        // The bits of size - 1 are those of the power of two at or above size.
        Some(below) => {
            (u64::BITS - below.leading_zeros()).max(FIRST_BIN_BITS).wrapping_sub(FIRST_BIN_BITS - 1) as usize
        }
    }
}

fn bounds(index: usize) -> (u64, u64) {
    let upper = |index: u32| 1u64 << (index + FIRST_BIN_BITS - 1);
    match u32::try_from(index).unwrap_or(0) {
        0 => (0, 0),
        1 => (1, upper(1)),
        index if index as usize == BINS - 1 => (upper(index - 1) + 1, u64::MAX),
        index => (upper(index - 1) + 1, upper(index)),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::{BINS, SampleWeights, SizeBin, SizeHistogram, bin, bounds};

    #[test]
    fn estimated_numbers_have_intervals_of_the_smallest_size() {
        let weights = SampleWeights::new(NonZeroU64::new(65_536).unwrap());
        let range = |min_bytes, max_bytes, count| SizeBin { min_bytes, max_bytes, count }.count_range(weights);
        // A hundred samples of blocks of 65 bytes, each of which stands for 1,008.
        let (low, high) = range(65, 128, 100_800);
        assert!((75_000..85_000).contains(&low) && (120_000..130_000).contains(&high), "{low} {high}");
        let (low, high) = range(65, 128, 0);
        assert!(low == 0 && (3_000..3_050).contains(&high), "{high}");
        assert_eq!(range(1 << 22, 1 << 23, 7), (7, 7), "always sampled");
    }

    #[test]
    fn bins_meet_without_gap_or_overlap() {
        assert_eq!((bounds(0), bounds(1), bounds(2)), ((0, 0), (1, 16), (17, 32)));
        assert_eq!(bounds(BINS - 1), ((1 << 63) + 1, u64::MAX));
        for index in 0..BINS - 1 {
            assert_eq!(bounds(index).1 + 1, bounds(index + 1).0);
        }
        for index in 0..BINS {
            let (min, max) = bounds(index);
            assert_eq!((bin(min), bin(max)), (index, index));
        }
    }

    #[test]
    fn only_the_used_range_is_shown() {
        let mut histogram = SizeHistogram::default();
        assert!(histogram.bins().is_empty());
        [16, 17, 100, 100].into_iter().for_each(|size| histogram.add(size, 1));
        let bins: Vec<_> = histogram.bins().iter().map(|bin| (bin.min_bytes, bin.max_bytes, bin.count)).collect();
        assert_eq!(bins, [(1, 16, 1), (17, 32, 1), (33, 64, 0), (65, 128, 2)]);
        assert_eq!(SizeHistogram::from_counts(histogram.counts()), histogram);
    }
}
