//! The objects for which memory is searched, and the words that are their addresses.
//!
//! Invariant: of each object, and of all, a bounded number of words is kept.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::finding::addresses::AddressTable;

/// Words that are kept of one object, and of all.
const MOST_OF_ONE: u8 = 16;
const MOST_FOUND: usize = 1 << 20;

/// A word that is the address of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundPointer {
    pub(crate) object: u32,
    /// Where it lies; 0: in a register.
    pub(crate) address: u64,
    pub(crate) within: PointerRegion,
}

/// What it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerRegion {
    /// The data of a loaded object, by its number.
    Data(u32),
    /// The data of the interpreter, likewise.
    RuntimeData(u32),
    /// A block: its address, and its bytes.
    Block(u64, u64),
    /// The interpreter's state, which is a block of this address and so many bytes.
    State(u64, u64),
    /// The stack of a thread, by its number.
    Stack(u32),
}

impl PointerRegion {
    /// The addresses of the block.
    pub(crate) fn block(self) -> Option<Range<u64>> {
        match self {
            Self::Block(address, bytes) | Self::State(address, bytes) => Some(address..address.saturating_add(bytes)),
            Self::Data(_) | Self::RuntimeData(_) | Self::Stack(_) => None,
        }
    }
}

/// The objects, and what was found of them.
#[derive(Debug)]
pub(crate) struct SearchTargets<'a> {
    rows: &'a AddressTable,
    /// Whether each object is one, by its row.
    is_target: Vec<bool>,
    counts: FxHashMap<u32, u8>,
    pub(crate) found: Vec<FoundPointer>,
}

impl<'a> SearchTargets<'a> {
    /// The objects in these rows, of so many.
    pub(crate) fn new(rows: &'a AddressTable, targets: &[u32], objects: usize) -> Self {
        let mut is_target = vec![false; objects];
        for target in targets {
            is_target.get_mut(*target as usize).into_iter().for_each(|is_one| *is_one = true);
        }
        Self { rows, is_target, counts: FxHashMap::default(), found: Vec::new() }
    }

    /// Keeps a word if it is the address of one of them.
    pub(crate) fn consider(&mut self, word: u64, address: u64, within: PointerRegion) {
        let Some(object) = self.rows.get(word).filter(|row| self.is_target.get(*row as usize) == Some(&true)) else {
            return;
        };
        let count = self.counts.entry(object).or_insert(0);
        if *count < MOST_OF_ONE && self.found.len() < MOST_FOUND {
            *count += 1;
            self.found.push(FoundPointer { object, address, within });
        }
    }

    /// Whether a word may have been left out that was the only one of its object.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= MOST_FOUND
    }
}

#[cfg(test)]
mod tests {
    use super::{FoundPointer, MOST_OF_ONE, PointerRegion, SearchTargets};
    use crate::finding::addresses::AddressTable;

    #[test]
    fn words_are_kept_that_are_the_address_of_a_target() {
        let rows = AddressTable::default();
        for (address, row) in [(0x7000_0010_u64, 0), (0x7000_0030, 1), (0x7000_0050, 2)] {
            rows.get_or_insert(address, || Some(row));
        }
        let (block, data) = (PointerRegion::Block(4096, 512), PointerRegion::Data(3));
        let mut targets = SearchTargets::new(&rows, &[0, 2, 9], 3);
        for word in [0, 0x7000_0030, 0x7000_0018, 0x7000_0050, u64::MAX] {
            targets.consider(word, 4104, block);
        }
        targets.consider(0x7000_0010, 8, data);
        let found = |object, address, within| FoundPointer { object, address, within };
        assert_eq!(targets.found, [found(2, 4104, block), found(0, 8, data)]);
        (0..100).for_each(|at| targets.consider(0x7000_0050, at * 8, data));
        assert_eq!(targets.found.len(), usize::from(MOST_OF_ONE) + 1);
        assert!(!targets.is_full());
    }
}
