//! Failed allocation calls, summed by stack, allocator and thread.
//!
//! They are separate from the groups because they changed nothing: no view and no total includes their bytes.
//! Invariant: no two rows share stack, allocator and thread, and `largest_bytes` is at most `bytes`.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use super::{Group, Tally};
use crate::event::{Event, StackId, ThreadId};

/// The failed calls of one stack, allocator and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedGroup {
    /// The full call stack.
    pub stack: StackId,
    /// The function that failed.
    pub allocator: Allocator,
    /// The thread that called it.
    pub thread: ThreadId,
    /// Bytes requested by all of them. The sum stops at `u64::MAX`.
    pub bytes: u64,
    /// How many.
    pub count: u64,
    /// Bytes requested by the largest of them.
    pub largest_bytes: u64,
    /// When the first of that size failed, in nanoseconds since recording began.
    pub largest_time_ns: u64,
}

/// All of them, in the order of the first of each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    groups: Vec<FailedGroup>,
    /// Their places.
    places: FxHashMap<(StackId, Allocator, ThreadId), usize>,
}

impl Failed {
    /// The groups.
    pub fn iter(&self) -> impl Iterator<Item = &FailedGroup> {
        self.groups.iter()
    }

    /// Bytes and number of all.
    #[must_use]
    pub fn total(&self) -> Tally {
        self.iter().map(|group| Tally { bytes: group.bytes, count: group.count, ..Tally::default() }).sum()
    }

    /// The group with the largest single call, the earliest of equal ones.
    #[must_use]
    pub fn largest(&self) -> Option<&FailedGroup> {
        self.iter().min_by_key(|group| (std::cmp::Reverse(group.largest_bytes), group.largest_time_ns))
    }

    /// Counts one call.
    pub(crate) fn add(&mut self, event: &Event, allocator: Allocator) {
        let Event { stack, thread, size, time_ns, .. } = *event;
        self.push(&FailedGroup {
            stack,
            allocator,
            thread,
            bytes: size,
            count: 1,
            largest_bytes: size,
            largest_time_ns: time_ns,
        });
    }

    /// Adds a group, or adds to the existing one with its key.
    pub(crate) fn push(&mut self, group: &FailedGroup) {
        let place = *self.places.entry(group.key()).or_insert(self.groups.len());
        let Some(known) = self.groups.get_mut(place) else {
            self.groups.push(*group);
            return;
        };
        known.bytes = known.bytes.saturating_add(group.bytes);
        known.count = known.count.saturating_add(group.count);
        if (group.largest_bytes, std::cmp::Reverse(group.largest_time_ns))
            > (known.largest_bytes, std::cmp::Reverse(known.largest_time_ns))
        {
            (known.largest_bytes, known.largest_time_ns) = (group.largest_bytes, group.largest_time_ns);
        }
    }

    /// Keeps some.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&FailedGroup) -> bool) {
        self.groups.retain(keep);
        self.places = self.groups.iter().map(FailedGroup::key).zip(0..).collect();
    }

    /// Maps each row to another stack and allocator, and merges rows that become equal.
    pub(crate) fn merge(&mut self, key: impl Fn(&Group) -> (StackId, Allocator)) {
        for group in std::mem::take(self).groups {
            let (stack, allocator) = key(&Group::new(group.stack, group.allocator, group.thread));
            self.push(&FailedGroup { stack, allocator, ..group });
        }
    }
}

impl FromIterator<FailedGroup> for Failed {
    fn from_iter<I: IntoIterator<Item = FailedGroup>>(groups: I) -> Self {
        let mut failed = Self::default();
        groups.into_iter().for_each(|group| failed.push(&group));
        failed
    }
}

impl FailedGroup {
    fn key(&self) -> (StackId, Allocator, ThreadId) {
        (self.stack, self.allocator, self.thread)
    }
}

#[cfg(test)]
mod tests {
    use super::Failed;
    use crate::analysis::{Group, Tally};
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use memtrack_format::Allocator;

    fn failed(calls: &[(u32, Allocator, u64)]) -> Failed {
        let mut failed = Failed::default();
        for (order, &(stack, allocator, size)) in (0..).zip(calls) {
            let kind = EventKind::FailedAlloc(allocator);
            let (stack, thread, time_ns) = (StackId(stack), ThreadId(0), order * 10);
            failed.add(&Event { kind, address: 0, size, stack, thread, order, time_ns }, allocator);
        }
        failed
    }

    #[test]
    fn calls_are_summed_by_group_and_the_largest_is_the_first_of_its_size() {
        let (malloc, mmap) = (Allocator::Malloc, Allocator::Mmap);
        let mut failed = failed(&[(1, malloc, 5), (2, malloc, 9), (1, malloc, 9), (1, mmap, 1), (1, malloc, 9)]);
        assert_eq!(failed.total(), Tally { bytes: 33, count: 5, ..Tally::default() });
        let told = |failed: &Failed| failed.iter().map(|group| (group.stack.0, group.bytes)).collect::<Vec<_>>();
        assert_eq!(told(&failed), [(1, 23), (2, 9), (1, 1)]);
        let largest = failed.largest().unwrap();
        assert_eq!((largest.stack.0, largest.largest_bytes, largest.largest_time_ns), (2, 9, 10));
        failed.merge(|group: &Group| (StackId(1), group.allocator));
        assert_eq!(told(&failed), [(1, 32), (1, 1)]);
        assert_eq!(failed.largest().unwrap().largest_time_ns, 10);
    }
}
