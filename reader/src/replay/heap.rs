//! The live blocks of the heap, by address.
//!
//! Reading a capture spends most of its time on cache misses here. So the blocks stand in a list, whose free places are
//! reused last in, first out: blocks that are allocated together are neighbours and mostly end together, and
//! short-lived blocks reuse the same places.
//!
//! Invariant: each address in use has one place in the list, and no two share one.

use super::addresses::{Addresses, Bottom};
use super::look_ahead::{LookAhead, TOGETHER};
use super::roomy;
use crate::analysis::LiveBlock;
use crate::event::RunEvent;
use crate::prefetch::prefetch;

/// Number of live blocks beyond which list and addresses exceed a common second-level cache.
const FAR: usize = if cfg!(test) { 4 } else { 1 << 14 };

/// All live blocks.
#[derive(Debug)]
pub(super) struct LiveHeap {
    /// The place of each address.
    places: Addresses,
    /// The first place is unused, so that a look-up need not check whether it found one.
    row: Vec<LiveBlock>,
    /// Free places of the list.
    vacant: Vec<BlockIndex>,
    /// What was looked up.
    ahead: LookAhead,
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
            ahead: LookAhead::default(),
        }
    }
}

impl LiveHeap {
    /// Other events come than those that were looked up.
    pub(super) fn begin(&mut self) {
        self.ahead.begin();
    }

    /// Takes up events that come, and looks their addresses up if the heap is large. Returns how many events are to be
    /// replayed now; 0: there are none.
    #[inline(always)]
    pub(super) fn find(&mut self, upcoming: &mut impl Iterator<Item = RunEvent>) -> usize {
        if self.places.tidy() {
            self.ahead.forget();
        }
        let is_large = self.is_large();
        loop {
            let (last, next) = self.ahead.advance(upcoming);
            let (addresses, bottoms) = last.lookups();
            if is_large {
                self.places.bottoms(addresses, bottoms);
                let (addresses, bottoms) = next.lookups();
                for (address, bottom) in addresses.iter().zip(bottoms) {
                    prefetch(&self.row, self.places.get(*address, *bottom) as usize);
                }
            } else {
                *bottoms = [Bottom::UNKNOWN; TOGETHER];
            }
            match self.ahead.events() {
                Some(0) => {}
                events => return events.unwrap_or(0),
            }
        }
    }

    /// Whether its list and its addresses exceed a cache.
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        self.row.len() >= FAR
    }

    /// Removes empty nodes of addresses, if that is due, for who looks nothing up ahead.
    #[inline]
    pub(super) fn tidy(&mut self) {
        self.places.tidy();
    }

    /// The node of an address, for who looks ahead by itself; the processor is asked to load it.
    #[inline(always)]
    pub(super) fn bottom(&self, address: u64) -> Bottom {
        self.places.bottom(address)
    }

    /// Asks the processor to load the block at an address.
    #[inline(always)]
    pub(super) fn prefetch_block(&self, address: u64, bottom: Bottom) {
        prefetch(&self.row, self.places.get(address, bottom) as usize);
    }

    /// Keeps a removed block at a place of its own.
    pub(super) fn keep(&mut self, block: LiveBlock) -> BlockIndex {
        let place = take_vacant(&mut self.vacant, &mut self.row);
        self.row[place.0 as usize] = block;
        place
    }

    /// What was found of one of the addresses that are looked up.
    #[inline(always)]
    pub(super) fn found(&self, number: usize) -> Bottom {
        self.ahead.found(number)
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

    /// The block at an address.
    pub(super) fn at(&mut self, address: u64) -> Option<&mut LiveBlock> {
        let mut bottom = Bottom::UNKNOWN;
        self.places.bottoms(&[address], std::slice::from_mut(&mut bottom));
        match self.places.get(address, bottom) {
            0 => None,
            place => self.row.get_mut(place as usize),
        }
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

    /// Number of blocks, with those that are removed and not vacated.
    pub(super) fn len(&self) -> usize {
        self.row.len() - 1 - self.vacant.len()
    }

    /// All blocks with their addresses, which ascend.
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
    use memtrack_format::Allocator;
    use rustc_hash::FxHashMap;

    use super::{BlockIndex, Bottom, LiveBlock, LiveHeap};
    use crate::event::{Event, EventKind, RunEvent, StackId, ThreadId};

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
    fn what_is_looked_up_ahead_is_found_though_nodes_come_and_go() {
        let (mut heap, mut expected, mut seed) = (LiveHeap::default(), FxHashMap::default(), 1_u64);
        for round in 0..400_u64 {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Where others were before, at times, and at times where none was.
                let address = (seed >> 40) % 64 * 16 + round / 64 * (1 << 32) + (seed >> 50) % 1024 * (1 << 14);
                let kind = if seed >> 62 > 0 { EventKind::Free } else { EventKind::Alloc(Allocator::Malloc) };
                let (size, stack, thread) = (1 + seed % 1000, StackId::EMPTY, ThreadId(0));
                let event = Event { kind, address, size, stack, thread, order: 0, time_ns: 0 };
                RunEvent { event, short_lived: seed % 7 == 0 }
            };
            let events: Vec<_> = (0..round * 3).map(|_| next()).collect();
            let (mut upcoming, mut replayed) = (events.iter().copied(), 0);
            heap.begin();
            loop {
                let count = heap.find(&mut upcoming);
                if count == 0 {
                    break;
                }
                let group = &events[replayed..][..count];
                for (looked_up, RunEvent { event, .. }) in group.iter().filter(|event| !event.short_lived).enumerate() {
                    let bottom = heap.found(looked_up);
                    if event.kind == EventKind::Free {
                        let ended = heap.end(event.address, bottom).map(|(place, block)| (place, block.size));
                        assert_eq!(ended.map(|(_, size)| size), expected.remove(&event.address));
                        ended.into_iter().for_each(|(place, _)| heap.vacate(place));
                    } else {
                        let (was_live, block) = heap.put(event.address, bottom);
                        let size = std::mem::replace(&mut block.size, event.size);
                        let before = expected.insert(event.address, event.size);
                        assert_eq!(was_live.then_some(size), before);
                    }
                }
                replayed += count;
            }
            assert_eq!(replayed, events.len());
        }
        assert!(expected.len() > 100, "{}", expected.len());
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
