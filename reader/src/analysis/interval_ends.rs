//! The 95 % intervals of sums of samples.
//!
//! A sum of samples is compound Poisson, or binomial where blocks are as large as samples are apart. Its upper end is every
//! sum from which the estimate is less than so many of the deviations that it would have if that sum were the truth. The
//! variance grows with the sum, by `skewed / variance` for each unit, so the interval reaches further up than down, and holds
//! where samples are few. The lower end is that of the mid-P interval.
//!
//! Rows are shown because they have a sample. So the lower end is that of what has one: a single sample says no more of the
//! number of blocks than that there is one, for of many rows that have less than a sample each, some have one by chance, and
//! just these are shown. What was sampled is there, though: of it, the lower end is not less than its own bytes.
//!
//! Invariant: what is exact is both ends of its interval, but for what may be there without a sample.

use super::Tally;
use super::estimate::{LEAST_SIZE, SampleWeights, UNSEEN, Variance};

/// Half a 95 % interval, in standard deviations.
const DEVIATIONS: f64 = 1.96;
/// By how much squared intervals of numbers of blocks of mixed sizes are wider, in deviations of the estimated variance; found by
/// simulation.
const MIXED: f64 = 1.2;
/// So few samples say nothing of the size of blocks that were not sampled; found by simulation.
const FEW_SAMPLES: f64 = 3.0;
/// From this part on that bytes rest on more samples than their number does, sizes are mixed: those of two powers of two have
/// more.
const ONE_SIZE: f64 = 0.1;
/// By this the lower end is less for the condition that there is a sample, by the number of samples from none on: the mid-P
/// end of a Poisson number that is not 0, in parts of that of any.
const HAS_SAMPLE: [f64; 9] = [0.0, 0.0, 0.29, 0.725, 0.887, 0.95, 0.977, 0.99, 1.0];

/// A sum of samples.
#[derive(Clone, Copy, Debug)]
struct SampledSum {
    estimate: u64,
    variance: f64,
    /// By how much the variance is more for each unit of the sum.
    of_one: f64,
    /// How many samples the sum rests on, at least.
    samples: f64,
    /// How much of it is there for sure.
    seen: f64,
}

impl SampledSum {
    /// `mixed`: by how many of its own deviations the variance is taken to be larger, as small blocks are sampled seldom and
    /// stand for many; `unseen`: what may be there besides, independently.
    fn high(&self, mixed: f64, unseen: f64) -> u64 {
        let mut above = 0.0;
        if self.variance > 0.0 {
            let square = self.square(mixed);
            let shift = square * self.of_one / 2.0;
            above = (square * self.variance + shift * shift).sqrt() + shift;
        }
        self.estimate.saturating_add(above.hypot(unseen).ceil() as u64)
    }

    /// That of the deviations of an end.
    fn square(&self, mixed: f64) -> f64 {
        DEVIATIONS * DEVIATIONS * (1.0 + mixed * self.of_one / self.variance.sqrt())
    }

    fn low(&self, mixed: f64) -> u64 {
        if self.variance <= 0.0 {
            return self.estimate;
        }
        let (square, chance) = (self.square(mixed), self.of_one / 2.0);
        let shift = square * self.of_one / 2.0;
        // Of one sample half of what it stands for may be chance.
        let without = (self.variance - chance * self.of_one).max(0.0);
        let below = ((square * without + shift * shift).sqrt() - shift + chance).max(0.0).ceil();
        let low = self.estimate.saturating_sub(below as u64) as f64;
        ((low * if_shown(self.samples)).max(low.min(self.seen)) as u64).min(self.estimate)
    }

    fn range(&self, mixed: f64, unseen: f32) -> (u64, u64) {
        (self.low(mixed), self.high(mixed, unseen.into()))
    }
}

/// See [`HAS_SAMPLE`].
fn if_shown(samples: f64) -> f64 {
    let most = (HAS_SAMPLE.len() - 1) as f64;
    let (at, part) = (samples.clamp(0.0, most).trunc(), samples.clamp(0.0, most).fract());
    let of = |place: usize| HAS_SAMPLE.get(place).copied().unwrap_or(1.0);
    of(at as usize) * (1.0 - part) + of(at as usize + 1) * part
}

impl Variance {
    /// How many blocks a block stands for that was sampled, without itself: of the smallest, which dominate the variance; 0
    /// where all are exact.
    fn others_of_one(self) -> f64 {
        if self.count > 0.0 { f64::from(self.skewed_count) / f64::from(self.count) } else { 0.0 }
    }

    /// Whether nothing that it is of is an estimate, but for what may be there unseen.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.with_choice().iter().all(|variance| *variance <= 0.0)
    }

    /// The size of the smallest blocks that were sampled, which dominate the variance; `None` where all are exact.
    #[must_use]
    pub fn size_of_smallest(self) -> Option<u64> {
        let of_one = self.others_of_one();
        (of_one > 0.0 && self.bytes > 0.0)
            .then(|| (f64::from(self.skewed_bytes) / f64::from(self.bytes) / of_one) as u64)
    }

    /// The 95 % interval of the bytes.
    #[must_use]
    pub fn bytes_range(self, estimate: u64) -> (u64, u64) {
        let (bytes, others) = (estimate as f64, self.others_of_one());
        let of_one = if self.bytes > 0.0 { f64::from(self.skewed_bytes) / f64::from(self.bytes) } else { 0.0 };
        // What one sample stands for, of which its own bytes are one part of `1 + others`.
        let weight = if others > 0.0 { of_one * (1.0 + others) / others } else { of_one };
        let seen = if others > 0.0 { (bytes - 1.0) / (1.0 + others) } else { 0.0 };
        let samples = if weight > 0.0 { bytes / weight } else { f64::INFINITY };
        SampledSum { estimate, variance: self.with_choice()[0], of_one, samples, seen }.range(0.0, self.unseen_bytes)
    }

    /// The 95 % interval of the number, of blocks of any sizes.
    #[must_use]
    pub fn count_range(self, estimate: u64) -> (u64, u64) {
        self.number_range(estimate, 1.0)
    }

    /// The 95 % interval of the number, with the small blocks of which there may be many without a sample.
    pub(super) fn number_range_of(self, estimate: u64, estimated_bytes: u64) -> (u64, u64) {
        let small = self.unseen_small(estimate, estimated_bytes);
        self.with_unseen((0, small)).number_range(estimate, self.mixed(estimate, estimated_bytes))
    }

    fn number_range(self, estimate: u64, mixed: f64) -> (u64, u64) {
        let (count, of_one) = (estimate as f64, self.others_of_one());
        SampledSum { estimate, variance: self.with_choice()[1], of_one, samples: count / (1.0 + of_one), seen: 1.0 }
            .range(MIXED * mixed, self.unseen()[1])
    }

    /// On how many samples the number rests, if all are of one size.
    fn samples(self, estimate: u64) -> f64 {
        (estimate as f64).powi(2) / f64::from(self.count)
    }

    /// How surely sizes are mixed, from 0 to 1: the number rests on as many samples as the bytes do if all are of one size,
    /// and on fewer if not.
    fn mixed(self, estimate: u64, estimated_bytes: u64) -> f64 {
        if self.count <= 0.0 || self.bytes <= 0.0 || estimate == 0 {
            return 0.0;
        }
        let of_bytes = (estimated_bytes as f64).powi(2) / f64::from(self.bytes);
        ((of_bytes / self.samples(estimate) - 1.0) / ONE_SIZE).clamp(0.0, 1.0)
    }

    /// With 95 %, at most so many small blocks are among these, estimated as so many, of which none was sampled: 0 where they
    /// are exact, or surely of one size. Their bytes are bounded, their size is not: the fewer samples the number rests on, as
    /// where one small block stands for most of it, the smaller they may be, down to the least that an allocator gives. Where
    /// sizes are mixed, as of a vector that grows, there may be as many of each smaller power of two.
    fn unseen_small(self, estimate: u64, estimated_bytes: u64) -> u64 {
        let of_one = self.others_of_one();
        if of_one <= 0.0 || self.bytes <= 0.0 {
            return 0;
        }
        let size = f64::from(self.skewed_bytes) / f64::from(self.bytes) / of_one;
        let unknown = (FEW_SAMPLES / self.samples(estimate)).powi(2).min(1.0);
        let octaves = self.mixed(estimate, estimated_bytes) * size.max(1.0).log2();
        let smaller = (size / LEAST_SIZE).max(1.0).powf(unknown).max(1.0 + octaves);
        (UNSEEN * of_one * smaller) as u64
    }
}

impl SampleWeights {
    /// With 95 %, at most so many bytes and allocations are there without a sample beside this, of which something may have
    /// been sampled: the smallest blocks of it say how many there may be.
    #[must_use]
    pub fn unseen_beside(self, Tally { bytes, count, variance }: Tally) -> (u64, u64) {
        let mean_size = variance.size_of_smallest().or_else(|| bytes.checked_div(count));
        self.unseen(mean_size.unwrap_or(LEAST_SIZE as u64))
    }
}

/// The 95 % interval of the difference of two figures that were estimated independently of each other, of each of which
/// the estimate and its interval are given. From their limits, for these may not be symmetric.
#[must_use]
pub fn difference_range(base: (u64, (u64, u64)), new: (u64, (u64, u64))) -> (i128, i128) {
    let reach = |(estimate, (low, high)): (u64, (u64, u64))| {
        (estimate.saturating_sub(low) as f64, high.saturating_sub(estimate) as f64)
    };
    let ((base_below, base_above), (new_below, new_above)) = (reach(base), reach(new));
    let difference = i128::from(new.0) - i128::from(base.0);
    let below = new_below.hypot(base_above).ceil() as i128;
    let above = new_above.hypot(base_below).ceil() as i128;
    (difference - below, difference + above)
}

#[cfg(test)]
mod tests;
