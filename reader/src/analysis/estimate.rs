//! Estimates from samples: what a sampled allocation stands for, and how exact a sum of such weights is.
//!
//! An allocation of s bytes was sampled with the probability p = 1 - exp(-s / mean), independently of all others. So it
//! stands for 1/p allocations of s bytes, and s/p bytes: the sums are right on the average, whatever the sizes are. The
//! variance of a sum is estimated by the sum of s² (1 - p) / p² over what was sampled. Sums are of whole numbers: a weight
//! is rounded up or down at random, with its fraction as the probability, which keeps the average and adds to the variance.
//!
//! Invariant: a weight depends on the size and the place in the total order only, so what ends takes back what it had added.

use std::num::NonZeroU64;
use std::ops::AddAssign;

use super::{Tally, View};

/// Half a 95 % interval, in standard deviations.
const DEVIATIONS: f64 = 1.96;
/// By how much squared intervals of numbers are wider, in deviations of the estimated variance; found by simulation.
const MIXED: f64 = 1.2;
/// The probability to be sampled from which a block counts as always sampled.
const NEARLY_ALWAYS: f64 = 0.95;
/// Of what has no sample at all, less than this part of the mean distance is there, times the mean, with 95 %: -ln 0.05.
const UNSEEN: f64 = 3.0;
/// So few samples say nothing of the size of blocks that were not sampled; found by simulation.
const FEW_SAMPLES: f64 = 3.0;
/// From this part on that bytes rest on more samples than their number does, sizes are mixed: those of two powers of two have more.
const ONE_SIZE: f64 = 0.1;
/// The least bytes that blocks take.
const LEAST_SIZE: f64 = 16.0;

/// How far sums may be from the truth: variance and third cumulant of estimated bytes and of an estimated number; 0 where
/// they are exact. Single precision, since there is one beside each sum of a report.
/// `unseen_*`: what may be there besides without a sample, where samples cannot show it; no variance, but it makes the same interval wider.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Variance {
    pub(super) bytes: f32,
    pub(super) skewed_bytes: f32,
    pub(super) count: f32,
    pub(super) skewed_count: f32,
    pub(super) unseen_bytes: f32,
    pub(super) unseen_count: f32,
}

// None of the numbers is ever not a number.
impl Eq for Variance {}

impl AddAssign for Variance {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.skewed_bytes += more.skewed_bytes;
        self.count += more.count;
        self.skewed_count += more.skewed_count;
        // It may belong to either part, but not to both.
        self.unseen_bytes = self.unseen_bytes.max(more.unseen_bytes);
        self.unseen_count = self.unseen_count.max(more.unseen_count);
    }
}

impl Variance {
    /// That of what was counted.
    pub const EXACT: Self =
        Self { bytes: 0.0, skewed_bytes: 0.0, count: 0.0, skewed_count: 0.0, unseen_bytes: 0.0, unseen_count: 0.0 };

    /// Bytes and number that may be there without a sample.
    #[must_use]
    pub fn unseen(self) -> [f32; 2] {
        [self.unseen_bytes, self.unseen_count]
    }

    /// Its numbers: variance and third cumulant of the bytes, and of the count.
    #[must_use]
    pub fn numbers(self) -> [f32; 4] {
        [self.bytes, self.skewed_bytes, self.count, self.skewed_count]
    }

    /// With these numbers. What is no variance is 0.
    #[must_use]
    pub fn of_numbers(numbers: [f32; 4]) -> Self {
        let [bytes, skewed_bytes, count, skewed_count] =
            numbers.map(|number| if number.is_finite() { number.max(0.0) } else { 0.0 });
        Self { bytes, skewed_bytes, count, skewed_count, ..Self::EXACT }
    }

    /// With so many more bytes and allocations that may be there without a sample.
    pub(super) fn with_unseen(self, (bytes, count): (u64, u64)) -> Self {
        Self {
            unseen_bytes: self.unseen_bytes.max(bytes as f32),
            unseen_count: self.unseen_count.max(count as f32),
            ..self
        }
    }

    /// Without the allocations that may be there without a sample.
    pub(super) fn without_unseen_count(self) -> Self {
        Self { unseen_count: 0.0, ..self }
    }

    /// Whether some of its samples were taken at this distance, where their mean size is this: these have the largest weights, and
    /// so dominate the variance. Blocks that are nearly always sampled are seen at any distance.
    pub(super) fn has_samples_of(self, weights: SampleWeights, mean_size: u64) -> bool {
        let p = weights.probability(mean_size);
        if p >= NEARLY_ALWAYS {
            return true;
        }
        let of_one = mean_size.max(1) as f64 * (1.0 - p) / p;
        self.bytes > 0.0 && f64::from(self.skewed_bytes / self.bytes) >= of_one / 2.0
    }

    /// That of what is left without a part that has this one: samples are independent.
    #[must_use]
    pub fn less(self, part: Self) -> Self {
        Self {
            bytes: (self.bytes - part.bytes).max(0.0),
            skewed_bytes: (self.skewed_bytes - part.skewed_bytes).max(0.0),
            count: (self.count - part.count).max(0.0),
            skewed_count: (self.skewed_count - part.skewed_count).max(0.0),
            unseen_bytes: self.unseen_bytes,
            unseen_count: self.unseen_count,
        }
    }

    /// With 95 %, at most so many of the smallest blocks of these sums are in a part of them without a sample of any: three times the
    /// number that one sample of such a block stands for, which dominates the variance.
    #[must_use]
    pub fn unseen_of_smallest(self) -> u64 {
        if self.count > 0.0 { (UNSEEN * f64::from(self.skewed_count / self.count)) as u64 } else { 0 }
    }

    /// With 95 %, at most so many small blocks are among these, estimated as so many, of which none was sampled: 0 where they are
    /// exact. Their bytes are bounded, their size is not: the fewer samples the number rests on, as where one small block stands for
    /// most of it, the smaller they may be, down to the least that an allocator gives. Where sizes are mixed, as of a vector that
    /// grows, there may be as many of each smaller power of two.
    pub(super) fn unseen_small(self, estimate: u64, estimated_bytes: u64) -> u64 {
        let (count, bytes) = (f64::from(self.count), f64::from(self.bytes));
        if count <= 0.0 || bytes <= 0.0 || self.skewed_count <= 0.0 {
            return 0;
        }
        let of_one = f64::from(self.skewed_count) / count;
        let size = f64::from(self.skewed_bytes) / bytes / of_one;
        let samples = (estimate as f64).powi(2) / count;
        let unknown = (FEW_SAMPLES / samples).powi(2).min(1.0);
        // The number rests on as many samples as the bytes do if all are of one size, and on fewer if not.
        let mixed = (((estimated_bytes as f64).powi(2) / bytes / samples - 1.0) / ONE_SIZE).clamp(0.0, 1.0);
        let smaller = (size / LEAST_SIZE).max(1.0).powf(unknown).max(1.0 + mixed * size.max(1.0).log2());
        (UNSEEN * of_one * smaller) as u64
    }

    fn scaled(self, factor: f64) -> Self {
        let (square, cube) = ((factor * factor) as f32, (factor * factor * factor) as f32);
        Self {
            bytes: self.bytes * square,
            skewed_bytes: self.skewed_bytes * cube,
            count: self.count * square,
            skewed_count: self.skewed_count * cube,
            unseen_bytes: self.unseen_bytes * factor as f32,
            unseen_count: self.unseen_count * factor as f32,
        }
    }

    /// The 95 % interval of the bytes.
    #[must_use]
    pub fn bytes_range(self, estimate: u64) -> (u64, u64) {
        range(estimate, (self.bytes, self.skewed_bytes), 0.0, self.unseen_bytes)
    }

    /// The 95 % interval of the number.
    #[must_use]
    pub fn count_range(self, estimate: u64) -> (u64, u64) {
        range(estimate, (self.count, self.skewed_count), MIXED, self.unseen_count)
    }
}

/// The 95 % interval of an estimate: every sum from which it is less than so many of the deviations that it would have if
/// that sum were the truth. The variance grows with the sum, by `skewed / variance` for each unit, so the interval reaches
/// further up than down, and holds where samples are few.
///
/// `mixed`: by how many of its own deviations the variance is taken to be larger: small blocks are sampled seldom and stand
/// for many, so where sizes are mixed, a sample without the smallest has both a small estimate and a small variance.
/// `unseen`: what may be there besides, independently.
fn range(estimate: u64, (variance, skewed): (f32, f32), mixed: f64, unseen: f32) -> (u64, u64) {
    let (mut below, mut above) = (0.0, 0.0);
    if variance > 0.0 {
        let (variance, skewed) = (f64::from(variance), f64::from(skewed));
        let of_one = skewed / variance;
        let square = DEVIATIONS * DEVIATIONS * (1.0 + mixed * of_one / variance.sqrt());
        let shift = square * of_one / 2.0;
        above = (square * variance + shift * shift).sqrt() + shift;
        // What is seen at all has a sample, so of one sample half of what it stands for may be chance (the mid-P interval).
        let chance = of_one / 2.0;
        let without = (variance - chance * of_one).max(0.0);
        below = ((square * without + shift * shift).sqrt() - shift + chance).max(0.0).ceil();
    }
    let above = above.hypot(unseen.into()).ceil();
    (estimate.saturating_sub(below as u64), estimate.saturating_add(above as u64))
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

/// With 95 %, at most so many bytes of one kind (of a stack, say) were allocated, or live, of which nothing was sampled.
#[must_use]
pub fn unseen_bytes(sample_bytes: NonZeroU64) -> u64 {
    (sample_bytes.get() as f64 * UNSEEN) as u64
}

/// What sampled allocations stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleWeights {
    mean: f64,
}

impl SampleWeights {
    /// Of samples that are so many bytes apart on the average.
    #[must_use]
    pub fn new(sample_bytes: NonZeroU64) -> Self {
        Self { mean: sample_bytes.get() as f64 }
    }

    /// The probability of an allocation of this size to be sampled.
    fn probability(self, size: u64) -> f64 {
        -(-(size.max(1) as f64) / self.mean).exp_m1()
    }

    /// Bytes and number for which the allocation of this size stands that has this place in the total order.
    #[must_use]
    pub fn of(self, size: u64, order: u64) -> (u64, u64) {
        let p = self.probability(size);
        (rounded(size as f64 / p, mixed(order)), rounded(1.0 / p, mixed(!order)))
    }

    /// Whether a block of this size is nearly always sampled.
    pub(super) fn is_nearly_certain(self, size: u64) -> bool {
        self.probability(size) >= NEARLY_ALWAYS
    }

    /// Its bytes in each half of the samples, which are at twice the distance and independent of each other; 0 where no hit of that
    /// half is in it.
    pub(super) fn halves(self, size: u64, order: u64) -> [u64; 2] {
        let half = Self { mean: self.mean * 2.0 }.probability(size);
        // Of the blocks with a hit of any half.
        let both = half * half / self.probability(size);
        let (uniform, weight) = (uniform(mixed(order.rotate_left(32))), (size as f64 / half).round() as u64);
        match uniform {
            _ if uniform < both => [weight, weight],
            _ if uniform < (1.0 + both) / 2.0 => [weight, 0],
            _ => [0, weight],
        }
    }

    /// The variance that an allocation of this size brings.
    pub(super) fn variance(self, size: u64) -> Variance {
        let p = self.probability(size);
        let miss = (1.0 - p) / p;
        // Of rounding, which has no direction.
        let rounding = |weight: f64| weight.fract() * (1.0 - weight.fract());
        let of = |unit: f64| {
            let variance = unit * unit * miss / p;
            ((variance + rounding(unit / p)) as f32, (variance * unit * miss) as f32)
        };
        let ((bytes, skewed_bytes), (count, skewed_count)) = (of(size as f64), of(1.0));
        Variance { bytes, skewed_bytes, count, skewed_count, ..Variance::EXACT }
    }

    /// The same beside this, of which something may have been sampled: the smallest blocks of it say how many there may be.
    #[must_use]
    pub fn unseen_beside(self, Tally { bytes, count, variance }: Tally) -> (u64, u64) {
        let (unseen, number) = self.unseen(bytes.checked_div(count).unwrap_or(LEAST_SIZE as u64));
        (unseen, number.max(variance.unseen_of_smallest()))
    }

    /// With 95 %, at most so many bytes and allocations in all are there, of which nothing was sampled; the number from
    /// their mean size.
    #[must_use]
    pub fn unseen(self, mean_size: u64) -> (u64, u64) {
        ((self.mean * UNSEEN) as u64, (UNSEEN / self.probability(mean_size)) as u64)
    }
}

/// The weight, or the next whole number.
fn rounded(weight: f64, random: u64) -> u64 {
    (weight.floor() as u64).saturating_add(u64::from(uniform(random) < weight.fract()))
}

/// A number from 0 to 1.
fn uniform(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number that depends on all bits of another (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The variances of a group, by view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewVariances(pub(crate) [Variance; VIEWS]);

/// How many views there are.
pub(super) const VIEWS: usize = 7;

impl ViewVariances {
    /// That of a view.
    #[must_use]
    pub fn of(&self, view: View) -> Variance {
        self.0[place(view)]
    }

    /// Changes those of the views of allocations.
    pub(super) fn change(&mut self, change: impl Fn(View, Variance) -> Variance) {
        const ESTIMATED: [View; 4] = [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Allocated];
        for view in ESTIMATED {
            let variance = &mut self.0[place(view)];
            *variance = change(view, *variance);
        }
    }

    /// The same, with another one of a view.
    #[must_use]
    pub fn with(mut self, view: View, variance: Variance) -> Self {
        self.0[place(view)] = variance;
        self
    }

    pub(super) fn scaled(self, factor: f64) -> Self {
        Self(self.0.map(|variance| variance.scaled(factor)))
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// The place of a view.
pub(super) const fn place(view: View) -> usize {
    match view {
        View::HighWaterMark => 0,
        View::Leaks => 1,
        View::LeaksAtExit => 2,
        View::Temporary => 3,
        View::Allocated => 4,
        View::Pinned => 5,
        View::Objects => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::{SampleWeights, Variance, difference_range, mixed, uniform};
    use crate::analysis::Tally;
    use std::num::NonZeroU64;

    #[test]
    fn weights_are_right_on_the_average() {
        let weights = SampleWeights::new(NonZeroU64::new(1000).unwrap());
        for size in [1_u64, 16, 700, 1000, 4000, 1 << 30] {
            let p = 1.0 - (-(size as f64) / 1000.0).exp();
            let rounds = 20_000;
            let sum: f64 = (0..rounds).map(|order| weights.of(size, order).1 as f64).sum();
            assert!((sum * p / rounds as f64 - 1.0).abs() < 0.01, "{size}");
            assert!((weights.of(size, 7).0 as f64 * p - size as f64).abs() <= 1.0);
        }
        assert_eq!(weights.of(1 << 30, 0), (1 << 30, 1));
        assert_eq!(weights.variance(1 << 30).bytes_range(1 << 30), (1 << 30, 1 << 30));
        assert_eq!(weights.of(0, 3).0, 0);
    }

    /// A sum of blocks that were sampled with random numbers that begin here, with its interval: bytes, then number.
    fn estimated(sizes: &[u64], seed: u64, weights: SampleWeights) -> [(u64, (u64, u64)); 2] {
        let (mut bytes, mut count, mut variance) = (0, 0, Variance::EXACT);
        for (at, &size) in (0..).zip(sizes) {
            let order = mixed(seed) ^ at;
            let uniform = (mixed(order.rotate_left(32)) >> 11) as f64 / (1_u64 << 53) as f64;
            if uniform < weights.probability(size) {
                let weight = weights.of(size, order);
                (bytes, count) = (bytes + weight.0, count + weight.1);
                variance += weights.variance(size);
            }
        }
        [(bytes, variance.bytes_range(bytes)), (count, variance.count_range(count))]
    }

    #[test]
    fn of_a_thousand_runs_about_950_intervals_hold_the_truth() {
        const RUNS: u64 = if cfg!(miri) { 2 } else { 1000 };
        let weights = SampleWeights::new(NonZeroU64::new(64 << 10).unwrap());
        let mixture: Vec<u64> =
            (0..20_000).map(|at| 16 + mixed(at) % 8000).chain([1 << 17, 1 << 20, 1 << 24]).collect();
        // Sites with about 300, 30 and 8 samples, and everything.
        let small = |number: usize| -> Vec<u64> { (0..number as u64).map(|at| 16 + mixed(at) % 2000).collect() };
        for (sizes, bias) in [(mixture, 0.005), (small(19_000), 0.01), (small(1900), 0.03), (small(500), 0.06)] {
            let truth = [sizes.iter().sum::<u64>(), sizes.len() as u64];
            let grown: Vec<u64> = sizes.iter().chain(&sizes[..sizes.len() / 3]).copied().collect();
            let growth = [grown.iter().sum::<u64>() - truth[0], grown.len() as u64 - truth[1]].map(i128::from);
            let (mut sums, mut covered, mut covered_growth) = ([0.0; 2], [0; 2], [0; 2]);
            for seed in 0..RUNS {
                let base = estimated(&sizes, seed, weights);
                let new = estimated(&grown, !seed, weights);
                for at in 0..2 {
                    let (figure, (low, high)) = base[at];
                    sums[at] += figure as f64;
                    covered[at] += u64::from((low..=high).contains(&truth[at]));
                    let (low, high) = difference_range(base[at], new[at]);
                    covered_growth[at] += u64::from((low..=high).contains(&growth[at]));
                }
            }
            if cfg!(miri) {
                continue;
            }
            for at in 0..2 {
                let mean = sums[at] / RUNS as f64 / truth[at] as f64;
                let least = if at == 0 { 930 } else { 925 };
                assert!((least..=980).contains(&covered[at]), "{covered:?} of {}", sizes.len());
                assert!((least..=985).contains(&covered_growth[at]), "{covered_growth:?} of {}", sizes.len());
                assert!((mean - 1.0).abs() < bias, "{mean} of {}", sizes.len());
            }
        }
    }

    /// Most blocks of such a site are small, and few of them are sampled, if any.
    #[test]
    fn numbers_of_blocks_of_very_different_sizes_hold_the_truth() {
        const RUNS: u64 = if cfg!(miri) { 1 } else { 500 };
        const BLOCKS: u64 = 5000;
        let weights = SampleWeights::new(NonZeroU64::new(512 << 10).unwrap());
        let (mut rows, mut covered, mut of_samples) = (0, 0, 0);
        for seed in 0..RUNS {
            let pareto =
                |at: u64| (24.0 * uniform(mixed(mixed(!seed) ^ at)).max(1e-9).powf(-1.0 / 1.1)).min(3e6) as u64;
            let sizes: Vec<u64> = (0..BLOCKS).map(pareto).collect();
            let (mut tally, mut samples) = (Tally::default(), 0);
            for (at, &size) in (0..).zip(&sizes) {
                let order = mixed(seed) ^ at;
                if uniform(mixed(order.rotate_left(32))) < weights.probability(size) {
                    let (bytes, count) = weights.of(size, order);
                    tally += Tally { bytes, count, variance: weights.variance(size) };
                    samples += 1;
                }
            }
            let holds = |(low, high): (u64, u64)| u64::from((low..=high).contains(&BLOCKS));
            if samples > 0 {
                rows += 1;
                covered += holds(tally.count_range());
                of_samples += holds(tally.count_range_of_samples());
            }
        }
        if !cfg!(miri) {
            assert!(covered * 100 >= rows * 93 && of_samples * 100 < rows * 90, "{covered} {of_samples} of {rows}");
        }
        // Those of many samples of one size are hardly wider.
        let mut same = Tally::default();
        (0..30).for_each(|at| {
            let (bytes, count) = weights.of(2000, at);
            same += Tally { bytes, count, variance: weights.variance(2000) };
        });
        let width = |(low, high): (u64, u64)| (high - low) as f64;
        assert!(width(same.count_range()) < 1.1 * width(same.count_range_of_samples()));
    }

    /// The blocks of vectors that grow: of each power of two there are about as many.
    #[test]
    fn numbers_of_blocks_that_double_hold_the_truth() {
        const RUNS: u64 = if cfg!(miri) { 1 } else { 500 };
        let weights = SampleWeights::new(NonZeroU64::new(64 << 10).unwrap());
        let (mut rows, mut covered) = (0, 0);
        for seed in 0..RUNS {
            let vectors = |at: u64| 12.0 + 5.0 * uniform(mixed(mixed(!seed) ^ at));
            let sizes: Vec<u64> = (0..200).flat_map(|at| (2..vectors(at) as u32).map(|power| 1 << power)).collect();
            let mut tally = Tally::default();
            for (at, &size) in (0..).zip(&sizes) {
                let order = mixed(seed) ^ at;
                if uniform(mixed(order.rotate_left(32))) < weights.probability(size) {
                    let (bytes, count) = weights.of(size, order);
                    tally += Tally { bytes, count, variance: weights.variance(size) };
                }
            }
            let (low, high) = tally.count_range();
            rows += 1;
            covered += u64::from((low..=high).contains(&(sizes.len() as u64)));
        }
        assert!(cfg!(miri) || covered * 100 >= rows * 93, "{covered} of {rows}");
    }
}
