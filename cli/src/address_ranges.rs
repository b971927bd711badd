//! Ranges of addresses with a value each: the mappings of a process, as events map, cut and restore them.
//!
//! Invariant: ranges do not overlap.

use std::collections::BTreeMap;

/// The kernel maps and unmaps whole pages.
const PAGE: u64 = 4096;

/// What is mapped.
#[derive(Clone, Debug)]
pub(crate) struct AddressRanges<T> {
    /// End and value, by start.
    ranges: BTreeMap<u64, (u64, T)>,
}

/// A range, or the part of it that an event has cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange<T> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// What the whole range has.
    pub(crate) value: T,
}

impl<T> Default for AddressRanges<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T: Copy> AddressRanges<T> {
    /// Cuts out what is in this range, to the end of its last page; returns the parts. What is before and after it stays.
    pub(crate) fn cut(&mut self, start: u64, size: u64) -> Vec<AddressRange<T>> {
        if size == 0 {
            return Vec::new();
        }
        let end = page_end(start, size);
        let mut parts = Vec::new();
        while let Some((&at, &(to, value))) = self.ranges.range(..end).next_back().filter(|(_, (to, _))| *to > start) {
            self.ranges.remove(&at);
            self.insert(AddressRange { start: at, end: start, value });
            self.insert(AddressRange { start: end, end: to, value });
            parts.push(AddressRange { start: at.max(start), end: to.min(end), value });
        }
        parts
    }

    /// Adds a range, from which all others have been [cut](Self::cut).
    pub(crate) fn add(&mut self, start: u64, size: u64, value: T) {
        self.insert(AddressRange { start, end: start.saturating_add(size), value });
    }

    /// Adds parts that were cut out, but those in whose place others are by now.
    pub(crate) fn restore(&mut self, parts: impl IntoIterator<Item = AddressRange<T>>) {
        for part in parts {
            if self.ranges.range(..part.end).next_back().is_none_or(|(_, (end, _))| *end <= part.start) {
                self.insert(part);
            }
        }
    }

    /// The value of the range that has this address.
    pub(crate) fn at(&self, address: u64) -> Option<T> {
        self.ranges.range(..=address).next_back().filter(|(_, (end, _))| *end > address).map(|(_, (_, value))| *value)
    }

    fn insert(&mut self, AddressRange { start, end, value }: AddressRange<T>) {
        if start < end {
            self.ranges.insert(start, (end, value));
        }
    }
}

/// The end of the last page of a range.
pub(crate) fn page_end(start: u64, size: u64) -> u64 {
    start.saturating_add(size).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{AddressRange, AddressRanges};

    #[test]
    fn what_is_cut_out_leaves_the_rest_and_can_come_back() {
        let mut ranges = AddressRanges::default();
        ranges.add(0x1000, 0x4000, 'a');
        ranges.add(0x8000, 0x900, 'b');
        // To the end of the page, and over a gap.
        let parts = ranges.cut(0x3000, 0x5001);
        assert_eq!(
            parts,
            [
                AddressRange { start: 0x8000, end: 0x8900, value: 'b' },
                AddressRange { start: 0x3000, end: 0x5000, value: 'a' }
            ]
        );
        assert_eq!(
            [0xfff, 0x1000, 0x2fff, 0x3000, 0x8000].map(|address| ranges.at(address)),
            [None, Some('a'), Some('a'), None, None]
        );
        ranges.add(0x8000, 0x100, 'c');
        ranges.restore(parts);
        assert_eq!(
            [0x3000, 0x4fff, 0x8000, 0x8200].map(|address| ranges.at(address)),
            [Some('a'), Some('a'), Some('c'), None]
        );
        assert!(ranges.cut(0x1000, 0).is_empty() && ranges.cut(u64::MAX, 8).is_empty());
    }
}
