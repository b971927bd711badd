//! The blocks in use of Python's allocator for small objects.
//!
//! No symbol tells where the allocator's arenas are, but a pool is told by its header: sizes that belong together, and as many
//! blocks in use as its list of free blocks leaves. Pools lie at multiples of their size. Invariant: a pool that does not make
//! sense is none, and every loop ends within what one pool has.

use memtrack_format::pymalloc::{BLOCK_STEP, LARGEST_BLOCK, POOL_HEADER, pool_bytes};

use crate::memory::Words;

/// Offsets in the header of a pool.
const USED: u64 = 0;
const FREE: u64 = 8;
const SIZE_CLASS: u64 = 36;
const NEXT: u64 = 40;
/// Sizes of blocks.
const SIZE_CLASSES: u64 = LARGEST_BLOCK / BLOCK_STEP;

/// The size of pools of a version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLayout {
    pool: u64,
}

impl PoolLayout {
    /// That of CPython 3.`minor`.
    pub(crate) fn of(minor: u8) -> Self {
        Self { pool: pool_bytes(minor) }
    }

    /// Bytes of a pool, which lies at a multiple of them.
    pub(crate) fn bytes(self) -> u64 {
        self.pool
    }

    /// Calls `each` with the address and the size of every block in use of the pool that begins here, if one does; returns its
    /// end. `headers` reads what pools begin with, `words` what is in them.
    pub(crate) fn blocks(
        self,
        (headers, words): (&impl Words, &impl Words),
        at: u64,
        each: &mut impl FnMut(u64, u64),
    ) -> Option<u64> {
        let is_pool = |next: u64| (SIZE_CLASSES * BLOCK_STEP..).contains(&(next >> 32)) && next >> 32 < self.pool;
        let may_be = at.is_multiple_of(self.pool) && headers.word(at.checked_add(NEXT)?).is_some_and(is_pool);
        let pool = may_be.then(|| Pool::read((headers, words), self, at)).flatten()?;
        pool.visit(each);
        at.checked_add(self.pool)
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
    fn read((headers, words): (&impl Words, &impl Words), layout: PoolLayout, address: u64) -> Option<Self> {
        let word = |at: u64| headers.word(address.checked_add(at)?);
        let (used, class, next) = (word(USED)? as u32, word(SIZE_CLASS & !7)? >> 32, word(NEXT)?);
        let block = (class < SIZE_CLASSES).then_some((class + 1) * BLOCK_STEP)?;
        let (next, most) = (next & u64::from(u32::MAX), next >> 32);
        let is_one = used > 0 && most == layout.pool - block && (POOL_HEADER..=layout.pool).contains(&next);
        let carved = next.checked_sub(POOL_HEADER).filter(|carved| is_one && carved.is_multiple_of(block))? / block;
        let mut is_free = vec![false; carved as usize];
        let mut free = word(FREE)?;
        // A thread that takes a block or gives one back may have been stopped between its two changes.
        let mut left = (carved + 1).checked_sub(used.into())?;
        while free != 0 {
            left = left.checked_sub(1)?;
            let offset = free.checked_sub(address + POOL_HEADER)?;
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
            each(self.address + POOL_HEADER + number * self.block, self.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FREE, NEXT, POOL_HEADER, PoolLayout, SIZE_CLASS, USED};
    use crate::memory::MadeWords;

    const POOL: u64 = 16 << 10;
    const AT: u64 = 0x7f00_0000_0000;
    const BLOCK: u64 = 64;

    fn block(pool: u64, number: u64) -> u64 {
        pool + POOL_HEADER + number * BLOCK
    }

    impl MadeWords {
        /// A pool with so many blocks of 64 bytes that were in use once, of which these are free.
        pub(crate) fn pool(&mut self, at: u64, carved: u64, free: &[u64]) {
            let next = POOL_HEADER + carved * BLOCK;
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

        fn found(&self) -> Vec<u64> {
            let mut found = Vec::new();
            let end = PoolLayout::of(12).blocks((self, self), AT, &mut |at, size| {
                assert_eq!(size, BLOCK);
                found.push(at);
            });
            assert_eq!(end, (!found.is_empty()).then_some(AT + POOL));
            found
        }
    }

    #[test]
    fn blocks_are_those_that_are_not_free() {
        let mut made = MadeWords::default();
        assert!(made.found().is_empty());
        made.pool(AT, 4, &[2, 0]);
        assert_eq!(made.found(), [block(AT, 1), block(AT, 3)]);
        assert!(PoolLayout::of(9).blocks((&made, &made), AT, &mut |_, _| panic!()).is_none());
        assert!(PoolLayout::of(12).blocks((&made, &made), AT - (4 << 10), &mut |_, _| panic!()).is_none());
    }

    #[test]
    fn a_pool_that_makes_no_sense_is_none() {
        let is_sound = |at: u64, word: u64| {
            let mut made = MadeWords::default();
            made.pool(AT, 4, &[2, 0]);
            made.0.insert(at, word);
            !made.found().is_empty()
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
