//! All groups of an analysis, in the order of their first allocation, stored compactly: there may be many millions.
//!
//! Most groups have a stack that allocated a few times and have nothing live at any moment of interest. So a group's
//! row has only the sum of all its allocations; its other sums are stored apart, if they are not empty.
//!
//! Invariant: no two rows share a sum except the empty one, number 0, which is never written to.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use memtrack_format::Allocator;
use rustc_hash::FxBuildHasher;

use super::{Group, Sum, Tally, Totals};
use crate::event::{StackId, ThreadId};

/// The sums of a group that may be empty.
#[derive(Clone, Copy, Debug)]
pub(super) enum OptionalSum {
    Peak,
    Leaked,
    LeakedAtExit,
    Pinned,
    Objects,
    Temporary,
}

impl OptionalSum {
    const ALL: [Self; 6] = [Self::Peak, Self::Leaked, Self::LeakedAtExit, Self::Pinned, Self::Objects, Self::Temporary];
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredGroup {
    bytes: u64,
    first_order: u64,
    first_time_ns: u64,
    /// The number of allocations, and the allocator in the lowest eight bits.
    count_by: u64,
    pub(super) stack: StackId,
    pub(super) thread: ThreadId,
    /// Index of the sum of temporary allocations: most groups have this one or no other.
    temporary: u32,
    /// Index of the entry with the indices of the other sums.
    others: u32,
}

const _: () = assert!(size_of::<StoredGroup>() == 48, "a row is stored for each group");

/// One allocation in [`StoredGroup::count_by`].
const ONE: u64 = 1 << u8::BITS;

impl StoredGroup {
    fn new(group: &Group) -> Self {
        let Group { stack, thread, .. } = *group;
        let none =
            Self { bytes: 0, first_order: 0, first_time_ns: 0, count_by: 0, stack, thread, temporary: 0, others: 0 };
        none.with(group.allocator, &group.allocated)
    }

    /// The packed word for this allocator and sum. A count stops at 2^56 - 1, which only a forged capture reaches.
    fn with(self, allocator: Allocator, &Sum { bytes, count, first_order, first_time_ns }: &Sum) -> Self {
        let count_by = (count.min(u64::MAX / ONE) * ONE) | allocator as u64;
        Self { bytes, first_order, first_time_ns, count_by, ..self }
    }

    pub(super) fn allocated(&self) -> Sum {
        let Self { bytes, first_order, first_time_ns, .. } = *self;
        Sum { bytes, count: self.count_by / ONE, first_order, first_time_ns }
    }

    /// Counts so many bytes and allocations, made at this order and time.
    #[inline]
    pub(super) fn allocate(&mut self, (bytes, count): (u64, u64), order: u64, time_ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count_by = self.count_by.checked_add(ONE.saturating_mul(count)).unwrap_or(self.count_by);
        self.first_order = self.first_order.min(order);
        self.first_time_ns = self.first_time_ns.min(time_ns);
    }

    /// The same, wherever in the order.
    #[inline]
    pub(super) fn count(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count_by = self.count_by.checked_add(ONE).unwrap_or(self.count_by);
    }

    /// Whether this is the group with that key.
    #[inline]
    pub(super) fn is_of(&self, stack: StackId, thread: ThreadId, allocator: Allocator) -> bool {
        (self.stack, self.thread, self.count_by as u8) == (stack, thread, allocator as u8)
    }

    /// The function that allocated it.
    pub(super) fn allocator(&self) -> Allocator {
        // It was a valid number when it was stored.
        Allocator::from_number(self.count_by as u8).unwrap_or(Allocator::Malloc)
    }

    fn key(&self) -> (StackId, ThreadId, Allocator) {
        (self.stack, self.thread, self.allocator())
    }

    fn hash(&self) -> u64 {
        hash(self.key())
    }
}

fn hash(key: impl Hash) -> u64 {
    FxBuildHasher.hash_one(key)
}

/// Keeps the items that are marked, by number.
pub(super) fn retain_marked<T>(items: &mut Vec<T>, kept: &[bool]) {
    let mut marks = kept.iter();
    items.retain(|_| marks.next().is_some_and(|kept| *kept));
}

/// The groups.
#[derive(Clone, Debug)]
pub struct Groups {
    rows: Vec<StoredGroup>,
    /// For rows with more than the temporary sum, the indices of the other sums; the first entry is that of rows
    /// without.
    others: Vec<[u32; OptionalSum::Temporary as usize]>,
    /// The first is the empty one.
    sums: Vec<Sum>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { rows: Vec::new(), others: vec![Default::default()], sums: vec![Sum::default()] }
    }
}

impl Groups {
    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn rows(&self) -> &[StoredGroup] {
        &self.rows
    }

    /// The group with this number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Group> {
        self.rows.get(number).map(|row| self.group(row))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Group> + DoubleEndedIterator + Clone + '_ {
        self.rows.iter().map(|row| self.group(row))
    }

    /// Adds one, which is the last.
    pub fn push(&mut self, group: &Group) {
        self.rows.push(StoredGroup::new(group));
        self.set_parts(self.rows.len() - 1, group);
    }

    /// Changes the group with this number.
    pub fn change(&mut self, number: usize, change: impl FnOnce(&mut Group)) {
        let Some(mut group) = self.get(number) else { return };
        change(&mut group);
        let Group { stack, allocator, thread, allocated, .. } = group;
        let row = &mut self.rows[number];
        *row = StoredGroup { stack, thread, ..*row }.with(allocator, &allocated);
        self.set_parts(number, &group);
    }

    /// Changes all of them.
    pub fn change_all(&mut self, mut change: impl FnMut(&mut Group)) {
        (0..self.len()).for_each(|number| self.change(number, &mut change));
    }

    /// Sets the totals that are sums over groups, but for the moment of the peak.
    pub(super) fn sum_up(&self, totals: &mut Totals) {
        let total = |part: fn(&Group) -> &Sum| self.iter().map(|group| part(&group).tally()).sum::<Tally>();
        let peak = total(|group| &group.peak);
        (totals.peak.bytes, totals.peak.allocations) = (peak.bytes, peak.count);
        totals.allocations = total(|group| &group.allocated);
        totals.leaked = total(|group| &group.leaked);
        totals.leaked_at_exit = total(|group| &group.leaked_at_exit);
        totals.temporary = total(|group| &group.temporary);
    }

    /// Maps each group to another stack.
    pub(crate) fn change_stacks(&mut self, change: impl Fn(StackId) -> StackId) {
        self.rows.iter_mut().for_each(|row| row.stack = change(row.stack));
    }

    /// The same with a map that may fail; what was mapped before that stays mapped.
    pub(crate) fn try_change_stacks<E>(
        &mut self,
        mut change: impl FnMut(StackId) -> Result<StackId, E>,
    ) -> Result<(), E> {
        self.rows.iter_mut().try_for_each(|row| change(row.stack).map(|stack| row.stack = stack))
    }

    /// Copies one of the sums of each group to another.
    pub(super) fn copy_part(&mut self, from: OptionalSum, to: OptionalSum) {
        for number in 0..self.rows.len() as u32 {
            let sum = *self.part(number, from);
            if sum != *self.part(number, to) {
                *self.part_mut(number, to) = sum;
            }
        }
    }

    /// Keeps those that are marked, by number.
    pub(super) fn retain(&mut self, kept: &[bool]) {
        retain_marked(&mut self.rows, kept);
    }

    /// Maps each group to another stack and allocator, and merges groups of a thread that become equal; returns the new
    /// number of each.
    pub(super) fn merge(&mut self, key: impl Fn(&Group) -> (StackId, Allocator)) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(self.len());
        let mut known: HashTable<u32> = HashTable::new();
        let mut kept = 0;
        for at in 0..self.rows.len() {
            let mut row = self.rows[at];
            let (stack, allocator) = key(&self.group(&row));
            row = StoredGroup { stack, ..row }.with(allocator, &row.allocated());
            let rows = &self.rows;
            let is_same = |&number: &u32| rows[number as usize].key() == row.key();
            match known.entry(row.hash(), is_same, |&number| rows[number as usize].hash()) {
                Entry::Occupied(same) => {
                    let number = *same.get();
                    numbers.push(number);
                    self.absorb(number as usize, &row);
                }
                Entry::Vacant(new) => {
                    // Groups are numbered by 32 bits throughout, and there are no more than before.
                    new.insert(kept as u32);
                    numbers.push(kept as u32);
                    self.rows[kept] = row;
                    kept += 1;
                }
            }
        }
        self.rows.truncate(kept);
        numbers
    }

    /// Adds the sums of a row that is about to be removed to those of another.
    fn absorb(&mut self, number: usize, other: &StoredGroup) {
        let mut row = self.rows[number];
        let mut allocated = row.allocated();
        allocated.merge(&other.allocated());
        row = row.with(row.allocator(), &allocated);
        row.temporary = self.either(row.temporary, other.temporary);
        if row.others == 0 {
            row.others = other.others;
        } else {
            for part in 0..self.others[0].len() {
                let [own, theirs] = [row.others, other.others].map(|at| self.others[at as usize][part]);
                self.others[row.others as usize][part] = self.either(own, theirs);
            }
        }
        self.rows[number] = row;
    }

    /// The index of the sum of two sums, of which the second belongs to a row that is about to be removed.
    fn either(&mut self, own: u32, theirs: u32) -> u32 {
        if own == 0 {
            return theirs;
        }
        let theirs = self.sums[theirs as usize];
        self.sums[own as usize].merge(&theirs);
        own
    }

    fn group(&self, row: &StoredGroup) -> Group {
        let part = |part| self.sums[self.place(row, part)];
        Group {
            stack: row.stack,
            allocator: row.allocator(),
            thread: row.thread,
            allocated: row.allocated(),
            peak: part(OptionalSum::Peak),
            leaked: part(OptionalSum::Leaked),
            leaked_at_exit: part(OptionalSum::LeakedAtExit),
            temporary: part(OptionalSum::Temporary),
            pinned: part(OptionalSum::Pinned),
            objects: part(OptionalSum::Objects),
        }
    }

    fn set_parts(&mut self, number: usize, group: &Group) {
        let parts = [group.peak, group.leaked, group.leaked_at_exit, group.pinned, group.objects, group.temporary];
        for (part, sum) in OptionalSum::ALL.into_iter().zip(parts) {
            if *self.part(number as u32, part) != sum {
                *self.part_mut(number as u32, part) = sum;
            }
        }
    }

    /// The row of a group that is there.
    #[inline]
    pub(super) fn row(&self, number: u32) -> Option<&StoredGroup> {
        self.rows.get(number as usize)
    }

    /// The row of a group, if it is that with this key.
    #[inline(always)]
    pub(super) fn known_row(
        &mut self,
        number: u32,
        stack: StackId,
        thread: ThreadId,
        allocator: Allocator,
    ) -> Option<&mut StoredGroup> {
        self.rows.get_mut(number as usize).filter(|row| row.is_of(stack, thread, allocator))
    }

    #[inline]
    pub(super) fn row_mut(&mut self, number: u32) -> &mut StoredGroup {
        &mut self.rows[number as usize]
    }

    /// One of the other sums of a group that is there.
    #[inline]
    pub(super) fn part(&self, number: u32, part: OptionalSum) -> &Sum {
        &self.sums[self.place(&self.rows[number as usize], part)]
    }

    /// Where one of a row's sums stands.
    #[inline]
    fn place(&self, row: &StoredGroup, part: OptionalSum) -> usize {
        let place = match part {
            OptionalSum::Temporary => row.temporary,
            other => self.others[row.others as usize][other as usize],
        };
        place as usize
    }

    /// The same, for changes; from now on the sum is stored.
    #[inline]
    pub(super) fn part_mut(&mut self, number: u32, part: OptionalSum) -> &mut Sum {
        let Self { rows, others, sums } = self;
        let row = &mut rows[number as usize];
        let place = match part {
            OptionalSum::Temporary => &mut row.temporary,
            other => {
                if row.others == 0 {
                    row.others = others.len() as u32;
                    others.push(Default::default());
                }
                &mut others[row.others as usize][other as usize]
            }
        };
        if *place == 0 {
            // Never cut off: 2^32 sums would take a hundred gigabytes of memory first.
            *place = sums.len() as u32;
            sums.push(Sum::default());
        }
        &mut sums[*place as usize]
    }
}

impl PartialEq for Groups {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl FromIterator<Group> for Groups {
    fn from_iter<I: IntoIterator<Item = Group>>(groups: I) -> Self {
        let mut all = Self::default();
        groups.into_iter().for_each(|group| all.push(&group));
        all
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{Group, Groups, OptionalSum, Sum};
    use crate::event::{StackId, ThreadId};

    fn sum(bytes: u64) -> Sum {
        Sum { bytes, count: 1, first_order: bytes, first_time_ns: bytes }
    }

    fn group(stack: u32) -> Group {
        let group = Group::new(StackId(stack), Allocator::Malloc, ThreadId(0));
        let bytes = u64::from(stack);
        match stack % 3 {
            0 => Group { allocated: sum(bytes), peak: sum(bytes + 1), temporary: sum(bytes + 2), ..group },
            1 => Group { allocated: sum(bytes), leaked: sum(bytes), ..group },
            _ => Group { allocated: sum(bytes), leaked_at_exit: sum(bytes), leaked: sum(1), ..group },
        }
    }

    #[test]
    fn groups_come_out_as_they_went_in() {
        let all: Vec<Group> = (0..10).map(group).collect();
        let mut groups: Groups = all.iter().copied().collect();
        assert_eq!(groups.iter().collect::<Vec<_>>(), all);
        assert_eq!((groups.len(), groups.get(10)), (10, None));
        groups.retain(&[false, true].repeat(5));
        assert_eq!(groups.iter().collect::<Vec<_>>(), all.into_iter().skip(1).step_by(2).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_is_of_one_group_alone() {
        let mut groups: Groups = (0..4).map(group).collect();
        groups.change(1, |group| (group.temporary, group.leaked.bytes) = (sum(9), 8));
        let changed = Group { temporary: sum(9), leaked: Sum { bytes: 8, ..sum(1) }, ..group(1) };
        assert_eq!(groups.iter().collect::<Vec<_>>(), [group(0), changed, group(2), group(3)]);
        groups.part_mut(3, OptionalSum::LeakedAtExit).add(5, 1, 0, 0);
        assert_eq!(
            (groups.part(0, OptionalSum::LeakedAtExit).bytes, groups.part(3, OptionalSum::LeakedAtExit).bytes),
            (0, 5)
        );
    }

    #[test]
    fn merged_groups_have_the_sums_of_all() {
        let all: Vec<Group> = (0..10).map(group).collect();
        let mut groups: Groups = all.iter().copied().collect();
        let numbers = groups.merge(|group| (StackId(group.stack.0 % 4), group.allocator));
        assert_eq!(numbers, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
        for (number, merged) in groups.iter().enumerate() {
            let mut parts = all.iter().skip(number).step_by(4);
            let mut expected = *parts.next().unwrap();
            parts.for_each(|part| expected.add(part));
            assert_eq!(merged, expected);
        }
    }
}
