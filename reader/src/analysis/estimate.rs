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

use super::View;
use super::peak_moves::{MOMENTS, PeakMoves};

/// The probability to be sampled from which a block counts as always sampled.
const NEARLY_ALWAYS: f64 = 0.95;
/// Of what has no sample at all, less than this part of the mean distance is there, times the mean, with 95 %: -ln 0.05.
pub(super) const UNSEEN: f64 = 3.0;
/// Parts of sums in single precision that are no more than what was rounded in them.
const ROUNDED: f32 = 1e-5;
/// The least bytes that blocks take.
pub(super) const LEAST_SIZE: f64 = 16.0;

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
    /// How many allocations have no sample, of which any may be among these, and of which threads they are: a bit for each.
    pub(super) missing: f32,
    pub(super) missing_of: u32,
    /// Of the first four, what another capture of the same recording has the same samples of: see
    /// [`share_samples`](super::share_samples).
    pub(super) shared: [f32; 4],
    /// Of a sum of the peak, how it differs at other moments that may have been it. Nothing in all other sums, which are added up
    /// by the same code.
    pub(super) moves: PeakMoves,
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
        self.add_missing(more);
        self.shared.iter_mut().zip(more.shared).for_each(|(shared, more)| *shared += more);
        self.moves += more.moves;
    }
}

impl Variance {
    /// That of what was counted.
    pub const EXACT: Self = Self {
        bytes: 0.0,
        skewed_bytes: 0.0,
        count: 0.0,
        skewed_count: 0.0,
        unseen_bytes: 0.0,
        unseen_count: 0.0,
        missing: 0.0,
        missing_of: 0,
        shared: [0.0; 4],
        moves: PeakMoves::NONE,
    };

    /// Bytes and number that may be there without a sample.
    #[must_use]
    pub fn unseen(self) -> [f32; 2] {
        [self.unseen_bytes, self.unseen_count.max(self.missing)]
    }

    /// What may be there without a sample, to be added up elsewhere: bytes, number, and how many allocations are missing of which
    /// threads.
    #[must_use]
    pub fn unseen_parts(self) -> ([f32; 2], (f32, u32)) {
        ([self.unseen_bytes, self.unseen_count], (self.missing, self.missing_of))
    }

    /// What one thread has is missing once, however many of its sums have room for it; what another has is missing besides.
    fn add_missing(&mut self, more: Self) {
        let others = more.missing_of & !self.missing_of;
        // Of some threads that are new and some that are not, their part is not known.
        let part = f64::from(others.count_ones()) / f64::from(more.missing_of.count_ones().max(1));
        self.missing = (self.missing + more.missing * part as f32).max(more.missing);
        self.missing_of |= more.missing_of;
    }

    /// Of a sum of the peak that differs by this at other moments that may have been it.
    pub(super) fn with_moves(self, moves: PeakMoves) -> Self {
        Self { moves, ..self }
    }

    /// Of a sum of the peak that was nothing at the other moments.
    pub(crate) fn ended_before(self, bytes: u64, count: u64) -> Self {
        self.with_moves(self.moves.of_ended(bytes, count))
    }

    /// Of a sum of the peak from which so many bytes were taken.
    pub(crate) fn after_lowering(self, bytes: u64) -> Self {
        self.with_moves(self.moves.after_lowering(bytes))
    }

    /// That of the bytes, as far as samples have made it, without the choice of a moment.
    pub(crate) fn of_samples(self) -> f64 {
        self.bytes.into()
    }

    /// The variances of the bytes and of the number, with the choice of the moment. Of blocks that were sampled, the number is as much
    /// less exact as the bytes are.
    pub(super) fn with_choice(self) -> [f64; 2] {
        let (bytes, count, more) = (f64::from(self.bytes), f64::from(self.count), self.moves.of_bytes());
        let factor = if bytes > 0.0 { 1.0 + more / bytes } else { 1.0 };
        [bytes + more, count * factor + self.moves.of_count()]
    }

    /// How the sum differs at other moments that may have been the peak: [`numbers`](Self::numbers) have that already, for a sum of
    /// its own; those of several add up with their signs.
    #[must_use]
    pub fn move_numbers(self) -> [f32; MOMENTS + 3] {
        self.moves.numbers()
    }

    /// With so many more allocations that have no sample, of this thread of a process.
    pub(super) fn with_missing(self, count: u64, (pid, thread): (u32, u32)) -> Self {
        let bit = mixed(pid.into()).wrapping_add(thread.into()) % u64::from(u32::BITS);
        if count == 0 { self } else { Self { missing: count as f32, missing_of: 1 << bit, ..self } }
    }

    /// Its numbers: variance and third cumulant of the bytes, and of the count; of a peak with the choice of its moment.
    #[must_use]
    pub fn numbers(self) -> [f32; 4] {
        let [bytes, count] = self.with_choice();
        // Samples stand for as much each as before.
        let skewed = |skewed: f32, old: f32, new: f64| {
            if old > 0.0 { (f64::from(skewed) * (new / f64::from(old))) as f32 } else { skewed }
        };
        let skewed_bytes = skewed(self.skewed_bytes, self.bytes, bytes);
        [bytes as f32, skewed_bytes, count as f32, skewed(self.skewed_count, self.count, count)]
    }

    /// The same of the samples alone.
    #[must_use]
    pub fn sample_numbers(self) -> [f32; 4] {
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
    #[cfg(test)]
    pub(super) fn without_unseen_count(self) -> Self {
        Self { unseen_count: 0.0, missing: 0.0, ..self }
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
        let mut moves = self.moves;
        moves -= part.moves;
        let mut shared = self.shared;
        shared.iter_mut().zip(part.shared).for_each(|(shared, part)| *shared = (*shared - part).max(0.0));
        Self {
            shared,
            bytes: (self.bytes - part.bytes).max(0.0),
            skewed_bytes: (self.skewed_bytes - part.skewed_bytes).max(0.0),
            count: (self.count - part.count).max(0.0),
            skewed_count: (self.skewed_count - part.skewed_count).max(0.0),
            moves,
            ..self
        }
    }

    /// With these parts of its samples shared.
    pub(super) fn sharing(self, parts: [f32; 4]) -> Self {
        let mut shared = self.sample_numbers();
        shared.iter_mut().zip(parts).for_each(|(number, part)| *number *= part);
        Self { shared, ..self }
    }

    /// Without what is shared: that of a difference from the other capture, as far as this one makes it.
    #[must_use]
    pub fn unshared(self) -> Self {
        let mut numbers = self.sample_numbers();
        for (number, shared) in numbers.iter_mut().zip(self.shared) {
            let rest = *number - shared;
            // What is left of equal sums was rounded.
            *number = if rest > *number * ROUNDED { rest } else { 0.0 };
        }
        let [bytes, skewed_bytes, count, skewed_count] = numbers;
        Self { bytes, skewed_bytes, count, skewed_count, shared: [0.0; 4], ..self }
    }

    /// With 95 %, at most so many of the smallest blocks of these sums are in a part of them without a sample of any: three times the
    /// number that one sample of such a block stands for, which dominates the variance.
    #[must_use]
    pub fn unseen_of_smallest(self) -> u64 {
        if self.count > 0.0 { (UNSEEN * f64::from(self.skewed_count / self.count)) as u64 } else { 0 }
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
            missing: self.missing * factor as f32,
            missing_of: self.missing_of,
            shared: [self.shared[0] * square, self.shared[1] * cube, self.shared[2] * square, self.shared[3] * cube],
            moves: self.moves.scaled(factor),
        }
    }
}

/// With 95 %, at most so many bytes of one kind (of a stack, say) were allocated, or live, of which nothing was sampled.
#[must_use]
pub fn unseen_bytes(sample_bytes: NonZeroU64) -> u64 {
    (sample_bytes.get() as f64 * UNSEEN) as u64
}

/// In how many ways samples are divided into halves, independently of each other. Where several moments may have been a peak, the
/// halves of one way choose the same as all samples in one case of four, those of three ways hardly ever.
const SPLITS: usize = 3;
/// How many halves there are.
pub(crate) const HALVES: usize = 2 * SPLITS;
/// One number for each half; both halves of a way are neighbours.
pub(crate) type Halves = [u64; HALVES];

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
    pub(super) fn probability(self, size: u64) -> f64 {
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

    /// Its bytes in both halves of the samples, for each way of halving them.
    pub(super) fn halves(self, size: u64, order: u64) -> Halves {
        let mut all = Halves::default();
        for (split, halves) in (0_u64..).zip(all.chunks_exact_mut(2)) {
            // No order is that large.
            halves.copy_from_slice(&self.halves_of(size, order ^ split << 60));
        }
        all
    }

    /// Its bytes in each half of the samples, which are at twice the distance and independent of each other; 0 where no hit of that
    /// half is in it.
    fn halves_of(self, size: u64, order: u64) -> [u64; 2] {
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

    /// With 95 %, at most so many bytes and allocations in all are there, of which nothing was sampled; the number from
    /// their mean size.
    #[must_use]
    pub fn unseen(self, mean_size: u64) -> (u64, u64) {
        ((self.mean * UNSEEN) as u64, (UNSEEN / self.probability(mean_size)) as u64)
    }

    /// With 95 %, at most so many of the smallest blocks are there, of which nothing was sampled.
    #[must_use]
    pub fn unseen_smallest(self) -> u64 {
        self.unseen(LEAST_SIZE as u64).1
    }
}

/// The weight, or the next whole number.
fn rounded(weight: f64, random: u64) -> u64 {
    (weight.floor() as u64).saturating_add(u64::from(uniform(random) < weight.fract()))
}

/// A number from 0 to 1.
pub(super) fn uniform(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number that depends on all bits of another (the finalizer of SplitMix64).
pub(super) fn mixed(number: u64) -> u64 {
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
mod tests;
