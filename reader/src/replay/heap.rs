//! The live blocks of the heap, by address.
//!
//! Most time of reading a capture goes into waiting for memory here. So the blocks stand in a row, in the order in which
//! places became free: what is made in one go lies side by side and mostly ends so, and what is short-lived takes the same
//! place again and again.
//!
//! Invariant: each address in use has a place of the row, and no place has two.

use super::addresses::Addresses;
use crate::analysis::Block;

/// Live blocks from which on the row and the addresses outgrow the smaller of today's second-level caches.
const FAR: usize = 1 << 14;
/// Addresses that are touched together.
const TOGETHER: usize = 16;

/// All live blocks.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// The place of each address, as a number.
    places: Addresses,
    row: Vec<Block>,
    /// Places of the row that nobody refers to.
    vacant: Vec<Place>,
}

/// Where in the row a block stands, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    #[inline]
    fn index(self) -> usize {
        // Place 0 is no place, and far beyond any row.
        (self.0 as usize).wrapping_sub(1)
    }
}

impl Heap {
    /// The block at an address, made if there is none; whether there was one.
    #[inline]
    pub(super) fn put(&mut self, address: u64) -> (bool, &mut Block) {
        let known = Place(self.places.get(address));
        let was = known != Place(0);
        let place = if was { known } else { self.take_vacant() };
        if !was {
            self.places.insert(address, place.0);
        }
        (was, &mut self.row[place.index()])
    }

    /// Ends the block at an address. Its place keeps what it was until it is [vacated](Self::vacate).
    #[inline]
    pub(super) fn end(&mut self, address: u64) -> Option<(Place, &Block)> {
        let place = Place(self.places.remove(address));
        self.row.get(place.index()).map(|block| (place, block))
    }

    /// Nobody will ask for the block that ended at this place any more.
    #[inline]
    pub(super) fn vacate(&mut self, place: Place) {
        self.vacant.push(place);
    }

    /// Brings back the block that ended at this place, at its address; `None` if another stands there by now.
    pub(super) fn bring_back(&mut self, place: Place, address: u64) -> Option<&Block> {
        if self.places.get(address) != 0 {
            self.vacate(place);
            return None;
        }
        self.places.insert(address, place.0);
        self.row.get(place.index())
    }

    /// All blocks, in no order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.places.numbers().filter_map(|place| self.row.get(Place(place).index()))
    }

    /// Touches what stands for some addresses, for nothing but the side effect that it comes into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, addresses: impl Iterator<Item = u64>) {
        if self.row.len() < FAR {
            return;
        }
        let mut places = [0; TOGETHER];
        self.places.get_together(addresses, &mut places);
        let touched = places
            .iter()
            .fold(0, |sum, &place| sum ^ self.row.get(Place(place).index()).map_or(0, |block| block.order));
        std::hint::black_box(touched);
    }

    #[inline]
    fn take_vacant(&mut self) -> Place {
        self.vacant.pop().unwrap_or_else(|| {
            self.row.push(Block::default());
            // Never cut off: 2^32 live blocks would take a hundred gigabytes of memory first.
            Place(self.row.len() as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Heap;

    /// The sizes of what is live, smallest first.
    fn sizes(heap: &Heap) -> Vec<u64> {
        let mut sizes: Vec<u64> = heap.blocks().map(|block| block.size).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn every_block_is_found_while_the_table_grows_and_holes_close() {
        const BLOCKS: u64 = 10_000;
        let mut heap = Heap::default();
        for i in 1..=BLOCKS {
            let (was_live, block) = heap.put(i * 48);
            assert!(!was_live);
            block.size = i;
        }
        for i in (1..=BLOCKS).filter(|i| i % 3 != 0) {
            let (place, block) = heap.end(i * 48).unwrap();
            assert_eq!(block.size, i);
            heap.vacate(place);
            assert!(heap.end(i * 48).is_none());
        }
        assert_eq!(sizes(&heap), (1..=BLOCKS).filter(|i| i % 3 == 0).collect::<Vec<_>>());
        for i in 1..=BLOCKS {
            let (was_live, block) = heap.put(i * 48);
            assert_eq!(was_live, i % 3 == 0);
            block.size = i;
        }
        assert_eq!(heap.row.len() as u64, BLOCKS, "what was vacated is used again");
        assert_eq!(sizes(&heap), (1..=BLOCKS).collect::<Vec<_>>());
    }

    #[test]
    fn what_ended_comes_back_unless_another_block_stands_there() {
        let mut heap = Heap::default();
        for (address, size) in [(0, 1), (u64::MAX, 2)] {
            heap.put(address).1.size = size;
        }
        let (place, _) = heap.end(0).unwrap();
        assert_eq!(sizes(&heap), [2]);
        assert_eq!(heap.bring_back(place, 0).map(|block| block.size), Some(1));
        assert_eq!(sizes(&heap), [1, 2]);

        let (place, _) = heap.end(u64::MAX).unwrap();
        heap.put(u64::MAX).1.size = 3;
        assert_eq!(heap.bring_back(place, u64::MAX), None);
        assert_eq!(sizes(&heap), [1, 3]);
        heap.put(16).1.size = 4;
        assert_eq!(heap.row.len(), 3, "the place that nobody can bring back is used again");
    }
}
