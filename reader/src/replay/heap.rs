//! The live blocks of the heap, by address.
//!
//! Most time of reading a capture goes into waiting for memory here. So the blocks stand in a row, in the order in which
//! places became free: what is made in one go lies side by side and mostly ends so, and what is short-lived takes the same
//! place again and again. The table by address holds eight bytes for each: a place, and enough of the hash to do without
//! the row until it is found. Its layout is our own, for one reason: the entries of coming addresses can be touched
//! without a branch that depends on what is there, so that the processor waits for many of them at once.
//!
//! Invariant: each slot in use names a place of the row, no place is named twice, and no slot between an address's home
//! and its own is vacant.

use std::hash::{BuildHasher, RandomState};

use crate::analysis::Block;

/// Slots at first: a power of two.
const FIRST_SLOTS: usize = 1 << 10;
/// Live blocks from which on the row and the table outgrow the smaller of today's second-level caches.
const FAR: usize = 1 << 14;
/// Addresses that are touched together.
const TOGETHER: usize = 16;
/// An odd number without pattern, the golden ratio's digits: it spreads what lies at even distances evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// A slot that names no place.
const VACANT: Slot = Slot(0);

/// All live blocks.
#[derive(Debug, Default)]
pub(super) struct Heap {
    table: Table,
    row: Vec<Entry>,
    /// Places of the row that nobody refers to.
    vacant: Vec<Place>,
}

/// Where in the row a block stands, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    address: u64,
    block: Block,
}

impl Place {
    fn index(self) -> usize {
        // Place 0 is no place, and far beyond any row.
        (self.0 as usize).wrapping_sub(1)
    }
}

impl Heap {
    /// The block at an address, made if there is none; whether there was one.
    #[inline]
    pub(super) fn put(&mut self, address: u64) -> (bool, &mut Block) {
        let hash = self.table.hash(address);
        let (at, slot) = self.find(address, hash);
        let was = slot != VACANT;
        let place = if was { slot.place() } else { self.take_vacant() };
        if !was {
            self.table.fill(at, Slot::new(hash, place));
        }
        let entry = &mut self.row[place.index()];
        entry.address = address;
        (was, &mut entry.block)
    }

    /// Ends the block at an address. Its place keeps what it was until it is [vacated](Self::vacate).
    #[inline]
    pub(super) fn end(&mut self, address: u64) -> Option<(Place, &Block)> {
        let (at, slot) = self.find(address, self.table.hash(address));
        if slot == VACANT {
            return None;
        }
        self.table.clear(at);
        let place = slot.place();
        Some((place, &self.row[place.index()].block))
    }

    /// Nobody will ask for the block that ended at this place any more.
    #[inline]
    pub(super) fn vacate(&mut self, place: Place) {
        self.vacant.push(place);
    }

    /// Brings back the block that ended at this place; `None` if another stands at its address by now.
    pub(super) fn bring_back(&mut self, place: Place) -> Option<&Block> {
        let Entry { address, .. } = *self.row.get(place.index())?;
        let hash = self.table.hash(address);
        let (at, slot) = self.find(address, hash);
        if slot != VACANT {
            self.vacate(place);
            return None;
        }
        self.table.fill(at, Slot::new(hash, place));
        self.row.get(place.index()).map(|entry| &entry.block)
    }

    /// All blocks, in no order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        let used = self.table.slots.iter().filter(|slot| **slot != VACANT);
        used.filter_map(|slot| self.row.get(slot.place().index())).map(|entry| &entry.block)
    }

    /// Touches what stands for some addresses, for nothing but the side effect that it comes into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, addresses: impl Iterator<Item = u64>) {
        if self.table.used < FAR {
            return;
        }
        let mut slots = [VACANT; TOGETHER];
        for (slot, address) in slots.iter_mut().zip(addresses) {
            *slot = self.table.slots[self.table.home(self.table.hash(address))];
        }
        let touched = slots.iter().fold(0, |sum, slot| {
            sum ^ self.row.get(slot.place().index()).map_or(0, |entry| entry.address ^ entry.block.order)
        });
        std::hint::black_box(touched);
    }

    /// The slot of an address, or the vacant one that would be its.
    #[inline]
    fn find(&self, address: u64, hash: u32) -> (usize, Slot) {
        let mut at = self.table.home(hash);
        loop {
            let slot = self.table.slots[at];
            let here = || self.row.get(slot.place().index()).is_some_and(|entry| entry.address == address);
            if slot == VACANT || slot.hash() == hash && here() {
                return (at, slot);
            }
            at = self.table.after(at);
        }
    }

    #[inline]
    fn take_vacant(&mut self) -> Place {
        self.vacant.pop().unwrap_or_else(|| {
            self.row.push(Entry::default());
            // Never cut off: 2^32 live blocks would take a hundred gigabytes of memory first.
            Place(self.row.len() as u32)
        })
    }
}

/// A place, and the hash of the address that stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(u64);

impl Slot {
    #[inline]
    fn new(hash: u32, place: Place) -> Self {
        Self(u64::from(hash) << 32 | u64::from(place.0))
    }

    #[inline]
    fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    fn place(self) -> Place {
        Place(self.0 as u32)
    }
}

/// The slots: open addressing, linear probing, and no tombstones.
#[derive(Debug)]
struct Table {
    /// As many as a power of two.
    slots: Vec<Slot>,
    used: usize,
    /// Of this process's own, so that no capture can be made whose addresses all have one home.
    key: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { slots: vec![VACANT; FIRST_SLOTS], used: 0, key: RandomState::new().hash_one(GOLDEN) }
    }
}

impl Table {
    #[inline]
    fn hash(&self, address: u64) -> u32 {
        ((address ^ self.key).wrapping_mul(GOLDEN) >> 32) as u32
    }

    /// Where the search for a hash begins: its high bits.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// How far it is from one slot on to another.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }

    #[inline]
    fn fill(&mut self, at: usize, slot: Slot) {
        self.slots[at] = slot;
        self.used += 1;
        if self.used > self.slots.len() / 8 * 5 {
            self.grow();
        }
    }

    /// Makes a slot vacant. What stands behind it moves up, where that brings it no further than its home.
    #[inline]
    fn clear(&mut self, mut at: usize) {
        self.used -= 1;
        let mut next = self.after(at);
        while self.slots[next] != VACANT {
            let moving = self.slots[next];
            if self.distance(self.home(moving.hash()), next) >= self.distance(at, next) {
                self.slots[at] = moving;
                at = next;
            }
            next = self.after(next);
        }
        self.slots[at] = VACANT;
    }

    #[cold]
    fn grow(&mut self) {
        let slots = vec![VACANT; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, slots).into_iter().filter(|slot| *slot != VACANT) {
            let mut at = self.home(slot.hash());
            while self.slots[at] != VACANT {
                at = self.after(at);
            }
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_SLOTS, Heap};

    /// The sizes of what is live, smallest first.
    fn sizes(heap: &Heap) -> Vec<u64> {
        let mut sizes: Vec<u64> = heap.blocks().map(|block| block.size).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn every_block_is_found_while_the_table_grows_and_holes_close() {
        const BLOCKS: u64 = 10 * FIRST_SLOTS as u64;
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
        assert_eq!(heap.bring_back(place).map(|block| block.size), Some(1));
        assert_eq!(sizes(&heap), [1, 2]);

        let (place, _) = heap.end(u64::MAX).unwrap();
        heap.put(u64::MAX).1.size = 3;
        assert_eq!(heap.bring_back(place), None);
        assert_eq!(sizes(&heap), [1, 3]);
        heap.put(16).1.size = 4;
        assert_eq!(heap.row.len(), 3, "the place that nobody can bring back is used again");
    }
}
