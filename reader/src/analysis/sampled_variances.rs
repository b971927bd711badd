//! How exact the sums of sampled allocations are, kept while they are made.
//!
//! As with the sums themselves ([`group_totals`](super::group_totals)), what has ended since the peak and since finalization is
//! kept apart, and what is live is added at the end. So memory is bounded by the groups, however long a recording goes on.
//!
//! Invariant: what ends takes back the variance that it had brought.

use std::ops::{AddAssign, SubAssign};

use super::View;
use super::estimate::{VIEWS, Variance, ViewVariances, place};
use super::live_block::LiveBlock;
use super::peak_moves::PeakMoves;
use super::since::EndedSince;

/// A sum of variances in double precision: it goes on for months, and differences are taken of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VarianceSum([f64; 4]);

impl AddAssign<Variance> for VarianceSum {
    fn add_assign(&mut self, Variance { bytes, skewed_bytes, count, skewed_count, .. }: Variance) {
        let more = [bytes, skewed_bytes, count, skewed_count];
        self.0.iter_mut().zip(more).for_each(|(sum, more)| *sum += f64::from(more));
    }
}

impl SubAssign<Variance> for VarianceSum {
    fn sub_assign(&mut self, Variance { bytes, skewed_bytes, count, skewed_count, .. }: Variance) {
        let part = [bytes, skewed_bytes, count, skewed_count];
        self.0.iter_mut().zip(part).for_each(|(sum, part)| *sum -= f64::from(part));
    }
}

impl AddAssign for VarianceSum {
    fn add_assign(&mut self, Self(more): Self) {
        self.0.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
}

impl From<VarianceSum> for Variance {
    fn from(VarianceSum(sums): VarianceSum) -> Self {
        let [bytes, skewed_bytes, count, skewed_count] = sums.map(|sum| sum.max(0.0) as f32);
        Self { bytes, skewed_bytes, count, skewed_count, ..Self::EXACT }
    }
}

impl VarianceSum {
    /// The variances of bytes and number.
    pub(super) fn variances(self) -> [f64; 2] {
        [self.0[0], self.0[2]]
    }

    pub(super) fn less(self, Self(part): Self) -> Self {
        let mut sums = self.0;
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum -= part);
        Self(sums)
    }

    /// The smaller one of each, and none below 0.
    pub(super) fn least(self, Self(other): Self) -> Self {
        let mut sums = self.0;
        sums.iter_mut().zip(other).for_each(|(sum, other)| *sum = sum.min(other).max(0.0));
        Self(sums)
    }

    /// Which parts it is of another one, from 0 to 1.
    pub(super) fn parts_of(self, Self(all): Self) -> [f32; 4] {
        let mut parts = self.0;
        parts
            .iter_mut()
            .zip(all)
            .for_each(|(sum, all)| *sum = if all > 0.0 { (*sum / all).clamp(0.0, 1.0) } else { 0.0 });
        parts.map(|part| part as f32)
    }

    /// Whether they differ by no more than this part.
    pub(super) fn is_nearly(self, Self(other): Self, part: f64) -> bool {
        self.0.iter().zip(other).all(|(sum, other)| (sum - other).abs() <= sum.max(other) * part)
    }

    /// This part of it.
    pub(super) fn scaled(self, part: f64) -> Self {
        Self(self.0.map(|sum| sum * part))
    }
}

/// The orders that divide time: one after the peak, and that of finalization, or 0.
pub(super) type ViewMoments = (u64, u64);

/// The variances of all groups.
#[derive(Clone, Debug, Default)]
pub(super) struct SampledVariances {
    allocated: Vec<VarianceSum>,
    ended: Vec<VarianceSum>,
    since_peak: EndedSince<VarianceSum>,
    /// Ended since finalization began.
    since_finalizing: Vec<VarianceSum>,
    live: VarianceSum,
}

/// The variances of a group in its views, while they are summed up.
pub(super) type ViewVarianceSums = [VarianceSum; VIEWS];

impl SampledVariances {
    pub(super) fn add_group(&mut self) {
        self.allocated.push(VarianceSum::default());
        self.ended.push(VarianceSum::default());
        self.since_finalizing.push(VarianceSum::default());
        self.since_peak.add_group();
    }

    pub(super) fn allocate(&mut self, group: u32, variance: Variance) {
        self.live += variance;
        self.allocated.get_mut(group as usize).into_iter().for_each(|sum| *sum += variance);
    }

    /// There is a new peak.
    pub(super) fn forget_since_peak(&mut self) {
        self.since_peak.clear();
    }

    /// A block ends.
    pub(super) fn end(&mut self, block: &LiveBlock, variance: Variance, (peak_end, finalizing): ViewMoments) {
        let group = block.group as usize;
        self.live -= variance;
        self.ended.get_mut(group).into_iter().for_each(|sum| *sum += variance);
        if block.order < peak_end {
            *self.since_peak.sum(block.group) += variance;
        }
        if block.order < finalizing {
            self.since_finalizing.get_mut(group).into_iter().for_each(|sum| *sum += variance);
        }
    }

    /// The block had not ended after all; `ended`: the order at which it seemed so.
    pub(super) fn restore(&mut self, block: &LiveBlock, variance: Variance, ended: u64, moments: ViewMoments) {
        let (group, (peak_end, finalizing)) = (block.group as usize, moments);
        self.live += variance;
        self.ended.get_mut(group).into_iter().for_each(|sum| *sum -= variance);
        if block.order < peak_end
            && ended >= peak_end
            && let Some(sum) = self.since_peak.known(block.group)
        {
            *sum -= variance;
        }
        if block.order < finalizing && finalizing <= ended {
            self.since_finalizing.get_mut(group).into_iter().for_each(|sum| *sum -= variance);
        }
    }

    /// Of everything that is live.
    pub(super) fn live(&self) -> Variance {
        self.live.into()
    }

    /// What a group has allocated, and what of it has ended.
    pub(super) fn flow(&self, group: u32) -> [VarianceSum; 2] {
        [&self.allocated, &self.ended].map(|sums| sums.get(group as usize).copied().unwrap_or_default())
    }

    /// The sums of all groups by view, without what is live; `is_peak_now`: nothing has ended since the peak.
    pub(super) fn without_live(&self, is_peak_now: bool) -> Vec<ViewVarianceSums> {
        let mut all = vec![ViewVarianceSums::default(); self.allocated.len()];
        for ((sums, allocated), finalizing) in all.iter_mut().zip(&self.allocated).zip(&self.since_finalizing) {
            sums[place(View::Allocated)] = *allocated;
            sums[place(View::Leaks)] = *finalizing;
        }
        for (group, since) in self.since_peak.iter().filter(|_| !is_peak_now) {
            all.get_mut(group as usize).into_iter().for_each(|sums| sums[place(View::HighWaterMark)] = since);
        }
        all
    }
}

/// Adds a block that is live.
pub(super) fn add_live(
    sums: &mut ViewVarianceSums,
    block: &LiveBlock,
    variance: Variance,
    (peak_end, finalizing): ViewMoments,
) {
    sums[place(View::LeaksAtExit)] += variance;
    if block.order < peak_end {
        sums[place(View::HighWaterMark)] += variance;
    }
    // Where finalization was not seen, what leaks is what is live.
    if finalizing == 0 || block.order < finalizing {
        sums[place(View::Leaks)] += variance;
    }
}

/// The sums of a group in the precision of reports; `moves`: those of the peak.
pub(super) fn of_views(sums: ViewVarianceSums, moves: PeakMoves) -> ViewVariances {
    let views = ViewVariances(sums.map(Variance::from));
    let peak = views.of(View::HighWaterMark).with_moves(moves);
    views.with(View::HighWaterMark, peak)
}
