//! Parts of an analysis: single allocations that are selected while events go by, and groups that are kept afterwards.
//!
//! What is left out still counts for the moments: the high-water mark stays the one of the whole process, and a part
//! shows what was selected of it. Invariant: the sums of a part and of its complement add up to those of the whole.

use super::{Analysis, Group, SizeHistogram, Tally};
use crate::event::Event;

/// Which single allocations to look at: by size and by the time when they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// At least this many bytes.
    pub min_bytes: u64,
    /// Not before this time, in nanoseconds since recording began.
    pub from_ns: u64,
    /// Before this time.
    pub to_ns: u64,
}

impl Default for Selection {
    fn default() -> Self {
        Self { min_bytes: 0, from_ns: 0, to_ns: u64::MAX }
    }
}

impl Selection {
    /// Whether it leaves anything out.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it has the allocation that this event makes.
    #[must_use]
    pub fn takes(&self, event: &Event) -> bool {
        event.size >= self.min_bytes && event.time_ns >= self.from_ns && event.time_ns < self.to_ns
    }
}

impl Analysis {
    /// Keeps the groups that `keep` says, by number, and makes all sums over groups anew. Without
    /// [details](Analysis::details) the sizes are no longer known, and deallocations are what is not live at the end.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &Group) -> bool) {
        let kept: Vec<bool> = self.groups.iter().enumerate().map(|(at, group)| keep(at, group)).collect();
        let is_kept = |at: usize| kept.get(at).copied().unwrap_or(false);
        if let Some(intervals) = &mut self.intervals {
            let numbers = renumbered(&kept);
            intervals.retain(|interval| is_kept(interval.group as usize));
            intervals.iter_mut().for_each(|interval| interval.group = numbers[interval.group as usize]);
        }
        retain_by_number(&mut self.groups, is_kept);
        if let Some(details) = &mut self.details {
            retain_by_number(details, is_kept);
        }
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let totals = &mut self.totals;
        totals.allocations =
            sum(&self.groups, |group| Tally { bytes: group.allocated.bytes, count: group.allocated.count });
        totals.leaked = sum(&self.groups, |group| Tally { bytes: group.leaked.bytes, count: group.leaked.count });
        totals.leaked_at_exit =
            sum(&self.groups, |group| Tally { bytes: group.leaked_at_exit.bytes, count: group.leaked_at_exit.count });
        totals.temporary =
            sum(&self.groups, |group| Tally { bytes: group.temporary.bytes, count: group.temporary.count });
        let peak = sum(&self.groups, |group| Tally { bytes: group.peak.bytes, count: group.peak.count });
        (totals.peak.bytes, totals.peak.allocations) = (peak.bytes, peak.count);
        totals.size_histogram = SizeHistogram::default();
        totals.deallocations = totals.allocations.count.saturating_sub(totals.leaked_at_exit.count);
        if let Some(details) = &self.details {
            totals.deallocations = details.iter().fold(0, |sum: u64, detail| sum.saturating_add(detail.freed));
            details.iter().for_each(|detail| totals.size_histogram.merge(&detail.sizes));
        }
    }
}

fn sum(groups: &[Group], part: impl Fn(&Group) -> Tally) -> Tally {
    groups.iter().map(part).fold(Tally::default(), |mut total, tally| {
        total.add(tally.bytes, tally.count);
        total
    })
}

fn retain_by_number<T>(items: &mut Vec<T>, is_kept: impl Fn(usize) -> bool) {
    let mut at = 0;
    items.retain(|_| {
        at += 1;
        is_kept(at - 1)
    });
}

/// The new number of each group that is kept.
fn renumbered(kept: &[bool]) -> Vec<u32> {
    let mut next = 0;
    kept.iter()
        .map(|kept| {
            let number = next;
            next += u32::from(*kept);
            number
        })
        .collect()
}
