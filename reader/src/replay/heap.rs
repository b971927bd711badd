//! The live blocks of the heap, by address.
//!
//! Reading a capture spends most of its time on cache misses here. So the blocks stand in a list, whose free places are
//! reused last in, first out: blocks that are allocated together are neighbours and mostly end together, and
//! short-lived blocks reuse the same places.
//!
//! Invariant: each address in use has one place in the list, and no two share one.

use super::addresses::{Addresses, Bottom};
use super::roomy;
use crate::analysis::LiveBlock;
use crate::event::RunEvent;

/// Number of live blocks beyond which list and addresses exceed a common second-level cache.
const FAR: usize = 1 << 14;
/// Number of addresses that are looked up together.
pub(super) const TOGETHER: usize = 32;
/// Number of events that are taken at once.
const MOST_TAKEN: usize = 256;

/// All live blocks.
#[derive(Debug)]
pub(super) struct LiveHeap {
    /// The place of each address.
    places: Addresses,
    /// The first place is unused, so that a look-up need not check whether it found one.
    row: Vec<LiveBlock>,
    /// Free places of the list.
    vacant: Vec<BlockIndex>,
    /// The addresses that were looked up together, and what was found.
    addresses: [u64; TOGETHER],
    found: [Bottom; TOGETHER],
}

/// A place in the list; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockIndex(u32);

impl Default for LiveHeap {
    fn default() -> Self {
        Self {
            places: Addresses::default(),
            row: vec![LiveBlock::default()],
            vacant: Vec::new(),
            addresses: [0; TOGETHER],
            found: [Bottom::UNKNOWN; TOGETHER],
        }
    }
}

impl LiveHeap {
    /// Looks up the addresses of the next events but for those of short-lived blocks, on a large heap, and touches their
    /// blocks only to load them into the cache: independent look-ups overlap their cache misses. Earlier results become
    /// invalid. Returns how many events it took.
    #[inline(always)]
    pub(super) fn find(&mut self, events: impl Iterator<Item = RunEvent>) -> usize {
        self.places.tidy();
        let (mut taken, mut count) = (0, 0);
        for RunEvent { event, short_lived } in events.take(MOST_TAKEN) {
            if count == TOGETHER {
                break;
            }
            // Without a branch, since nothing foretells it: the next one stands in the place of one that is not looked up.
            self.addresses[count] = event.address;
            count += usize::from(!short_lived);
            taken += 1;
        }
        if self.row.len() < FAR {
            self.found = [Bottom::UNKNOWN; TOGETHER];
            return taken;
        }
        let addresses = self.addresses.get(..count).unwrap_or_default();
        self.places.bottoms(addresses, &mut self.found);
        // One loop for each of the two misses, so that as many as possible are under way at once.
        let mut places = [0; TOGETHER];
        for ((place, address), bottom) in places.iter_mut().zip(addresses).zip(self.found) {
            *place = self.places.get(*address, bottom);
        }
        // Without a branch on the result: a mispredicted one would delay the loads behind it.
        let mut touched = 0;
        for &place in places.get(..count).unwrap_or_default() {
            touched ^= self.row[place as usize].size;
        }
        std::hint::black_box(touched);
        taken
    }

    /// What was found of one of the addresses.
    #[inline]
    pub(super) fn found(&self, number: usize) -> Bottom {
        self.found.get(number).copied().unwrap_or(Bottom::UNKNOWN)
    }

    /// The block at an address, which is added if missing; and whether it existed.
    #[inline(always)]
    pub(super) fn put(&mut self, address: u64, bottom: Bottom) -> (bool, &mut LiveBlock) {
        let number = self.places.number(address, bottom);
        let was = *number != 0;
        if !was {
            *number = take_vacant(&mut self.vacant, &mut self.row).0;
        }
        let place = *number as usize;
        (was, &mut self.row[place])
    }

    /// Removes the block at an address. Its place keeps its content until it is [vacated](Self::vacate).
    #[inline(always)]
    pub(super) fn end(&mut self, address: u64, bottom: Bottom) -> Option<(BlockIndex, &LiveBlock)> {
        match self.places.remove(address, bottom) {
            0 => None,
            place => self.row.get(place as usize).map(|block| (BlockIndex(place), block)),
        }
    }

    /// Frees the place of a removed block, which can no longer be restored.
    #[inline]
    pub(super) fn vacate(&mut self, place: BlockIndex) {
        self.vacant.push(place);
    }

    /// Restores the removed block of this place at its address; `None` if another block is there now.
    pub(super) fn bring_back(&mut self, place: BlockIndex, address: u64) -> Option<&LiveBlock> {
        let number = self.places.number(address, Bottom::UNKNOWN);
        if *number != 0 {
            self.vacate(place);
            return None;
        }
        *number = place.0;
        self.row.get(place.0 as usize)
    }

    /// The removed block of a place that is not yet vacated.
    #[inline]
    pub(super) fn kept(&self, place: BlockIndex) -> &LiveBlock {
        &self.row[place.0 as usize]
    }

    /// All blocks with their addresses, unordered.
    pub(super) fn blocks_at(&self) -> impl Iterator<Item = (u64, &LiveBlock)> {
        self.places.entries().filter_map(|(address, place)| Some((address, self.row.get(place as usize)?)))
    }

    /// All blocks, unordered; `ended`: the places that are not vacated yet. In the order of the places, since that of the
    /// addresses would miss the cache at each block.
    pub(super) fn blocks(&self, ended: impl Iterator<Item = BlockIndex>) -> impl Iterator<Item = &LiveBlock> {
        let mut used = vec![true; self.row.len()];
        for BlockIndex(place) in self.vacant.iter().copied().chain(ended).chain([BlockIndex(0)]) {
            used[place as usize] = false;
        }
        self.row.iter().zip(used).filter_map(|(block, used)| used.then_some(block))
    }
}

#[inline]
fn take_vacant(vacant: &mut Vec<BlockIndex>, row: &mut Vec<LiveBlock>) -> BlockIndex {
    // Never cut off: 2^32 live blocks would take a hundred gigabytes of memory first.
    vacant.pop().unwrap_or_else(|| BlockIndex(roomy::add(row, LiveBlock::default()) as u32))
}

#[cfg(test)]
mod tests {
    use super::{BlockIndex, Bottom, LiveBlock, LiveHeap};

    fn put(heap: &mut LiveHeap, address: u64) -> (bool, &mut LiveBlock) {
        heap.put(address, Bottom::UNKNOWN)
    }

    fn end(heap: &mut LiveHeap, address: u64) -> Option<(BlockIndex, &LiveBlock)> {
        heap.end(address, Bottom::UNKNOWN)
    }

    /// The sizes of what is live, smallest first.
    fn sizes(heap: &LiveHeap) -> Vec<u64> {
        sizes_without(heap, None)
    }

    /// The same, while this place is not vacated yet.
    fn sizes_without(heap: &LiveHeap, ended: Option<BlockIndex>) -> Vec<u64> {
        let mut sizes: Vec<u64> = heap.blocks(ended.into_iter()).map(|block| block.size).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn every_block_is_found_while_the_table_grows_and_holes_close() {
        const BLOCKS: u64 = 10_000;
        let mut heap = LiveHeap::default();
        for i in 1..=BLOCKS {
            let (was_live, block) = put(&mut heap, i * 48);
            assert!(!was_live);
            block.size = i;
        }
        for i in (1..=BLOCKS).filter(|i| i % 3 != 0) {
            let (place, block) = end(&mut heap, i * 48).unwrap();
            assert_eq!(block.size, i);
            heap.vacate(place);
            assert!(end(&mut heap, i * 48).is_none());
        }
        assert_eq!(sizes(&heap), (1..=BLOCKS).filter(|i| i % 3 == 0).collect::<Vec<_>>());
        for i in 1..=BLOCKS {
            let (was_live, block) = put(&mut heap, i * 48);
            assert_eq!(was_live, i % 3 == 0);
            block.size = i;
        }
        assert_eq!(heap.row.len() as u64, 1 + BLOCKS, "what was vacated is used again");
        assert_eq!(sizes(&heap), (1..=BLOCKS).collect::<Vec<_>>());
    }

    #[test]
    fn what_ended_comes_back_unless_another_block_stands_there() {
        let mut heap = LiveHeap::default();
        for (address, size) in [(0, 1), (u64::MAX, 2)] {
            put(&mut heap, address).1.size = size;
        }
        let (place, _) = end(&mut heap, 0).unwrap();
        assert_eq!(sizes_without(&heap, Some(place)), [2]);
        assert_eq!(heap.bring_back(place, 0).map(|block| block.size), Some(1));
        assert_eq!(sizes(&heap), [1, 2]);

        let (place, _) = end(&mut heap, u64::MAX).unwrap();
        put(&mut heap, u64::MAX).1.size = 3;
        assert_eq!(heap.bring_back(place, u64::MAX), None);
        assert_eq!(sizes(&heap), [1, 3]);
        put(&mut heap, 16).1.size = 4;
        assert_eq!(heap.row.len(), 4, "the place that nobody can bring back is used again");
    }
}
