//! Parts of an analysis: allocations that are selected during the replay, and groups that are kept afterwards.
//!
//! Allocations that are left out still count for the moments: the high-water mark stays that of the whole process, and
//! the part shows its selected allocations then. Invariant: the sums of a part and of its complement add up to those of
//! the whole.

use super::groups::retain_marked;
use super::{Analysis, Group, SizeHistogram};
use crate::event::Event;

/// Which allocations are counted, by size and time of allocation.
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
    /// Whether all allocations are counted.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the allocation of this event is counted.
    #[must_use]
    pub fn takes(&self, event: &Event) -> bool {
        event.size >= self.min_bytes && event.time_ns >= self.from_ns && event.time_ns < self.to_ns
    }
}

impl Analysis {
    /// Keeps the groups that `keep` accepts, and recomputes all sums over groups. Without [details](Analysis::details)
    /// the histogram of sizes is unknown afterwards, and deallocations are computed as allocations minus what is live
    /// at the end.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &Group) -> bool) {
        let kept: Vec<bool> = self.groups.iter().enumerate().map(|(at, group)| keep(at, &group)).collect();
        if let Some(intervals) = &mut self.intervals {
            let numbers = renumbered(&kept);
            intervals.renumber(|group| numbers.get(group as usize).copied().flatten());
        }
        self.groups.retain(&kept);
        if let Some(details) = &mut self.details {
            retain_marked(details, &kept);
        }
        if let Some(variances) = &mut self.variances {
            retain_marked(variances, &kept);
        }
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let totals = &mut self.totals;
        self.groups.sum_up(totals);
        totals.size_histogram = SizeHistogram::default();
        totals.deallocations = totals.allocations.count.saturating_sub(totals.leaked_at_exit.count);
        if let Some(details) = &self.details {
            totals.deallocations = details.iter().fold(0, |sum: u64, detail| sum.saturating_add(detail.freed));
            details.iter().for_each(|detail| totals.size_histogram.merge(&detail.sizes));
        }
    }
}

/// The new number of each group that is kept.
fn renumbered(kept: &[bool]) -> Vec<Option<u32>> {
    let mut numbers = 0..;
    kept.iter().map(|kept| kept.then(|| numbers.next()).flatten()).collect()
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};

    use super::Selection;
    use crate::analysis::{Analysis, View};
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::{Options, Replay};

    const VIEWS: [View; 5] = [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated];

    /// Blocks of rising size, some of them freed, and a mapping that is unmapped in part.
    fn analysis(selection: Selection) -> Analysis {
        let mut replay = Replay::new(&Options { selection, details: true, moments: u32::MAX, ..Options::default() });
        let mut order = 0;
        let mut event = |kind, address, size| {
            replay.event(&Event {
                kind,
                address,
                size,
                stack: StackId::EMPTY,
                thread: ThreadId((order % 2) as u32),
                order,
                time_ns: order * 10,
            });
            order += 1;
        };
        event(EventKind::Map(Allocator::Mmap, MapClass::Heap), 0x10_0000, 0x4000);
        for block in 1..40 {
            event(EventKind::Alloc(Allocator::Malloc), block, block * 10);
            if block % 3 == 0 {
                event(EventKind::Free, block, 0);
            }
        }
        event(EventKind::Finalizing, 0, 0);
        event(EventKind::Unmap, 0x10_1000, 0x1000);
        event(EventKind::Free, 1, 0);
        replay.snapshot(1000, 0);
        replay.finish()
    }

    fn bytes(analysis: &Analysis, view: View) -> (u64, u64) {
        analysis.view(view).iter().fold((0, 0), |sum, row| (sum.0 + row.bytes, sum.1 + row.count))
    }

    #[test]
    fn a_part_and_its_complement_make_the_whole() {
        let whole = analysis(Selection::default());
        let early = analysis(Selection { to_ns: 250, ..Selection::default() });
        let late = analysis(Selection { from_ns: 250, ..Selection::default() });
        for view in VIEWS {
            let (early, late) = (bytes(&early, view), bytes(&late, view));
            assert_eq!((early.0 + late.0, early.1 + late.1), bytes(&whole, view), "{view:?}");
        }
        assert!(early.totals.allocations.count > 0 && late.totals.allocations.count > 0);
        assert_eq!(early.totals.deallocations + late.totals.deallocations, whole.totals.deallocations);
        assert_eq!(early.totals.peak.bytes + late.totals.peak.bytes, whole.totals.peak.bytes);
        let mut sizes = early.totals.size_histogram.clone();
        sizes.merge(&late.totals.size_histogram);
        assert_eq!(sizes, whole.totals.size_histogram);
    }

    #[test]
    fn the_smallest_size_is_included() {
        let large = analysis(Selection { min_bytes: 300, ..Selection::default() });
        assert_eq!(large.totals.allocations.count, 11);
        assert!(large.intervals.unwrap().iter().all(|interval| (interval.group as usize) < large.groups.len()));
    }

    /// Keeping everything changes no sum: what is made anew from groups and details is what was counted on the way.
    #[test]
    fn retaining_everything_changes_nothing() {
        let whole = analysis(Selection::default());
        let mut kept = whole.clone();
        kept.retain(|_, _| true);
        assert_eq!(kept, whole);
    }
}
