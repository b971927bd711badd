//! What is known of pieces of memory, by their addresses: a tree of three levels.
//!
//! Several threads may look and insert at once. Invariant: what is inserted stays where it is.

use std::sync::OnceLock;

/// Bytes of a piece, and their logarithm.
pub(crate) const PIECE: usize = 1 << PIECE_BITS;
pub(crate) const PIECE_BITS: u32 = 16;
/// Bits of a piece's number that a node goes by, and those that the root goes by.
const NODE: u32 = 10;
const ROOT: u32 = END.ilog2() - PIECE_BITS - 2 * NODE;
/// Addresses are below.
pub(crate) const END: u64 = 1 << 47;

type Lower<T> = [OnceLock<T>; 1 << NODE];
type Upper<T> = [OnceLock<Box<Lower<T>>>; 1 << NODE];

/// One `T` for each piece.
#[derive(Debug)]
pub(crate) struct PieceTree<T> {
    root: Vec<OnceLock<Box<Upper<T>>>>,
}

impl<T> Default for PieceTree<T> {
    fn default() -> Self {
        Self { root: (0..1 << ROOT).map(|_| OnceLock::new()).collect() }
    }
}

impl<T> PieceTree<T> {
    /// That of the piece of an address.
    pub(crate) fn get(&self, address: u64) -> Option<&T> {
        let [root, upper, lower] = steps(address);
        self.root.get(root)?.get()?.get(upper)?.get()?.get(lower)?.get()
    }

    /// The same, made where there is none.
    pub(crate) fn get_or_init(&self, address: u64, make: impl FnOnce() -> T) -> &T {
        let [root, upper, lower] = steps(address);
        let upper = &self.root[root].get_or_init(empty_node)[upper];
        upper.get_or_init(empty_node)[lower].get_or_init(make)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.iter().all(|node| node.get().is_none())
    }
}

/// A node with nothing below.
fn empty_node<T>() -> Box<[OnceLock<T>; 1 << NODE]> {
    Box::new([const { OnceLock::new() }; 1 << NODE])
}

/// Where the tree goes on from the root on.
fn steps(address: u64) -> [usize; 3] {
    let step = |shift: u32, bits: u32| (address >> shift) as usize & ((1 << bits) - 1);
    [step(PIECE_BITS + 2 * NODE, ROOT), step(PIECE_BITS + NODE, NODE), step(PIECE_BITS, NODE)]
}
