//! A list of blocks that grows without moving them.
//!
//! A vector of blocks that begin at a multiple of their size is copied when it grows, so that for a while two of them are
//! in memory. Here blocks stand in chunks that stay where they are.
//!
//! Invariant: a block keeps its number and its place.

use std::ops::{Index, IndexMut};

use crate::analysis::LiveBlock;

/// Blocks in a chunk: a power of two.
const CHUNK: usize = 1 << 12;

/// The list.
#[derive(Debug, Default)]
pub(super) struct BlockList {
    chunks: Vec<Box<[LiveBlock; CHUNK]>>,
    len: usize,
}

impl BlockList {
    /// Number of blocks.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an empty block; returns its number.
    #[inline]
    pub(super) fn add(&mut self) -> usize {
        if self.len == self.chunks.len() * CHUNK {
            // A boxed array of this length, which never lies on the stack.
            let chunk = vec![LiveBlock::default(); CHUNK].into_boxed_slice();
            self.chunks.extend(<Box<[LiveBlock; CHUNK]>>::try_from(chunk));
        }
        self.len += 1;
        self.len - 1
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&LiveBlock> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)
    }
}

impl Index<usize> for BlockList {
    type Output = LiveBlock;

    #[inline]
    fn index(&self, number: usize) -> &LiveBlock {
        &self.chunks[number / CHUNK][number % CHUNK]
    }
}

impl IndexMut<usize> for BlockList {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut LiveBlock {
        &mut self.chunks[number / CHUNK][number % CHUNK]
    }
}
