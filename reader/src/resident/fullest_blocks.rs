//! How much of the large blocks of a moment was in memory at the fullest account of their lives.
//!
//! Invariant: of a block that was not followed nothing is known.

/// Blocks by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FullestBlocks(Vec<((u64, u64), FullestBlock)>);

/// How much of a block was in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FullestBlock {
    /// When it was allocated, and the first account at which it was gone, in nanoseconds since recording began.
    pub(super) life_ns: (u64, u64),
    /// The most of it that an account has in memory.
    pub(super) touched: u64,
    /// What the last account of its life has in memory.
    pub(super) at_last: u64,
    /// Bytes by which resident memory was larger in its life than at its accounts: so much more of it, or of others, may have been in
    /// memory between them.
    pub(super) unseen: u64,
}

impl FullestBlocks {
    /// By first and last address, which ascend.
    pub(super) fn new(blocks: Vec<((u64, u64), FullestBlock)>) -> Self {
        Self(blocks)
    }

    /// What is known of a block; `None`: it was not followed.
    pub(super) fn of(&self, start: u64, end: u64) -> Option<FullestBlock> {
        let found = self.0.binary_search_by_key(&(start, end), |(range, _)| *range);
        found.ok().map(|number| self.0[number].1)
    }
}
