//! The blocks in use of Python's allocator for small objects: those of the pools in which known objects are, and of the pools
//! near them.
//!
//! No symbol tells where the allocator's arenas are, but a pool is told by its header: sizes that belong together, and as many
//! blocks in use as its list of free blocks leaves. Pools lie at multiples of their size, and those of an arena side by side.
//! Invariant: a pool that does not make sense is none, and every loop ends within what one pool has.

use crate::memory::Words;

/// Offsets in the header of a pool, and its bytes.
const USED: u64 = 0;
const FREE: u64 = 8;
const SIZE_CLASS: u64 = 36;
const NEXT: u64 = 40;
const HEADER: u64 = 48;
/// Blocks are multiples of this, of so many sizes.
const STEP: u64 = 16;
const SIZE_CLASSES: u64 = 32;
/// From this version on pools and arenas are larger.
const LARGE_SINCE: u8 = 10;

/// The sizes of pools and arenas of a version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLayout {
    pool: u64,
    arena: u64,
}

impl PoolLayout {
    /// Those of CPython 3.`minor`.
    pub(crate) fn of(minor: u8) -> Self {
        if minor < LARGE_SINCE {
            Self { pool: 4 << 10, arena: 256 << 10 }
        } else {
            Self { pool: 16 << 10, arena: 1 << 20 }
        }
    }

    /// Calls `each` with the address and the size of every block in use in the pools that have one of these addresses, and in
    /// pools that are at most an arena away from a pool.
    pub(crate) fn blocks(self, words: &impl Words, known: impl Iterator<Item = u64>, mut each: impl FnMut(u64, u64)) {
        let mut pools: Vec<u64> = Vec::new();
        for at in known.map(|address| address & !(self.pool - 1)) {
            if pools.last() != Some(&at) {
                pools.push(at);
            }
        }
        pools.sort_unstable();
        pools.dedup();
        pools.retain(|at| Pool::read(words, self, *at).is_some());
        let mut seen_up_to = 0;
        for pool in pools {
            if pool < seen_up_to {
                continue;
            }
            let below = |at: u64| at.checked_sub(self.pool).filter(|below| *below >= seen_up_to);
            self.walk(words, below(pool), below, &mut each);
            seen_up_to = self.walk(words, Some(pool), |at| at.checked_add(self.pool), &mut each);
        }
    }

    /// Visits the pools from an address on, until none is found within an arena; returns the end of the last one.
    fn walk(
        self,
        words: &impl Words,
        from: Option<u64>,
        next: impl Fn(u64) -> Option<u64>,
        each: &mut impl FnMut(u64, u64),
    ) -> u64 {
        let (mut at, mut last) = (from, from.unwrap_or(0));
        while let Some(here) = at.filter(|here| here.abs_diff(last) <= self.arena) {
            if let Some(pool) = Pool::read(words, self, here) {
                pool.visit(each);
                last = here;
            }
            at = next(here);
        }
        last + self.pool
    }
}

/// A pool in which a block is in use.
struct Pool {
    address: u64,
    /// Bytes of a block.
    block: u64,
    /// Whether each block that was in use once is free.
    is_free: Vec<bool>,
}

impl Pool {
    fn read(words: &impl Words, layout: PoolLayout, address: u64) -> Option<Self> {
        let word = |at: u64| words.word(address.checked_add(at)?);
        let (used, class, next) = (word(USED)? as u32, word(SIZE_CLASS & !7)? >> 32, word(NEXT)?);
        let block = (class < SIZE_CLASSES).then_some((class + 1) * STEP)?;
        let (next, most) = (next & u64::from(u32::MAX), next >> 32);
        let is_one = used > 0 && most == layout.pool - block && (HEADER..=layout.pool).contains(&next);
        let carved = next.checked_sub(HEADER).filter(|carved| is_one && carved.is_multiple_of(block))? / block;
        let mut is_free = vec![false; carved as usize];
        let mut free = word(FREE)?;
        // A thread that takes a block or gives one back may have been stopped between its two changes.
        let mut left = (carved + 1).checked_sub(used.into())?;
        while free != 0 {
            left = left.checked_sub(1)?;
            let offset = free.checked_sub(address + HEADER)?;
            let is_free = is_free.get_mut((offset / block) as usize).filter(|_| offset.is_multiple_of(block))?;
            if std::mem::replace(is_free, true) {
                return None;
            }
            free = words.word(free)?;
        }
        (left <= 1).then_some(Self { address, block, is_free })
    }

    fn visit(&self, each: &mut impl FnMut(u64, u64)) {
        for (number, _) in (0..).zip(&self.is_free).filter(|(_, is_free)| !**is_free) {
            each(self.address + HEADER + number * self.block, self.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{FREE, HEADER, NEXT, PoolLayout, SIZE_CLASS, USED};
    use crate::memory::Words;

    const POOL: u64 = 16 << 10;
    const AT: u64 = 0x7f00_0000_0000;
    const BLOCK: u64 = 64;

    /// Words that are not there are 0.
    #[derive(Default)]
    struct Made(HashMap<u64, u64>);

    impl Words for Made {
        fn word(&self, address: u64) -> Option<u64> {
            Some(self.0.get(&address).copied().unwrap_or(0))
        }
    }

    fn block(pool: u64, number: u64) -> u64 {
        pool + HEADER + number * BLOCK
    }

    impl Made {
        /// A pool with so many blocks of 64 bytes that were in use once, of which these are free.
        fn pool(&mut self, at: u64, carved: u64, free: &[u64]) {
            let next = HEADER + carved * BLOCK;
            let words = [
                (USED, carved - free.len() as u64),
                (FREE, free.first().map_or(0, |number| block(at, *number))),
                (SIZE_CLASS & !7, 3 << 32 | 7),
                (NEXT, next | (POOL - BLOCK) << 32),
            ];
            self.0.extend(words.map(|(offset, word)| (at + offset, word)));
            let links = free.windows(2).map(|pair| (block(at, pair[0]), block(at, pair[1])));
            self.0.extend(links);
        }

        fn found(&self, known: &[u64]) -> Vec<u64> {
            let mut found = Vec::new();
            let layout = PoolLayout::of(12);
            layout.blocks(self, known.iter().copied(), |at, size| {
                assert_eq!(size, BLOCK);
                found.push(at);
            });
            found.sort_unstable();
            found
        }
    }

    #[test]
    fn blocks_are_those_of_pools_near_a_known_object() {
        let mut made = Made::default();
        made.pool(AT, 4, &[2, 0]);
        // In the arena below, and two arenas above.
        made.pool(AT - (1 << 20), 2, &[]);
        made.pool(AT + (2 << 20), 2, &[]);
        let expected = [block(AT - (1 << 20), 0), block(AT - (1 << 20), 1), block(AT, 1), block(AT, 3)];
        assert_eq!(made.found(&[block(AT, 3), block(AT, 1), 0x1000]), expected);
        made.pool(AT + (1 << 20), 1, &[]);
        assert_eq!(made.found(&[block(AT, 3), block(AT + (2 << 20), 1)]).len(), 2 + 2 + 1 + 2);
        assert!(made.found(&[]).is_empty() && made.found(&[AT + POOL]).is_empty());
    }

    #[test]
    fn a_pool_that_makes_no_sense_is_none() {
        let is_sound = |at: u64, word: u64| {
            let mut made = Made::default();
            made.pool(AT, 4, &[2, 0]);
            made.0.insert(at, word);
            !made.found(&[block(AT, 3)]).is_empty()
        };
        // As it is; and with a thread stopped between the two changes for a block that it takes.
        assert!(is_sound(AT + USED, 2) && is_sound(AT + USED, 3));
        assert!([4, 1, 0].iter().all(|used| !is_sound(AT + USED, *used)));
        // A list with no end, that leaves the pool, or lies between blocks; another size; more than there is room for.
        assert!([block(AT, 2), AT + POOL, block(AT, 1) + 8].iter().all(|next| !is_sound(block(AT, 0), *next)));
        assert!(!is_sound(AT + (SIZE_CLASS & !7), 4 << 32));
        assert!(!is_sound(AT + NEXT, (POOL + BLOCK) | (POOL - BLOCK) << 32));
    }
}
