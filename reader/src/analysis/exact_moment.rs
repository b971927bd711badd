//! What is known exactly, mappings and blocks that are nearly always sampled, at the moments that may have been an estimated peak.
//!
//! Such sums are exact at every moment, and still not known where it is not known which moment was the peak: samples choose one by
//! what chance has added to them, and the true one has more of what varies in truth. So of the moments that are no further
//! below the peak than chance may bring them, the one is noted at which most was live that is known exactly. By as much as
//! these sums differ from those at the peak, they are less exact.
//!
//! Two estimates differ by chance in what was live at one of their moments alone. Invariant: `variance` is that of everything
//! that is live, after every event.

use super::Sum;
use super::block_weight::BlockWeight;
use super::since::EndedSince;

/// So many deviations may the moment of the peak be below the largest of many estimates.
const COMPETING: f64 = 3.0;

/// A moment, and what has ended since of what was live at it.
#[derive(Clone, Debug, Default)]
struct KnownMoment {
    /// One more than the order of the last event before it.
    end: u64,
    /// What was live there, and of it what is known exactly.
    whole: u64,
    exact: u64,
    variance: f64,
    /// Ended since: the variance, and what is known exactly.
    ended_variance: f64,
    ended: EndedSince,
}

/// What is live now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LiveNow {
    /// One more than the order of the last event.
    pub(super) end: u64,
    /// All bytes.
    pub(super) whole: u64,
}

/// What is known exactly now, at the peak, and at the other moment.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactMoment {
    exact: u64,
    variance: f64,
    peak: KnownMoment,
    most: KnownMoment,
}

impl KnownMoment {
    fn set(&mut self, LiveNow { end, whole }: LiveNow, exact: u64, variance: f64) {
        (self.end, self.whole, self.exact) = (end, whole, exact);
        (self.variance, self.ended_variance) = (variance, 0.0);
        self.ended.clear();
    }

    /// Whether chance alone may be what makes it so many bytes more or less than what is live now, with this variance.
    fn competes(&self, now: u64, variance: f64) -> bool {
        let of_difference = (variance - self.variance + 2.0 * self.ended_variance).max(0.0);
        now.abs_diff(self.whole) as f64 <= COMPETING * of_difference.sqrt()
    }

    fn end(&mut self, (group, order): (u32, u64), weight: &BlockWeight) {
        if order < self.end {
            self.ended_variance += weight.variance;
            if weight.is_certain {
                self.ended.sum(group).add(weight.tally.0, weight.tally.1, order, 0);
            }
        }
    }

    fn restore(&mut self, (group, order): (u32, u64), weight: &BlockWeight, ended: u64) {
        if ended < self.end {
            self.whole = self.whole.saturating_add(weight.tally.0);
            self.exact = self.exact.saturating_add(weight.certain_bytes());
        } else if order < self.end {
            self.ended_variance -= weight.variance;
            let sum = self.ended.known(group).filter(|_| weight.is_certain);
            sum.into_iter().for_each(|sum| sum.subtract(weight.tally.0, weight.tally.1));
        }
    }
}

impl ExactMoment {
    pub(super) fn add_group(&mut self) {
        self.peak.ended.add_group();
        self.most.ended.add_group();
    }

    pub(super) fn allocate(&mut self, weight: &BlockWeight) {
        self.exact = self.exact.wrapping_add(weight.certain_bytes());
        self.variance += weight.variance;
    }

    pub(super) fn end(&mut self, block: (u32, u64), weight: &BlockWeight) {
        self.exact = self.exact.wrapping_sub(weight.certain_bytes());
        self.variance -= weight.variance;
        self.peak.end(block, weight);
        self.most.end(block, weight);
    }

    pub(super) fn restore(&mut self, block: (u32, u64), weight: &BlockWeight, ended: u64) {
        self.allocate(weight);
        self.peak.restore(block, weight, ended);
        self.most.restore(block, weight, ended);
    }

    /// Looks at what is live; `is_peak`: it is more than ever.
    pub(super) fn look(&mut self, now: LiveNow, is_peak: bool) {
        if is_peak {
            self.peak.set(now, self.exact, self.variance);
        }
        let is_passed = is_peak && !self.most.competes(now.whole, self.variance);
        let is_more = || self.exact > self.most.exact && self.peak.competes(now.whole, self.variance);
        if is_passed || is_more() {
            self.most.set(now, self.exact, self.variance);
        }
    }

    /// What was live at the two moments of what is known exactly, without what still is; `is_peak_now`: nobody has looked at it yet.
    pub(super) fn rows(&self, groups: usize, now: LiveNow, is_peak_now: bool) -> ExactRows {
        let mut known = self.clone();
        if is_peak_now {
            known.look(now, true);
        }
        let mut rows = vec![[Sum::default(); 2]; groups];
        for (at, moment) in [&known.peak, &known.most].into_iter().enumerate() {
            moment.ended.iter().for_each(|(group, sum)| rows[group as usize][at] = sum);
        }
        ExactRows { rows, ends: [known.peak.end, known.most.end] }
    }
}

/// What is known exactly of all groups, at the peak and at the other moment.
#[derive(Debug)]
pub(super) struct ExactRows {
    rows: Vec<[Sum; 2]>,
    ends: [u64; 2],
}

impl ExactRows {
    /// Adds a block that is live.
    pub(super) fn add_live(&mut self, (group, order): (u32, u64), weight: &BlockWeight) {
        let Some(row) = self.rows.get_mut(group as usize).filter(|_| weight.is_certain) else { return };
        for (sum, _) in row.iter_mut().zip(self.ends).filter(|(_, end)| order < *end) {
            sum.add(weight.tally.0, weight.tally.1, order, 0);
        }
    }

    /// By how much more of a group there is at the other moment.
    pub(super) fn difference(&self, group: usize) -> [f64; 2] {
        let Some([peak, most]) = self.rows.get(group) else { return Default::default() };
        [most.bytes as f64 - peak.bytes as f64, most.count as f64 - peak.count as f64]
    }
}
