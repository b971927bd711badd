//! The objects for which memory is searched, and the words that are their addresses.
//!
//! Invariant: of each object, and of all, a bounded number of words is kept.

use std::ops::Range;

use memtrack_format::objects::PicturedObject;
use rustc_hash::FxHashMap;

use crate::finding::addresses::AddressTable;

/// Words that are kept of one object, and of all.
const MOST_OF_ONE: u8 = 16;
const MOST_FOUND: usize = 1 << 20;
/// Bits of a filter for each address in it, and the logarithms of the fewest and the most of all: the fewest stay in the nearest cache.
const BITS_OF_ONE: usize = 32;
const FEWEST_BITS: u32 = 15;
const MOST_BITS: u32 = 24;

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

/// Tells most words that are not among some addresses.
#[derive(Debug)]
struct AddressFilter {
    bits: Vec<u64>,
    /// The logarithm of their number.
    size: u32,
}

impl AddressFilter {
    /// One for so many addresses.
    fn new(count: usize) -> Self {
        let size = count.saturating_mul(BITS_OF_ONE).max(1).ilog2().clamp(FEWEST_BITS, MOST_BITS);
        Self { bits: vec![0; 1 << (size - u64::BITS.ilog2())], size }
    }

    fn add(&mut self, address: u64) {
        let (word, bit) = self.place(address);
        self.bits[word] |= bit;
    }

    /// Whether a word may be one of the addresses; `false`: it is none.
    fn may_have(&self, word: u64) -> bool {
        let (place, bit) = self.place(word);
        self.bits[place] & bit != 0
    }

    /// The word that has the bit of an address, and that bit.
    fn place(&self, address: u64) -> (usize, u64) {
        const SCATTERING: u64 = 0x9e37_79b9_7f4a_7c15;
        let number = address.wrapping_mul(SCATTERING) >> (u64::BITS - self.size);
        ((number / u64::from(u64::BITS)) as usize, 1 << (number % u64::from(u64::BITS)))
    }
}

/// The objects, and what was found of them.
#[derive(Debug)]
pub(crate) struct SearchTargets<'a> {
    rows: &'a AddressTable,
    /// Of the addresses of the objects. Most words are addresses of other objects, whose rows lie anywhere.
    filter: AddressFilter,
    /// Whether each object is one, by its row.
    is_target: Vec<bool>,
    counts: FxHashMap<u32, u8>,
    pub(crate) found: Vec<FoundPointer>,
}

impl<'a> SearchTargets<'a> {
    /// Those in some rows of all objects.
    pub(crate) fn new(rows: &'a AddressTable, targets: &[u32], objects: &[PicturedObject]) -> Self {
        let (mut is_target, mut filter) = (vec![false; objects.len()], AddressFilter::new(targets.len()));
        for target in targets {
            if let Some(object) = objects.get(*target as usize) {
                is_target[*target as usize] = true;
                filter.add(object.address);
            }
        }
        Self { rows, filter, is_target, counts: FxHashMap::default(), found: Vec::new() }
    }

    /// Keeps a word if it is the address of one of them.
    pub(crate) fn consider(&mut self, word: u64, address: u64, within: PointerRegion) {
        if !self.filter.may_have(word) {
            return;
        }
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
    use memtrack_format::objects::PicturedObject;

    use super::{AddressFilter, BITS_OF_ONE, FoundPointer, MOST_OF_ONE, PointerRegion, SearchTargets};
    use crate::finding::addresses::AddressTable;

    #[test]
    fn words_are_kept_that_are_the_address_of_a_target() {
        let rows = AddressTable::default();
        let objects = [0x7000_0010, 0x7000_0030, 0x7000_0050]
            .map(|address| PicturedObject { address, ..PicturedObject::default() });
        for (object, row) in objects.iter().zip(0..) {
            rows.get_or_insert(object.address, || Some(row));
        }
        let (block, data) = (PointerRegion::Block(4096, 512), PointerRegion::Data(3));
        let mut targets = SearchTargets::new(&rows, &[0, 2, 9], &objects);
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

    #[test]
    fn a_filter_has_all_that_was_added_and_little_else() {
        for count in [0_u64, 1, 100, 10_000] {
            let mut filter = AddressFilter::new(count as usize);
            (0..count).for_each(|number| filter.add(0x7000_0000 + number * 48));
            assert!((0..count).all(|number| filter.may_have(0x7000_0000 + number * 48)));
            let others = (0..100_000_u64).filter(|number| filter.may_have(0x7f00_0000_0008 + number * 48)).count();
            assert!(others < 100_000 * 3 / BITS_OF_ONE, "{others} of {count}");
        }
    }
}
