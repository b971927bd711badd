//! The live blocks of the heap, by address.
//!
//! Most time of reading a capture goes into waiting for memory here. So the map holds small numbers instead of blocks,
//! and these stand in a row, in the order in which places became free: what is made in one go lies side by side and
//! mostly ends so, and what is short-lived takes the same place again and again.
//!
//! Invariant: each number in the map is a place in the row, and no place is in the map twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::addresses::ByAddress;
use crate::analysis::Block;

/// Live blocks from which on the map is well beyond the second-level cache.
const FAR: usize = 1 << 16;

/// All live blocks.
#[derive(Debug, Default)]
pub(super) struct Heap {
    places: HashMap<u64, u32, ByAddress>,
    row: Vec<Block>,
    /// Places of the row that hold nothing live.
    vacant: Vec<u32>,
}

impl Heap {
    /// What begins at an address.
    #[inline]
    pub(super) fn get(&self, address: u64) -> Option<&Block> {
        self.places.get(&address).and_then(|place| self.row.get(*place as usize))
    }

    /// Puts a block at an address; `make` is told what stood there.
    #[inline]
    pub(super) fn put(&mut self, address: u64, make: impl FnOnce(Option<&Block>) -> Block) {
        match self.places.entry(address) {
            Entry::Vacant(place) => {
                place.insert(place_in(&mut self.row, &mut self.vacant, make(None)));
            }
            Entry::Occupied(place) => {
                if let Some(old) = self.row.get_mut(*place.get() as usize) {
                    *old = make(Some(old));
                }
            }
        }
    }

    /// Takes a block out.
    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<Block> {
        let place = self.places.remove(&address)?;
        self.vacant.push(place);
        self.row.get(place as usize).copied()
    }

    /// All blocks, in no order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.places.values().filter_map(|place| self.row.get(*place as usize))
    }

    /// Looks some addresses up, for nothing but the side effect that their entries come into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, addresses: impl Iterator<Item = u64>) {
        if self.places.len() >= FAR {
            let sum = addresses.filter_map(|address| self.get(address)).fold(0, |sum, block| sum ^ block.order);
            std::hint::black_box(sum);
        }
    }
}

/// Puts a block where the row has room; the place.
#[inline]
fn place_in(row: &mut Vec<Block>, vacant: &mut Vec<u32>, block: Block) -> u32 {
    if let Some(place) = vacant.pop() {
        if let Some(old) = row.get_mut(place as usize) {
            *old = block;
        }
        return place;
    }
    row.push(block);
    // Never cut off: 2^32 live blocks would take a hundred gigabytes of memory first.
    (row.len() - 1) as u32
}
