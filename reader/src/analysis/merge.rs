//! Merges groups that reports do not distinguish.
//!
//! Invariant: afterwards each group's sums, detail and intervals are in exactly one group, and groups are in the order
//! of their first allocation.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use super::flow::hold_again;
use super::{Analysis, Detail, Group, Groups, ViewVariances};
use crate::event::StackId;

impl Analysis {
    /// Merges groups that differ only in the domain of Python's allocators.
    pub fn merge_domains(&mut self) {
        let of_groups = self.groups.iter().map(|group| group.allocator);
        if of_groups.chain(self.failed.iter().map(|failed| failed.allocator)).any(|one| one != one.function()) {
            self.merge_groups(|group| (group.stack, group.allocator.function()));
        }
    }

    /// Maps each group to another stack and allocator, and merges groups of a thread that become equal; returns the
    /// new number of each.
    pub fn merge_groups(&mut self, key: impl Fn(&Group) -> (StackId, Allocator)) -> Vec<u32> {
        self.failed.merge(&key);
        self.mapped.merge(&key);
        self.windows.iter_mut().for_each(|window| window.merge(&key));
        hold_again(&mut self.windows);
        let numbers = self.groups.merge(key);
        self.merge_details(&numbers);
        if let Some(intervals) = &mut self.intervals {
            intervals.renumber(|group| numbers.get(group as usize).copied());
        }
        numbers
    }

    /// Merges groups with equal place, allocator and thread; `places` has the place of each group. Returns the places
    /// of the remaining groups, each of which keeps the stack of its first.
    pub fn merge_at(&mut self, places: &[u32]) -> Vec<u32> {
        let (mut numbers, mut known) = (Vec::with_capacity(places.len()), FxHashMap::default());
        let (mut merged, mut kept) = (Groups::default(), Vec::new());
        for (group, place) in self.groups.iter().zip(places) {
            let number = *known.entry((*place, group.thread, group.allocator)).or_insert(kept.len() as u32);
            if number as usize == kept.len() {
                merged.push(&group);
                kept.push(*place);
            } else {
                merged.change(number as usize, |known| known.add(&group));
            }
            numbers.push(number);
        }
        self.groups = merged;
        self.merge_details(&numbers);
        if let Some(intervals) = &mut self.intervals {
            intervals.renumber(|group| numbers.get(group as usize).copied());
        }
        kept
    }

    fn merge_details(&mut self, numbers: &[u32]) {
        self.details = self.details.take().map(|details| merged(details, numbers, Detail::add));
        self.variances = self.variances.take().map(|variances| merged(variances, numbers, ViewVariances::add));
    }
}

/// What groups had, of the groups that they have become.
fn merged<T>(of_groups: Vec<T>, numbers: &[u32], add: impl Fn(&mut T, &T)) -> Vec<T> {
    let mut merged: Vec<T> = Vec::new();
    for (one, number) in of_groups.into_iter().zip(numbers) {
        // A number that is not yet there is the next one.
        match merged.get_mut(*number as usize) {
            None => merged.push(one),
            Some(known) => add(known, &one),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use crate::analysis::{Analysis, Detail, Group, GroupFlow, Interval, SiteWindow, Sum, Tally};
    use crate::event::{StackId, ThreadId};

    fn interval(group: u32, first_snapshot: u32, bytes: u64) -> Interval {
        Interval { group, first_snapshot, end_snapshot: None, bytes, count: 1 }
    }

    /// Four groups, of stacks 1, 2, 3 and 2 in another thread, with details and intervals.
    fn example() -> Analysis {
        let groups = [(1, 0), (2, 0), (3, 0), (2, 1)].map(|(stack, thread)| {
            let sum = Sum { bytes: 10, count: 1, first_order: u64::from(stack), first_time_ns: 0 };
            Group { allocated: sum, ..Group::new(StackId(stack), Allocator::Malloc, ThreadId(thread)) }
        });
        let details = [1, 2, 4, 8].map(|freed| Detail { freed, ..Detail::default() });
        let intervals =
            [interval(0, 0, 1), interval(1, 0, 2), interval(2, 0, 4), interval(2, 1, 8), interval(3, 0, 16)];
        Analysis {
            groups: groups.into_iter().collect(),
            details: Some(details.into()),
            intervals: Some(intervals.into_iter().collect()),
            ..Analysis::default()
        }
    }

    #[test]
    fn what_idle_groups_hold_belongs_to_the_merged_one() {
        let tally = |bytes| Tally { bytes, count: bytes / 10, ..Tally::default() };
        let row = |stack, allocated, freed, live, peak| GroupFlow {
            stack: StackId(stack),
            thread: ThreadId(0),
            allocator: Allocator::Malloc,
            allocated: tally(allocated),
            freed: tally(freed),
            live: tally(live),
            peak: Some(tally(peak)),
        };
        let mut analysis = example();
        analysis.windows = [vec![row(2, 50, 0, 50, 50), row(3, 30, 10, 20, 30)], vec![row(3, 10, 0, 30, 30)]]
            .into_iter()
            .map(|rows| SiteWindow { rows, ..SiteWindow::default() })
            .collect();
        analysis.merge_groups(|group| (StackId(group.stack.0.min(2)), group.allocator));
        let rows: Vec<_> = analysis.windows.into_iter().flat_map(|window| window.rows).collect();
        assert_eq!(rows, [row(2, 80, 10, 70, 80), row(2, 10, 0, 80, 80)]);
    }

    #[test]
    fn equal_keys_are_one_group_in_each_thread() {
        let mut analysis = example();
        analysis.merge_groups(|group| (StackId(group.stack.0.min(2)), group.allocator));
        let told: Vec<_> = analysis
            .groups
            .iter()
            .map(|group| (group.stack.0, group.thread.0, group.allocated.bytes, group.allocated.first_order))
            .collect();
        assert_eq!(told, [(1, 0, 10, 1), (2, 0, 20, 2), (2, 1, 10, 2)]);
        let freed: Vec<_> = analysis.details.unwrap().iter().map(|detail| detail.freed).collect();
        assert_eq!(freed, [1, 6, 8]);
        let merged = Interval { count: 2, ..interval(1, 0, 6) };
        assert_eq!(
            analysis.intervals.unwrap().summed(),
            [interval(0, 0, 1), merged, interval(1, 1, 8), interval(2, 0, 16)]
        );
    }

    #[test]
    fn domains_are_one_allocator() {
        let mut analysis = example();
        analysis.groups.change(1, |group| group.allocator = Allocator::PymallocCallocMem);
        analysis.groups.change(2, |group| {
            (group.allocator, group.stack) = (Allocator::PymallocCalloc, StackId(2));
        });
        analysis.merge_domains();
        let told: Vec<_> = analysis.groups.iter().map(|group| (group.allocator, group.allocated.bytes)).collect();
        let (malloc, calloc) = (Allocator::Malloc, Allocator::PymallocCalloc);
        assert_eq!(told, [(malloc, 10), (calloc, 20), (malloc, 10)]);
    }

    #[test]
    fn groups_of_one_place_are_one_in_each_thread() {
        let mut analysis = example();
        assert_eq!(analysis.merge_at(&[7, 5, 7, 5]), [7, 5, 5]);
        let told: Vec<_> =
            analysis.groups.iter().map(|group| (group.stack.0, group.thread.0, group.allocated.bytes)).collect();
        assert_eq!(told, [(1, 0, 20), (2, 0, 10), (2, 1, 10)]);
        let freed: Vec<_> = analysis.details.unwrap().iter().map(|detail| detail.freed).collect();
        assert_eq!(freed, [5, 2, 8]);
        let merged = Interval { count: 2, ..interval(0, 0, 5) };
        let expected = [merged, interval(0, 1, 8), interval(1, 0, 2), interval(2, 0, 16)];
        assert_eq!(analysis.intervals.unwrap().summed(), expected);
    }

    #[test]
    fn different_keys_change_nothing() {
        let mut analysis = example();
        analysis.merge_groups(|group| (group.stack, group.allocator));
        assert_eq!(analysis, example());
    }
}
