//! Samples: the rows of a view summed by stack, in the order of time.
//!
//! Invariant: the order is total and repeatable. Samples with equal keys keep capture order: the position of the
//! earliest contributing allocation in the total order.

use rustc_hash::FxHashMap;

use super::{Analysis, GroupRow, Tally, Variance};
use crate::event::StackId;

/// What samples are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// The earliest time among the contributing allocations; means something only where times are exact.
    Exact,
    /// The first snapshot that shows one of them.
    Snapshot,
    /// The first of them in the total order.
    Capture,
}

impl Ordering {
    /// The best order for the analysis of a capture of events: exact with timestamps, by snapshot with snapshots, else
    /// capture order. (For aggregated captures it is always capture order.)
    #[must_use]
    pub fn best_for(analysis: &Analysis) -> Self {
        if analysis.exact_times {
            Self::Exact
        } else if analysis.snapshots.is_empty() {
            Self::Capture
        } else {
            Self::Snapshot
        }
    }
}

/// The rows of one full stack, summed over allocators and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// The full call stack.
    pub stack: StackId,
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// How exact they are.
    pub variance: Variance,
    /// Place of the earliest contributor in the total order.
    pub first_order: u64,
    /// The earliest contributor's time, in nanoseconds since recording began.
    pub first_time_ns: u64,
    /// The first snapshot that shows a contributor.
    pub first_snapshot: u32,
}

/// The rows merged by stack, in this order.
#[must_use]
pub fn samples(rows: &[GroupRow], ordering: Ordering) -> Vec<StackSample> {
    let mut samples = merged(rows);
    match ordering {
        Ordering::Exact => samples.sort_by_key(|sample| (sample.first_time_ns, sample.first_order)),
        Ordering::Snapshot => samples.sort_by_key(|sample| (sample.first_snapshot, sample.first_order)),
        Ordering::Capture => samples.sort_by_key(|sample| sample.first_order),
    }
    samples
}

fn merged(rows: &[GroupRow]) -> Vec<StackSample> {
    let mut places: FxHashMap<StackId, usize> = FxHashMap::default();
    let mut samples: Vec<StackSample> = Vec::new();
    for row in rows {
        match places.get(&row.stack) {
            Some(&place) => samples[place].add(row),
            None => {
                places.insert(row.stack, samples.len());
                samples.push(StackSample::from(row));
            }
        }
    }
    samples
}

impl From<&GroupRow> for StackSample {
    fn from(row: &GroupRow) -> Self {
        let &GroupRow { stack, bytes, count, variance, first_order, first_time_ns, first_snapshot, .. } = row;
        Self { stack, bytes, count, variance, first_order, first_time_ns, first_snapshot }
    }
}

impl StackSample {
    /// Bytes and number.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { bytes: self.bytes, count: self.count, variance: self.variance }
    }

    fn add(&mut self, row: &GroupRow) {
        self.bytes = self.bytes.saturating_add(row.bytes);
        self.count = self.count.saturating_add(row.count);
        self.variance += row.variance;
        self.first_order = self.first_order.min(row.first_order);
        self.first_time_ns = self.first_time_ns.min(row.first_time_ns);
        self.first_snapshot = self.first_snapshot.min(row.first_snapshot);
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{Ordering, samples};
    use crate::analysis::GroupRow;
    use crate::event::{StackId, ThreadId};

    fn row(stack: u32, thread: u32, first: (u64, u64, u32)) -> GroupRow {
        let (first_order, first_time_ns, first_snapshot) = first;
        let row = GroupRow::example(StackId(stack), Allocator::Malloc, 10, 1);
        GroupRow { thread: ThreadId(thread), first_order, first_time_ns, first_snapshot, ..row }
    }

    fn order(rows: &[GroupRow], ordering: Ordering) -> Vec<u32> {
        samples(rows, ordering).iter().map(|sample| sample.stack.0).collect()
    }

    #[test]
    fn rows_of_one_stack_are_one_sample_at_its_earliest_place() {
        let rows = [row(1, 0, (5, 50, 1)), row(2, 0, (3, 30, 0)), row(1, 1, (2, 20, 0))];
        let merged = samples(&rows, Ordering::Capture);
        assert_eq!(merged.iter().map(|sample| sample.stack.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            (merged[0].bytes, merged[0].count, merged[0].first_time_ns, merged[0].first_snapshot),
            (20, 2, 20, 0)
        );
    }

    #[test]
    fn each_key_orders_and_ties_keep_capture_order() {
        let rows = [row(1, 0, (9, 10, 2)), row(2, 0, (4, 30, 1)), row(3, 0, (6, 30, 1)), row(4, 0, (5, 40, 1))];
        assert_eq!(order(&rows, Ordering::Exact), [1, 2, 3, 4]);
        assert_eq!(order(&rows, Ordering::Snapshot), [2, 4, 3, 1]);
        assert_eq!(order(&rows, Ordering::Capture), [2, 4, 3, 1]);
    }
}
