//! Where the replay keeps blocks that end in the run in which they begin: most blocks of most programs.
//!
//! They need not be among the live blocks, since nothing looks at those within a run. Each has a place by a hash of its
//! address, which is in the cache. Which blocks these are is found where the records are decoded, in other threads than the
//! replay.
//!
//! Invariant: of two blocks with one place, the first ends before the second begins.

use crate::analysis::LiveBlock;

/// Number of places: a power of two.
pub(crate) const PLACES: usize = 512;

/// The place of an address, by Fibonacci hashing.
#[inline]
pub(crate) const fn place(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2())) as usize
}

/// The blocks by their places.
#[derive(Debug)]
pub(super) struct ShortLivedBlocks(Box<[LiveBlock; PLACES]>);

impl Default for ShortLivedBlocks {
    fn default() -> Self {
        Self(Box::new([LiveBlock::default(); PLACES]))
    }
}

impl ShortLivedBlocks {
    /// The block at an address.
    #[inline]
    pub(super) fn at(&mut self, address: u64) -> &mut LiveBlock {
        &mut self.0[place(address)]
    }
}
