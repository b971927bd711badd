//! How much an estimated peak is too high, and which other moments may have been the peak.
//!
//! The largest of many estimates is mostly one that chance has made large, and what was sampled there then stands for more
//! than was there. The hits of samples are hits of two halves at random, each at twice the distance and independent of the
//! other; they are divided in several ways. So where one half is at its maximum, the other says without that bias what was
//! live, and the difference is by how much chance has raised the first. Only blocks that were not live at all of these moments made a difference between them:
//! theirs is what the peak is lowered by, as their variances are. And where the halves choose other moments, it is not known
//! which one was the peak: by as much as a sum differs between them, it is less exact. What is known exactly has a
//! moment of its own ([`exact_moment`](super::exact_moment)).
//!
//! Where few moments compete, as at the end of what grows, chance has raised little: a peak is not corrected to less than was live
//! at the end, or when finalization began.
//!
//! Moments are looked at before each sample, which is as independent of what came before as any, and not right after it, for
//! it would be in all of them. Invariant: what ends takes back what it had added.

use super::block_weight::BlockWeight;
use super::estimate::{HALVES, Halves};
use super::exact_moment::{ExactMoment, ExactRows, LiveNow};
use super::peak_moves::{MOMENTS, PeakMoves};
use super::since::EndedSince;
use super::{Moment, Sum};

/// What part of the bias of a half the whole has; found by simulation. For chance alone it would be the root of a half.
const OF_HALF: f64 = 0.6;

/// Where a half was at its maximum.
#[derive(Clone, Debug, Default)]
struct HalfPeak {
    /// One more than the order of the last event before it.
    end: u64,
    /// What was live there, by this half and by the other one.
    bytes: u64,
    other: u64,
    ended: EndedSince,
}

/// What was live at all of the moments.
#[derive(Clone, Copy, Debug, Default)]
struct CommonPart {
    bytes: u64,
    count: u64,
    variance: f64,
}

impl CommonPart {
    fn add(&mut self, weight: &BlockWeight) {
        self.bytes = self.bytes.saturating_add(weight.tally.0);
        self.count = self.count.saturating_add(weight.tally.1);
        self.variance += weight.variance;
    }

    fn take_back(&mut self, weight: &BlockWeight) {
        self.bytes = self.bytes.saturating_sub(weight.tally.0);
        self.count = self.count.saturating_sub(weight.tally.1);
        self.variance -= weight.variance;
    }
}

/// The halves.
#[derive(Clone, Debug, Default)]
pub(super) struct SampledPeak {
    live: Halves,
    halves: [HalfPeak; HALVES],
    /// Ended since the last of the moments, of what was live at the first.
    common: EndedSince<CommonPart>,
    exact: ExactMoment,
    /// The last event.
    pub(super) last: Moment,
}

impl SampledPeak {
    pub(super) fn add_group(&mut self) {
        self.halves.iter_mut().for_each(|half| half.ended.add_group());
        self.common.add_group();
        self.exact.add_group();
    }

    /// One more than the order of the last event.
    pub(super) fn next_order(&self) -> u64 {
        self.last.order.saturating_add(1)
    }

    /// Whether a half has its maximum now.
    fn is_raised(&self, half: usize) -> bool {
        self.live[half] > self.halves[half].bytes
    }

    /// Looks at what is live, so many bytes; `whole_is_raised`: the peak is now.
    pub(super) fn look(&mut self, whole: u64, whole_is_raised: bool) {
        self.exact.look(LiveNow { end: self.next_order(), whole }, whole_is_raised);
        let mut is_moved = whole_is_raised;
        for at in 0..HALVES {
            if self.is_raised(at) {
                let (end, live) = (self.next_order(), self.live);
                let half = &mut self.halves[at];
                (half.end, half.bytes, half.other) = (end, live[at], live[at ^ 1]);
                half.ended.clear();
                is_moved = true;
            }
        }
        if is_moved {
            self.common.clear();
        }
    }

    pub(super) fn allocate(&mut self, weight: &BlockWeight) {
        self.exact.allocate(weight);
        self.add_to_halves(weight.halves);
    }

    fn add_to_halves(&mut self, halves: Halves) {
        self.live.iter_mut().zip(halves).for_each(|(live, bytes)| *live = live.wrapping_add(bytes));
    }

    /// A block of this group and order, or a part of it, ends; the peak was before `peak_end`.
    pub(super) fn end(&mut self, (group, order): (u32, u64), weight: &BlockWeight, peak_end: u64) {
        self.exact.end((group, order), weight);
        self.live.iter_mut().zip(weight.halves).for_each(|(live, bytes)| *live = live.wrapping_sub(bytes));
        for half in &mut self.halves {
            if order < half.end {
                half.ended.sum(group).add(weight.tally.0, weight.tally.1, order, 0);
            }
        }
        if order < self.first_end(peak_end) {
            self.common.sum(group).add(weight);
        }
    }

    /// It had not ended after all; `ended`: the order at which it seemed so.
    pub(super) fn restore(&mut self, (group, order): (u32, u64), weight: &BlockWeight, ended: u64, peak_end: u64) {
        self.exact.restore((group, order), weight, ended);
        self.add_to_halves(weight.halves);
        let last_end = self.halves.iter().map(|half| half.end).fold(peak_end, u64::max);
        for (at, half) in self.halves.iter_mut().enumerate() {
            if ended < half.end {
                half.bytes = half.bytes.saturating_add(weight.halves[at]);
                half.other = half.other.saturating_add(weight.halves[at ^ 1]);
            } else if order < half.end {
                let sum = half.ended.known(group);
                sum.into_iter().for_each(|sum| sum.subtract(weight.tally.0, weight.tally.1));
            }
        }
        if order < self.first_end(peak_end) && ended >= last_end {
            self.common.known(group).into_iter().for_each(|sum| sum.take_back(weight));
        }
    }

    fn first_end(&self, peak_end: u64) -> u64 {
        self.halves.iter().map(|half| half.end).fold(peak_end, u64::min)
    }

    /// By how many bytes the peak is too high.
    pub(super) fn excess(&self) -> u64 {
        excess(|at| {
            let half = &self.halves[at];
            if self.is_raised(at) { (self.live[at], self.live[at ^ 1]) } else { (half.bytes, half.other) }
        })
    }

    /// What is live of each half.
    pub(super) fn live(&self) -> Halves {
        self.live
    }

    /// Of the common peak of several processes: a half of all of them is at its maximum before all events from this order on.
    pub(super) fn mark_half(&mut self, at: usize, end: u64) {
        // Those of this process alone raise nothing.
        self.halves[at] =
            HalfPeak { end, bytes: u64::MAX, ended: std::mem::take(&mut self.halves[at].ended), other: 0 };
        self.halves[at].ended.clear();
        self.common.clear();
    }

    /// The same of all samples.
    pub(super) fn mark_peak(&mut self) {
        self.common.clear();
    }

    /// What was live at the moments, without what still is; `whole`: what is live now; `peak_end`: `u64::MAX` if the peak is now.
    pub(super) fn other_moments(&self, groups: usize, whole: u64, peak_end: u64) -> OtherMoments {
        let ends = std::array::from_fn(|at| if self.is_raised(at) { u64::MAX } else { self.halves[at].end });
        let mut rows = vec![OtherRow::default(); groups];
        for (at, half) in self.halves.iter().enumerate().filter(|(at, _)| ends[*at] != u64::MAX) {
            half.ended.iter().for_each(|(group, sum)| rows[group as usize].at[at] = sum);
        }
        if !ends.contains(&u64::MAX) && peak_end != u64::MAX {
            self.common.iter().for_each(|(group, part)| rows[group as usize].common = part);
        }
        let exact = self.exact.rows(groups, LiveNow { end: u64::MAX, whole }, peak_end == u64::MAX);
        OtherMoments { rows, exact, ends, first_end: ends.into_iter().fold(peak_end, u64::min), excess: self.excess() }
    }
}

/// By how much the maximum is too high, of the maximum of each half and what the other half of its way had there.
pub(crate) fn excess(of: impl Fn(usize) -> (u64, u64)) -> u64 {
    let of_split = |split: usize| {
        let ((own_a, other_a), (own_b, other_b)) = (of(2 * split), of(2 * split + 1));
        own_a.saturating_sub(other_b).saturating_add(own_b.saturating_sub(other_a))
    };
    let more: f64 = (0..HALVES / 2).map(|split| of_split(split) as f64).sum();
    (more / HALVES as f64 * OF_HALF) as u64
}

/// Sums of a group at the moments of the halves, and what was live at the peak, too.
#[derive(Clone, Copy, Debug, Default)]
struct OtherRow {
    at: [Sum; HALVES],
    common: CommonPart,
}

/// The sums of all groups there.
#[derive(Debug)]
pub(super) struct OtherMoments {
    rows: Vec<OtherRow>,
    exact: ExactRows,
    ends: Halves,
    first_end: u64,
    excess: u64,
}

/// A sum of the peak with the variances of bytes and number, to be corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PeakSum {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) variances: [f64; 2],
    /// Bytes and number at the end.
    pub(super) end: (u64, u64),
    pub(super) moves: PeakMoves,
}

impl OtherMoments {
    /// Adds a block that is live.
    pub(super) fn add_live(&mut self, (group, order): (u32, u64), weight: &BlockWeight) {
        let Some(row) = self.rows.get_mut(group as usize) else { return };
        for (sum, end) in row.at.iter_mut().zip(self.ends) {
            if order < end {
                sum.add(weight.tally.0, weight.tally.1, order, 0);
            }
        }
        if order < self.first_end {
            row.common.add(weight);
        }
        self.exact.add_live((group, order), weight);
    }

    /// Takes the excess from the sums of all groups, and says how these differ at other moments. What is left is not less than these
    /// bytes and this number, which were live at another moment that reports tell of; `None`: it is a common peak of several
    /// processes, which is lowered later.
    pub(super) fn correct(&self, sums: &mut [PeakSum], least: Option<(u64, u64)>) {
        let (least_bytes, least_count) = least.unwrap_or((u64::MAX, u64::MAX));
        let all = |of: fn(&PeakSum) -> u64| sums.iter().fold(0_u64, |all, sum| all.saturating_add(of(sum)));
        let (peak, number) = (all(|sum| sum.bytes), all(|sum| sum.count));
        let excess = self.excess.min(peak.saturating_sub(least_bytes));
        let mut lowered = vec![0; sums.len()];
        let parts: Vec<f64> =
            sums.iter().zip(&self.rows).map(|(sum, row)| (sum.variances[0] - row.common.variance).max(0.0)).collect();
        let all: f64 = parts.iter().sum();
        let below: f64 = sums.iter().map(|sum| sum.bytes as f64 - sum.end.0 as f64).sum();
        // Two estimates that are as exact may differ by so much. What grows has its peak there.
        let may_be_end = below <= (2.0 * all).sqrt();
        // Of several processes the same halves, one of each way: their differences are added up.
        let moments = if least.is_some() { self.farthest(sums) } else { std::array::from_fn(|at| 2 * at) };
        for (group, ((sum, row), part)) in sums.iter_mut().zip(&self.rows).zip(parts).enumerate() {
            let own = *sum;
            if part > 0.0 {
                lowered[group] = sum.lower((excess as f64 * part / all) as u64, &row.common);
            }
            sum.moves = self.moves(group, &own, moments, may_be_end).after_lowering(own.bytes - sum.bytes);
            // The peak has other samples than another moment.
            sum.moves.of_chance = 2.0 * part as f32;
        }
        // Nor is the number less than was live then, unless the peak has fewer and larger blocks.
        let most = number.checked_sub(least_count).unwrap_or(u64::MAX);
        let wanted = lowered.iter().fold(0_u64, |all, number| all.saturating_add(*number));
        let part = if wanted > most { most as f64 / wanted as f64 } else { 1.0 };
        // No more than each has.
        sums.iter_mut().zip(lowered).for_each(|(sum, number)| sum.count -= (number as f64 * part) as u64);
    }

    /// The halves at whose moments most differs from the peak; those of one moment once.
    fn farthest(&self, sums: &[PeakSum]) -> [usize; MOMENTS] {
        let differs = |half: usize| -> f64 {
            let rows = sums.iter().zip(&self.rows);
            rows.map(|(sum, row)| (row.at[half].bytes as f64 - sum.bytes as f64).powi(2)).sum()
        };
        let mut halves: Vec<(f64, usize)> = (0..HALVES).map(|half| (differs(half), half)).collect();
        halves.sort_by(|one, other| other.0.total_cmp(&one.0));
        halves.dedup_by_key(|(_, half)| self.ends[*half]);
        std::array::from_fn(|at| halves[at.min(halves.len() - 1)].1)
    }

    /// What a group has more at the other moments.
    fn moves(&self, group: usize, sum: &PeakSum, moments: [usize; MOMENTS], may_be_end: bool) -> PeakMoves {
        let more = |other: u64, own: u64| other as f64 - own as f64;
        let [mut known, mut known_count] = self.exact.difference(group);
        let at_end = [more(sum.end.0, sum.bytes), more(sum.end.1, sum.count)];
        let is_farther = at_end[0].abs() > known.abs();
        if may_be_end && is_farther {
            known = at_end[0];
        }
        let Some(row) = self.rows.get(group) else { return PeakMoves::NONE };
        // The number of what has samples is as exact as its bytes.
        if sum.variances[1] <= 0.0 {
            let ends = may_be_end.then_some(at_end[1]);
            let numbers = moments.into_iter().map(|half| more(row.at[half].count, sum.count)).chain(ends);
            known_count =
                numbers.fold(known_count, |most, number| if number.abs() > most.abs() { number } else { most });
        }
        let halves = moments.map(|half| more(row.at[half].bytes, sum.bytes) as f32);
        PeakMoves { halves, known: known as f32, known_count: known_count as f32, of_chance: 0.0 }
    }
}

impl PeakSum {
    /// Takes so many bytes from what was not live at all of the moments; returns as large a part of its number.
    fn lower(&mut self, bytes: u64, common: &CommonPart) -> u64 {
        let [apart, number] = [self.bytes.saturating_sub(common.bytes), self.count.saturating_sub(common.count)];
        if apart == 0 {
            return 0;
        }
        let bytes = bytes.min(apart);
        self.bytes -= bytes;
        // No more than `number`.
        (number as f64 * (bytes as f64 / apart as f64)) as u64
    }
}

#[cfg(test)]
mod tests;
