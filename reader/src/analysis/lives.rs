//! How long allocations lived, in snapshots, while they are counted.
//!
//! Invariant: a life that was counted has an entry, though its sums may have been taken back since.

use rustc_hash::FxHashMap;

use super::{Interval, Tally};

/// (group, first snapshot, end snapshot).
type Life = (u32, u32, u32);

/// The sums of lives.
#[derive(Debug, Default)]
pub(super) struct Lives(FxHashMap<Life, Tally>);

impl Lives {
    #[inline]
    pub(super) fn add(&mut self, life: Life, bytes: u64, count: u64) {
        self.0.entry(life).or_default().add(bytes, count);
    }

    /// Takes back what was added.
    pub(super) fn subtract(&mut self, life: Life, bytes: u64, count: u64) {
        if let Some(sum) = self.0.get_mut(&life) {
            sum.bytes = sum.bytes.saturating_sub(bytes);
            sum.count = sum.count.saturating_sub(count);
        }
    }

    /// These, which have ended, and those that have not, sorted.
    pub(super) fn intervals(&self, surviving: &Self) -> Vec<Interval> {
        let mut intervals = Vec::with_capacity(self.0.len() + surviving.0.len());
        let ended = self.0.iter().filter(|(_, sum)| sum.bytes > 0 || sum.count > 0);
        intervals.extend(ended.map(|(life, sum)| interval(life, Some(life.2), sum)));
        intervals.extend(surviving.0.iter().map(|(life, sum)| interval(life, None, sum)));
        intervals.sort_unstable();
        intervals
    }
}

fn interval(&(group, first_snapshot, _): &Life, end_snapshot: Option<u32>, sum: &Tally) -> Interval {
    Interval { group, first_snapshot, end_snapshot, bytes: sum.bytes, count: sum.count }
}

#[cfg(test)]
mod tests {
    use super::Lives;
    use crate::analysis::Tally;

    #[test]
    fn sums_of_any_size_are_added_and_taken_back() {
        let (mut lives, mut surviving) = (Lives::default(), Lives::default());
        let large = u64::from(u32::MAX);
        for (group, bytes) in [(1, large), (0, 7), (1, 1), (1, large << 8), (2, 5), (1, 3)] {
            lives.add((group, 4, 6), bytes, 1);
        }
        lives.subtract((1, 4, 6), 2, 1);
        lives.subtract((2, 4, 6), 5, 1);
        lives.subtract((3, 4, 6), 5, 1);
        surviving.add((1, 5, 0), 9, large + 1);
        let interval =
            |group, first, end, bytes, count| super::interval(&(group, first, 0), end, &Tally { bytes, count });
        let expected = [
            interval(0, 4, Some(6), 7, 1),
            interval(1, 4, Some(6), (large << 8) + large + 2, 3),
            interval(1, 5, None, 9, large + 1),
        ];
        assert_eq!(lives.intervals(&surviving), expected);
        lives.subtract((1, 4, 6), large << 8, 2);
        assert_eq!(lives.intervals(&Lives::default())[1], interval(1, 4, Some(6), large + 2, 1));
    }
}
