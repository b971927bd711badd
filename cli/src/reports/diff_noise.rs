//! How far the differences of two captures may be chance, where one has samples of allocations only.
//!
//! Invariant: of captures with all allocations nothing is chance.

use std::io::{self, Write};

use memtrack_reader::analysis::diff::FigurePair;
use memtrack_reader::analysis::{SampleWeights, Tally, difference_range};
use serde_json::Value;

use super::capture_info::Capture;
use super::estimates::RangedTally;
use super::scale::ComparedMetric;

/// A capture of a difference.
#[derive(Clone, Copy, Debug)]
pub(super) enum DiffSide {
    Base,
    New,
}

/// The intervals of differences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiffNoise {
    /// Numbers are compared, not bytes.
    counts: bool,
    /// Of the base and of the new capture; `None`: it has all allocations.
    weights: [Option<SampleWeights>; 2],
    /// By how much the intervals are wider that decide what is chance: see [`DiffNoise::among`].
    wider: f64,
}

impl DiffNoise {
    pub(super) fn of(captures: [&Capture; 2], metric: ComparedMetric) -> Self {
        let weights = captures.map(|capture| capture.sample_bytes().map(SampleWeights::new));
        Self { counts: metric.counts, weights, wider: 1.0 }
    }

    /// The same where so many figures are compared at once. Of a hundred intervals of 95 % five miss by chance; what is beyond these
    /// wider ones is, with 95 %, none by chance in all of them together (Bonferroni).
    pub(super) fn among(self, figures: usize) -> Self {
        Self { wider: deviations(0.025 / figures.max(1) as f64) / deviations(0.025), ..self }
    }

    /// Of the bytes of two moments of this one.
    pub(crate) fn of_moments(capture: &Capture) -> Self {
        Self { counts: false, weights: [capture.sample_bytes().map(SampleWeights::new); 2], wider: 1.0 }
    }

    pub(super) fn is_exact(&self) -> bool {
        self.weights.iter().all(Option::is_none)
    }

    /// The 95 % interval of the change of a figure.
    pub(super) fn range(&self, pair: &FigurePair) -> (i128, i128) {
        // What both have the same samples of does not differ by chance.
        let unshared = |tally: Tally| Tally { variance: tally.variance.unshared(), ..tally };
        let apart = FigurePair { base: unshared(pair.base), new: unshared(pair.new) };
        let is_exact = [pair.base, pair.new].iter().all(|tally| tally.variance.is_exact());
        let side = |side: DiffSide| {
            let RangedTally { tally, bytes, count } = self.ranged(&apart, side, is_exact);
            if self.counts { (tally.count, count) } else { (tally.bytes, bytes) }
        };
        difference_range(side(DiffSide::Base), side(DiffSide::New))
    }

    /// A figure of one side with its intervals. What has no sample may be there all the same, as the other side has it; `is_exact`: not of
    /// figures that are exact on both sides.
    fn ranged(&self, pair: &FigurePair, side: DiffSide, is_exact: bool) -> RangedTally {
        let (tally, other, weights) = match side {
            DiffSide::Base => (pair.base, pair.new, self.weights[0]),
            DiffSide::New => (pair.new, pair.base, self.weights[1]),
        };
        let mut ranged = RangedTally::from(tally);
        // What is exact are mappings and blocks that are always sampled, or samples that both have: what the other side has besides may
        // be here, too.
        let is_missing = tally.count == 0 || tally.variance.is_exact() && !is_exact;
        if let Some(weights) = weights.filter(|_| is_missing) {
            let (bytes, count) = weights.unseen_beside(other);
            ranged.bytes.1 = ranged.bytes.1.saturating_add(bytes);
            ranged.count.1 = ranged.count.1.saturating_add(count);
        }
        ranged
    }

    /// Whether the change of a figure may be chance, among all that are compared.
    pub(super) fn hides(&self, pair: &FigurePair) -> bool {
        if self.is_exact() {
            return false;
        }
        let (change, (low, high)) = (self.change(pair), self.range(pair));
        let wider = |half: i128| (half as f64 * self.wider) as i128;
        change <= wider(change - low) && -change <= wider(high - change)
    }

    fn change(&self, pair: &FigurePair) -> i128 {
        let figure = |tally: Tally| i128::from(if self.counts { tally.count } else { tally.bytes });
        figure(pair.new) - figure(pair.base)
    }

    /// Half the length of the interval of the change.
    pub(crate) fn half_length(&self, pair: &FigurePair) -> u64 {
        let (low, high) = self.range(pair);
        u64::try_from((high - low) / 2).unwrap_or(u64::MAX)
    }

    /// Half the interval of the change: the larger half.
    pub(super) fn half(&self, pair: &FigurePair) -> u64 {
        let (change, (low, high)) = (self.change(pair), self.range(pair));
        u64::try_from((high - change).max(change - low)).unwrap_or(u64::MAX)
    }

    /// Adds the intervals of the figures of a side.
    pub(super) fn put_ranges(&self, value: &mut Value, part: &str, pair: &FigurePair, side: DiffSide) {
        if !self.is_exact() {
            let [bytes, count] = ["bytes", "count"].map(|name| format!("{part}{name}"));
            let is_exact = [pair.base, pair.new].iter().all(|tally| tally.variance.is_exact());
            self.ranged(pair, side, is_exact).put(value, [&bytes, &count]);
        }
    }

    /// Writes the intervals of the totals, and of their difference.
    ///
    /// # Errors
    /// A write error.
    pub(super) fn write_whole(&self, whole: &FigurePair, out: &mut impl Write) -> io::Result<()> {
        if self.is_exact() {
            return Ok(());
        }
        let range = |tally: Tally| {
            let RangedTally { bytes, count, .. } = tally.into();
            if self.counts { count } else { bytes }
        };
        for (name, (low, high)) in [("base_total", range(whole.base)), ("new_total", range(whole.new))] {
            write!(out, "\"{name}_low\":{low},\"{name}_high\":{high},")?;
        }
        let (low, high) = self.range(whole);
        write!(out, "\"change_low\":{low},\"change_high\":{high},")
    }
}

/// So many standard deviations a normally distributed figure exceeds with this probability, from 1e-9 to 0.5: within 0.0005, by
/// Abramowitz and Stegun 26.2.23.
fn deviations(probability: f64) -> f64 {
    let root = (-2.0 * probability.ln()).sqrt();
    let above = root.mul_add(root.mul_add(0.010_328, 0.802_853), 2.515_517);
    let below = root.mul_add(root.mul_add(root.mul_add(0.001_308, 0.189_269), 1.432_788), 1.0);
    root - above / below
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use memtrack_reader::analysis::diff::FigurePair;
    use memtrack_reader::analysis::{SampleWeights, Tally, Variance};

    use super::{DiffNoise, deviations};

    #[test]
    fn deviations_are_those_of_the_normal_distribution() {
        for (probability, expected) in [(0.025, 1.95996), (0.001, 3.09023), (0.025 / 700.0, 3.97148), (1e-7, 5.19934)] {
            assert!((deviations(probability) - expected).abs() < 0.001, "{probability}");
        }
    }

    #[test]
    fn among_many_a_change_has_to_be_larger() {
        let weights = [Some(SampleWeights::new(NonZeroU64::new(1 << 16).unwrap())); 2];
        let alone = DiffNoise { counts: false, weights, wider: 1.0 };
        let among = alone.among(700);
        // 100 kB standard deviation of each: 277 kB are the interval of their difference, and 561 kB that of all 700.
        let side = |bytes: u64| Tally { bytes, count: 1000, variance: Variance::of_numbers([1e10, 1e12, 0.0, 0.0]) };
        let pair = |more: u64| FigurePair { base: side(10_000_000), new: side(10_000_000 + more) };
        let hidden = |noise: DiffNoise| [200_000, 400_000, 700_000].map(|more| noise.hides(&pair(more)));
        assert_eq!((hidden(alone), hidden(among)), ([true, false, false], [true, true, false]));
        assert_eq!(alone.range(&pair(400_000)), among.range(&pair(400_000)));
        let less = FigurePair { base: side(10_700_000), new: side(10_000_000) };
        assert!(!among.hides(&less) && among.hides(&FigurePair { base: side(10_400_000), ..less }));
    }
}
