//! The blocks in use in which an object may be that no list of the collector has: those of Python's allocator and, for what
//! is too large for it, of the C library's.
//!
//! Both are known by what stands at places of their kind in memory that can be written and is of no file. Invariant: of memory
//! that has neither, a few words of each page are read, and of a program with terabytes of it a bounded number of pages.

use std::ops::Range;

use memtrack_inject::ProcessView;

use crate::allocators::malloc_chunks::{mapped, of_heap, of_main_heap};
use crate::allocators::pymalloc::PoolLayout;
use crate::finding::addresses::AddressTable;
use crate::memory::{GUARD, GUARDED, ObjectMemory, Words};
use crate::object::object_head::HEADER;

const PAGE: u64 = 4 << 10;
/// Pages in which nothing is found that are looked at: of one range after another, and of all.
const MOST_IN_A_ROW: u64 = 256 << 10;
const MOST_PAGES: u64 = 4 << 20;

/// Bytes of an object up to and with its type; of the collector's header before, and of the pointers before that, in objects of
/// types that have such.
const HEAD: u64 = 16;
const PREFIX: u64 = 16;
/// Bytes of guards, pointers and header that may be before an object.
const MOST_BEFORE: u64 = 2 * GUARDED + HEADER + PREFIX;

/// A block in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockInUse {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

impl BlockInUse {
    pub(crate) fn end(self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// The address of a known object in it. Most blocks have one, which is found without reading the block.
    pub(crate) fn known(self, rows: &AddressTable) -> Option<u64> {
        let places = (0..=MOST_BEFORE / HEADER).map(|step| self.address + step * HEADER);
        places.filter(|at| at + HEAD <= self.end()).find(|at| rows.get(*at).is_some())
    }

    /// Where what was requested begins, and the places in it at which an object may be.
    pub(crate) fn places(self, memory: &ObjectMemory<'_>) -> (u64, impl Iterator<Item = u64> + use<>) {
        let Self { address, .. } = self;
        let guards = [0, GUARDED].map(|at| memory.u64((address + at).wrapping_add(8)).unwrap_or(0));
        let is_guard = |word: u64| word >> 8 == GUARD >> 8;
        let (begin, is_for_objects) = match guards {
            [GUARD, _] => (address + GUARDED, true),
            // What is too large for blocks of pools has a guard of each of the two allocators.
            [other, GUARD] if is_guard(other) => (address + 2 * GUARDED, true),
            [other, _] => (address, !is_guard(other)),
        };
        let places = [0, HEADER, HEADER + PREFIX].map(|before| begin + before);
        (begin, places.into_iter().filter(move |at| is_for_objects && at + HEAD <= self.end()))
    }
}

/// Blocks in use, as far as they are no object's that is known.
#[derive(Debug, Default)]
pub(crate) struct ScreenedBlocks {
    /// Those that have to be looked at: an object may be in them.
    pub(crate) new: Vec<BlockInUse>,
    /// Those in which there is no object, for C code or for what objects have outside of themselves; unless nobody asks for them.
    pub(crate) others: Vec<BlockInUse>,
    has_others: bool,
}

impl ScreenedBlocks {
    /// What is to be known of all blocks; whether it is asked which ones have no object.
    pub(crate) fn of_all(has_others: bool) -> Self {
        Self { has_others, ..Self::default() }
    }

    /// Adds those of another part of memory.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.new.append(&mut more.new);
        if self.has_others {
            self.others.append(&mut more.others);
        }
    }
}

/// Where blocks may be.
#[derive(Clone, Debug)]
pub(crate) struct BlockPlaces {
    program_break: Option<Range<u64>>,
    others: Vec<Range<u64>>,
    pools: PoolLayout,
}

impl BlockPlaces {
    /// Those of a process.
    pub(crate) fn of(view: &ProcessView, pools: PoolLayout) -> Self {
        Self { program_break: view.program_break(), others: view.anonymous().collect(), pools }
    }

    /// Calls `each` with the address and the size of every block in use. `probe` is for single words, `words` for many. The result is
    /// whether all places were looked at: where there is nothing for long, the rest is left out.
    pub(crate) fn blocks(&self, probe: &impl Words, words: &impl Words, mut each: impl FnMut(u64, u64)) -> bool {
        if let Some(range) = &self.program_break {
            of_main_heap(words, range.clone(), &mut each);
        }
        let (mut left, mut is_all) = (MOST_PAGES, true);
        for range in &self.others {
            let (mut at, mut last) = (range.start, range.start);
            while at < range.end && at - last < MOST_IN_A_ROW * PAGE && left > 0 {
                let heap = of_heap(words, at, range.end, &mut each);
                let found = heap.or_else(|| self.pools.blocks((probe, words), at, &mut each));
                let found = found.or_else(|| mapped(probe, at, range.end, &mut each));
                left -= u64::from(found.is_none());
                last = found.unwrap_or(last);
                at = found.unwrap_or(at + PAGE);
            }
            is_all &= at >= range.end;
        }
        is_all
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockPlaces, MOST_IN_A_ROW, PAGE};
    use crate::allocators::pymalloc::PoolLayout;
    use crate::memory::MadeWords;

    const AT: u64 = 0x7f00_0000_4000;
    const BREAK: u64 = 0x5555_0000_0000;

    #[test]
    fn pools_and_chunks_are_found_side_by_side() {
        let mut made = MadeWords::default();
        let pool = AT + 0x10_000;
        let mapped = [AT + 0x1000, AT + 0x3000, AT + 0x18_000, AT + MOST_IN_A_ROW * PAGE * 2];
        made.0.extend(mapped.map(|at| (at + 8, 0x2002)));
        made.pool(pool, 2, &[]);
        made.0.extend([(BREAK + 8, 0x31), (BREAK + 0x38, 0xfd1)]);
        let range = AT..AT + MOST_IN_A_ROW * PAGE * 3;
        let places =
            BlockPlaces { program_break: Some(BREAK..BREAK + 0x1000), others: vec![range], pools: PoolLayout::of(12) };
        let mut found = Vec::new();
        assert!(!places.blocks(&made, &made, |at, size| found.push((at, size))));
        let mut expected = vec![(BREAK + 0x10, 0x28)];
        expected.extend([(mapped[0] + 0x10, 0x1ff0), (mapped[1] + 0x10, 0x1ff0)]);
        expected.extend([(pool + 48, 64), (pool + 112, 64), (mapped[2] + 0x10, 0x1ff0)]);
        // The last one is too far from what was found before.
        assert_eq!(found, expected);
        let range = AT..AT + 0x20_000;
        let near = BlockPlaces { others: vec![range], ..places };
        assert!(near.blocks(&made, &made, |_, _| ()));
    }
}
