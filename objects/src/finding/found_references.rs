//! What objects refer to, while they are found: by the rows that they have then.
//!
//! Objects with many items are read in parts by several threads, which are done at different times, so that what is read of those
//! stands apart. Invariant: an object refers to another once, whatever the number of its references to it.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::references::ItemPart;
use crate::side_by_side::{self, SideWork};

/// Of an object that refers to one of so many objects or more, the rows are sorted by a table of all rows.
const SPARSE: usize = 64;

/// The references of the objects that have been read so far.
#[derive(Debug, Default)]
pub(crate) struct FoundReferences {
    /// Where those of each are.
    spans: Vec<ReferenceSpan>,
    all: Vec<u32>,
    /// By rows: those of objects that are read in parts.
    in_parts: FxHashMap<u32, Vec<u32>>,
    /// The first parts of these.
    first_parts: Vec<(u32, ItemPart)>,
    /// Those of which a further part could not be read.
    unreadable: FxHashSet<u32>,
}

/// Where the references of an object are among those of all: the begin above these bits, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceSpan(u64);

const COUNT: u32 = 24;
const MOST_OF_A_SPAN: usize = (1 << COUNT) - 1;

impl ReferenceSpan {
    /// Nothing is known of the object's references.
    const UNREAD: Self = Self(u64::MAX);

    fn new(begin: usize, count: usize) -> Self {
        Self((begin as u64) << COUNT | count as u64)
    }

    fn range(self) -> Range<usize> {
        if self == Self::UNREAD {
            return 0..0;
        }
        let begin = (self.0 >> COUNT) as usize;
        begin..begin + (self.0 as usize & MOST_OF_A_SPAN)
    }
}

/// The order of rows that objects get in the end.
#[derive(Debug, Default)]
pub(crate) struct NewRows {
    /// The new row of each old one.
    pub(crate) new: Vec<u32>,
    /// The old row of each new one.
    pub(crate) old: Vec<u32>,
}

impl NewRows {
    /// These old rows, ascending by their new ones.
    pub(crate) fn of_all(&self, old: &[u32]) -> Vec<u32> {
        let mut new: Vec<u32> = old.iter().map(|old| self.new[*old as usize]).collect();
        new.sort_unstable();
        new
    }
}

impl FoundReferences {
    /// Whether it is known what the object in this row refers to.
    pub(crate) fn is_read(&self, row: usize) -> bool {
        self.spans.get(row).is_some_and(|span| *span != ReferenceSpan::UNREAD)
    }

    /// One reference, which several objects may have.
    pub(crate) fn shared(&mut self, held: u32) -> ReferenceSpan {
        self.all.push(held);
        ReferenceSpan::new(self.all.len() - 1, 1)
    }

    /// Says where the references of the object in this row are.
    pub(crate) fn put(&mut self, row: usize, span: ReferenceSpan) {
        if row >= self.spans.len() {
            self.spans.resize(row + 1, ReferenceSpan::UNREAD);
        }
        self.spans[row] = span;
    }

    /// Adds what the object in this row refers to.
    pub(crate) fn add(&mut self, row: usize, held: impl Iterator<Item = u32>) {
        let begin = self.all.len();
        self.all.extend(held);
        self.all[begin..].sort_unstable();
        let mut kept = begin;
        for at in begin..self.all.len() {
            if at == begin || self.all[at] != self.all[kept - 1] {
                self.all[kept] = self.all[at];
                kept += 1;
            }
        }
        self.all.truncate(kept);
        if kept - begin > MOST_OF_A_SPAN {
            self.in_parts.entry(row as u32).or_default().extend(self.all.drain(begin..));
        }
        self.put(row, ReferenceSpan::new(begin, self.all.len() - begin));
    }

    /// Takes notice of an object that is read in parts, and of the first.
    pub(crate) fn begin_parts(&mut self, row: u32, first: ItemPart) {
        self.first_parts.push((row, first));
    }

    /// The first parts of objects that were read in parts, by their new rows.
    pub(crate) fn first_parts(&self, rows: &NewRows) -> FxHashMap<u32, ItemPart> {
        self.first_parts.iter().map(|(old, part)| (rows.new[*old as usize], part.clone())).collect()
    }

    /// Adds what a further part of an object refers to.
    pub(crate) fn add_part(&mut self, row: u32, held: impl Iterator<Item = u32>) {
        let all = self.in_parts.entry(row).or_default();
        let begin = all.len();
        for held in held {
            // Many items of a list may be one object.
            if all.get(begin..).and_then(<[u32]>::last) != Some(&held) {
                all.push(held);
            }
        }
    }

    /// Takes notice that a further part of an object could not be read: what is behind it may be anything.
    pub(crate) fn end_parts(&mut self, row: u32) {
        self.unreadable.insert(row);
        self.first_parts.retain(|(of, _)| *of != row);
    }

    /// The old rows of objects of which a further part could not be read.
    pub(crate) fn unreadable_rows(&self) -> FxHashSet<u32> {
        self.unreadable.clone()
    }

    /// Whether a further part of an object could not be read.
    pub(crate) fn is_unreadable(&self, row: u32) -> bool {
        self.unreadable.contains(&row)
    }

    /// The references of the object in each new row, ascending, and where each begins. Before there is room for
    /// these, `others` is done.
    pub(crate) fn renumbered<'w>(
        mut self,
        rows: &'w NewRows,
        threads: usize,
        others: Vec<SideWork<'w>>,
    ) -> (Vec<u64>, Vec<u32>) {
        let count = rows.new.len();
        let mut in_parts = std::mem::take(&mut self.in_parts);
        for (row, held) in &mut in_parts {
            held.extend(self.of(*row));
            held.iter_mut().for_each(|held| *held = rows.new[*held as usize]);
            sort_rows(held, count);
        }
        // New rows of those that were read in parts, old ones of the others.
        let own_of = |old: u32| in_parts.get(&old).map_or_else(|| self.of(old), Vec::as_slice);
        let some = count.div_ceil(threads.max(1) * 4).max(1);
        let mut first = vec![0; count + 1];
        let mut work = others;
        let sums = rows.old.chunks(some).zip(first[1..].chunks_mut(some)).map(|(old_rows, ends)| {
            let own_of = &own_of;
            let sum: SideWork<'_> = Box::new(move || {
                let mut sum = 0;
                for (old, end) in old_rows.iter().zip(ends) {
                    sum += own_of(*old).len() as u64;
                    *end = sum;
                }
            });
            sum
        });
        work.extend(sums);
        side_by_side::execute(work, threads);
        let mut all = vec![0; first[1..].chunks(some).filter_map(<[u64]>::last).sum::<u64>() as usize];
        let (mut work, mut rest, mut begin) = (Vec::new(), all.as_mut_slice(), 0);
        for (old_rows, ends) in rows.old.chunks(some).zip(first[1..].chunks_mut(some)) {
            let (before, count) = (begin, ends.last().copied().unwrap_or(0));
            let (part, behind) = rest.split_at_mut(count as usize);
            (rest, begin) = (behind, begin + count);
            let (own_of, in_parts) = (&own_of, &in_parts);
            work.push(move || {
                let mut part = part;
                ends.iter_mut().for_each(|end| *end += before);
                for old in old_rows {
                    let held = own_of(*old);
                    let (own, after) = part.split_at_mut(held.len());
                    own.copy_from_slice(held);
                    if !in_parts.contains_key(old) {
                        own.iter_mut().for_each(|held| *held = rows.new[*held as usize]);
                        own.sort_unstable();
                    }
                    part = after;
                }
            });
        }
        side_by_side::execute(work, threads);
        (first, all)
    }

    /// Those of an object, as they were added at once.
    pub(crate) fn of(&self, row: u32) -> &[u32] {
        let span = self.spans.get(row as usize);
        span.and_then(|span| self.all.get(span.range())).unwrap_or_default()
    }
}

/// Sorts rows of so many, and keeps each once.
fn sort_rows(rows: &mut Vec<u32>, count: usize) {
    if rows.len() < count / SPARSE {
        rows.sort_unstable();
        rows.dedup();
        return;
    }
    let mut is_there = vec![0_u64; count.div_ceil(64)];
    for row in rows.drain(..) {
        is_there[row as usize / 64] |= 1 << (row % 64);
    }
    for (word, begin) in is_there.iter().zip((0_u32..).step_by(64)) {
        let mut left = *word;
        while left != 0 {
            rows.push(begin + left.trailing_zeros());
            left &= left - 1;
        }
    }
}

/// What stands in these rows.
pub(crate) fn in_rows<T: Copy>(rows: &[u32], all: &[T]) -> Vec<T> {
    rows.iter().map(|row| all[*row as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::{FoundReferences, NewRows, sort_rows};

    #[test]
    fn references_of_parts_stand_with_the_others_under_new_rows() {
        let mut found = FoundReferences::default();
        let shared = found.shared(2);
        found.put(3, shared);
        found.add(0, [3, 1, 3].into_iter());
        found.add(1, [0, 2].into_iter());
        found.add_part(1, [2, 3, 3].into_iter());
        assert!(found.is_read(3) && !found.is_read(2) && !found.is_read(4));
        found.add(2, [].into_iter());
        found.add_part(1, [1].into_iter());
        assert!(found.is_read(2));
        let rows = NewRows { new: vec![2, 0, 3, 1], old: vec![1, 3, 0, 2] };
        for threads in [0, 1, 3] {
            let mut again = FoundReferences::default();
            (again.spans, again.all, again.in_parts) = (found.spans.clone(), found.all.clone(), found.in_parts.clone());
            let (first, all) = again.renumbered(&rows, threads, Vec::new());
            assert_eq!(first, [0, 4, 5, 7, 7]);
            assert_eq!(all, [0, 1, 2, 3, 3, 0, 1]);
        }
        assert_eq!(rows.of_all(&[3, 0, 1]), [0, 1, 2]);
    }

    #[test]
    fn few_and_many_rows_are_sorted_alike() {
        let some: Vec<u32> = (0..200_u32).map(|number| number * 7919 % 1000).chain([5, 5, 999, 0]).collect();
        let (mut few, mut many) = (some.clone(), some);
        sort_rows(&mut few, usize::MAX);
        sort_rows(&mut many, 1000);
        assert_eq!(few, many);
        assert!(few.is_sorted_by(|a, b| a < b) && few.len() > 190);
    }
}
