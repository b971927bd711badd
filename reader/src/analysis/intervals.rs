//! The intervals of snapshots in which allocations were live, stored compactly: there may be many millions.
//!
//! Each row is a sequence of prefix varints:
//!
//! ```text
//! group   end±   distance   bytes   count
//! ```
//!
//! `end` is a moment, as the difference to the previous row's; `distance` is the number of moments between the first
//! one and the end. A row with distance 0 is live at the end of the recording; its `end` is its first moment.
//!
//! Invariant: rows are read as they were written, in the same order.

use memtrack_format::varint::{MAX_LEN, read, unzigzag, write, zigzag};
use rustc_hash::FxHashMap;

use super::Tally;

/// Allocations of one group that were live at the same snapshots.
///
/// Allocations that no snapshot saw, made and freed between two neighbours, are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval {
    /// Index into [`Analysis::groups`](super::Analysis::groups).
    pub group: u32,
    /// The first snapshot that shows them.
    pub first_snapshot: u32,
    /// The first snapshot that does not show them any more; `None` for those live at the end.
    pub end_snapshot: Option<u32>,
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
}

/// Which allocations were live at which snapshots; with many snapshots, at some of them only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// A moment is the snapshot with the largest heap of this number of neighbours; 0 means 1.
    pub(super) step: u32,
    /// The indices of the moments, and the number of snapshots; empty if every snapshot is a moment.
    pub(super) moments: Vec<u32>,
    pub(super) rows: PackedRows,
}

impl Intervals {
    /// The snapshots at which the live allocations are known (`None`: all), and the number of neighbours of which each
    /// has the largest heap.
    #[must_use]
    pub fn moments(&self) -> (Option<&[u32]>, u32) {
        (self.moments.split_last().map(|(_, moments)| moments), self.step.max(1))
    }

    /// All intervals; equal ones may come in several parts. They begin and end at snapshots at which the live
    /// allocations are known.
    pub fn iter(&self) -> impl Iterator<Item = Interval> + '_ {
        let snapshot = |moment: u32| self.moments.get(moment as usize).copied().unwrap_or(moment);
        self.rows.iter().map(move |MomentRow { group, first, end, bytes, count }| Interval {
            group,
            first_snapshot: snapshot(first),
            end_snapshot: end.map(snapshot),
            bytes,
            count,
        })
    }

    /// The numbers of moments, and the rows: those that are live at the end are added up, as there may be one for each
    /// block.
    #[must_use]
    pub fn to_parts(&self) -> (Vec<u64>, Vec<u8>) {
        let mut surviving: FxHashMap<(u32, u32), Tally> = FxHashMap::default();
        let mut rows = PackedRows::default();
        for row in self.rows.iter() {
            match row.end {
                Some(_) => rows.push(&row),
                None => surviving.entry((row.group, row.first)).or_default().add(row.bytes, row.count),
            }
        }
        let mut surviving: Vec<_> = surviving.into_iter().collect();
        surviving.sort_unstable_by_key(|(key, _)| *key);
        for ((group, first), Tally { bytes, count, .. }) in surviving {
            rows.push(&MomentRow { group, first, end: None, bytes, count });
        }
        let moments = self.moments.iter().copied().map(u64::from);
        ([self.step.into(), self.moments.len() as u64].into_iter().chain(moments).collect(), rows.bytes)
    }

    /// The intervals with these parts; `None` if they are not of so many groups and snapshots.
    pub fn from_parts(
        numbers: &mut impl Iterator<Item = u64>,
        rows: &[u8],
        groups: usize,
        snapshots: usize,
    ) -> Option<Self> {
        let snapshots = u32::try_from(snapshots).ok()?;
        let step = u32::try_from(numbers.next()?).ok()?;
        let count = numbers.next()?;
        let mut moment = || u32::try_from(numbers.next()?).ok().filter(|moment| *moment <= snapshots);
        let moments: Vec<u32> = (0..count).map(|_| moment()).collect::<Option<_>>()?;
        let last = u32::try_from(moments.len()).ok()?.checked_sub(1).unwrap_or(snapshots);
        let rows = PackedRows { bytes: rows.to_vec(), last: 0 };
        let is_known = |row: MomentRow| {
            (row.group as usize) < groups && row.first <= last && row.end.is_none_or(|end| end <= last)
        };
        let all_known = rows.iter().all(is_known);
        all_known.then_some(Self { step, moments, rows })
    }

    /// Renumbers the groups; rows of groups without a new number are dropped.
    pub(super) fn renumber(&mut self, number: impl Fn(u32) -> Option<u32>) {
        self.rows.rewrite(|row| number(row.group).map(|group| MomentRow { group, ..row }));
    }

    /// Sorts the rows and adds up equal ones.
    #[cfg(test)]
    pub(crate) fn summed(&self) -> Vec<Interval> {
        let mut all: Vec<Interval> = self.iter().collect();
        all.sort_unstable();
        all.dedup_by(|later, kept| {
            let same = Interval { bytes: later.bytes, count: later.count, ..*kept } == *later;
            if same {
                (kept.bytes, kept.count) = (kept.bytes + later.bytes, kept.count + later.count);
            }
            same
        });
        all
    }
}

impl FromIterator<Interval> for Intervals {
    fn from_iter<I: IntoIterator<Item = Interval>>(intervals: I) -> Self {
        let mut all = Self::default();
        for Interval { group, first_snapshot, end_snapshot, bytes, count } in intervals {
            all.rows.push(&MomentRow { group, first: first_snapshot, end: end_snapshot, bytes, count });
        }
        all
    }
}

/// An interval in moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MomentRow {
    pub(super) group: u32,
    pub(super) first: u32,
    pub(super) end: Option<u32>,
    pub(super) bytes: u64,
    pub(super) count: u64,
}

/// Numbers in a row.
const NUMBERS: usize = 5;

/// Encoded rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedRows {
    bytes: Vec<u8>,
    /// The end of the last row.
    last: u32,
}

impl PackedRows {
    /// Adds a row, which ends after it begins.
    pub(super) fn push(&mut self, row: &MomentRow) {
        let end = row.end.unwrap_or(row.first);
        let numbers: [u64; NUMBERS] = [
            row.group.into(),
            zigzag(i64::from(end) - i64::from(self.last)),
            end.saturating_sub(row.first).into(),
            row.bytes,
            row.count,
        ];
        self.last = end;
        let mut buffer = [0; NUMBERS * MAX_LEN];
        // There is room for each number at its longest.
        let len = numbers.iter().fold(0, |at, number| write(&mut buffer, at, *number).unwrap_or(at));
        self.bytes.extend_from_slice(&buffer[..len]);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = MomentRow> + '_ {
        let (mut at, mut last) = (0, 0);
        std::iter::from_fn(move || next(&self.bytes, &mut at, &mut last))
    }

    /// Maps each row to another one, or drops it.
    pub(super) fn rewrite(&mut self, mut change: impl FnMut(MomentRow) -> Option<MomentRow>) {
        let mut rewritten = Self { bytes: Vec::with_capacity(self.bytes.len()), last: 0 };
        self.iter().filter_map(&mut change).for_each(|row| rewritten.push(&row));
        *self = rewritten;
    }
}

fn next(bytes: &[u8], at: &mut usize, last: &mut u32) -> Option<MomentRow> {
    let mut number = || {
        let (number, next) = read(bytes, *at)?;
        *at = next;
        Some(number)
    };
    // The values were written from `u32`s.
    let group = number()? as u32;
    *last = last.wrapping_add(unzigzag(number()?) as u32);
    let distance = number()? as u32;
    let end = (distance > 0).then_some(*last);
    Some(MomentRow { group, first: last.wrapping_sub(distance), end, bytes: number()?, count: number()? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::{Interval, Intervals};

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            rows in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()), 0..40),
        ) {
            let intervals: Vec<Interval> = rows
                .into_iter()
                .map(|(group, first_snapshot, end, bytes, count)| {
                    let end_snapshot = Some(end).filter(|end| *end > first_snapshot);
                    Interval { group, first_snapshot, end_snapshot, bytes, count }
                })
                .collect();
            let packed: Intervals = intervals.iter().copied().collect();
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), &intervals[..]);
            // Parts are of known groups and snapshots, and live ones at the end are added up.
            let small = |interval: &Interval| Interval {
                group: interval.group % 5,
                first_snapshot: interval.first_snapshot % 9,
                end_snapshot: interval.end_snapshot.map(|_| 9),
                bytes: interval.bytes >> 8,
                count: interval.count >> 8,
            };
            let known: Intervals = intervals.iter().map(small).collect();
            let (numbers, rows) = known.to_parts();
            let restored = |groups, snapshots| {
                Intervals::from_parts(&mut numbers.iter().copied(), &rows, groups, snapshots)
            };
            prop_assert_eq!(restored(5, 9).unwrap().summed(), known.summed());
            let largest = known.iter().map(|interval| interval.group).max();
            prop_assert_eq!(largest.and_then(|largest| restored(largest as usize, 9)), None);
            prop_assert_eq!(intervals.iter().any(|interval| interval.end_snapshot.is_some()), restored(5, 8).is_none() );
            let mut odd = packed.clone();
            odd.renumber(|group| (group % 2 == 1).then_some(group / 2));
            let expected = intervals.iter().filter(|interval| interval.group % 2 == 1);
            let expected: Vec<_> = expected.map(|interval| Interval { group: interval.group / 2, ..*interval }).collect();
            prop_assert_eq!(odd.iter().collect::<Vec<_>>(), expected);
        }
    }
}
