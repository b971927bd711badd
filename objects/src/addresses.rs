//! The row of the object at each address: a table of slots for each piece of memory in which objects lie.
//!
//! Objects lie close together, at multiples of 16 bytes but for some static ones, so a slot for every 16 bytes takes less than
//! a hash table and is found in the cache where the last one was. Invariant: a row is where its address says, and nowhere else.

use rustc_hash::FxHashMap;

/// The logarithms of the bytes of a piece, and of those between slots.
const PIECE: u32 = 16;
const STEP: u32 = 4;
const SLOTS: usize = 1 << (PIECE - STEP);
/// Bits of a piece's number that a node goes by, and those that the root goes by.
const NODE: u32 = 10;
const ROOT: u32 = 47 - PIECE - 2 * NODE;
/// No object is there, or no node.
const EMPTY: u32 = u32::MAX;

/// Rows of objects by address.
///
/// Its pieces hang in a tree of three levels, so that every one is found by as many loads, and by several threads.
#[derive(Debug)]
pub(crate) struct AddressTable {
    root: Vec<u32>,
    nodes: Vec<Box<[u32; 1 << NODE]>>,
    slots: Vec<Box<[u32]>>,
    /// The number of each piece, by place.
    pieces: Vec<u64>,
    /// Objects between slots, and beyond the addresses of programs.
    others: FxHashMap<u64, u32>,
}

impl Default for AddressTable {
    fn default() -> Self {
        let root = vec![EMPTY; 1 << ROOT];
        Self { root, nodes: Vec::new(), slots: Vec::new(), pieces: Vec::new(), others: FxHashMap::default() }
    }
}

impl AddressTable {
    /// The row of the object at this address.
    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        if !has_slot(address) {
            return self.others.get(&address).copied().filter(|row| *row != EMPTY);
        }
        let [root, first, second] = steps(address);
        let node = *self.root.get(root)?;
        let node = *self.nodes.get(node as usize)?.get(first)?;
        let place = *self.nodes.get(node as usize)?.get(second)?;
        self.slots.get(place as usize)?.get(slot_of(address)).copied().filter(|row| *row != EMPTY)
    }

    /// The row of the object at this address; where there is none, `new` is asked for one.
    pub(crate) fn get_or_insert(&mut self, address: u64, new: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let slot = self.slot(address);
        if *slot == EMPTY {
            *slot = new().unwrap_or(EMPTY);
        }
        Some(*slot).filter(|row| *row != EMPTY)
    }

    /// Where the row of an object at this address is, or is to be.
    fn slot(&mut self, address: u64) -> &mut u32 {
        if !has_slot(address) {
            return self.others.entry(address).or_insert(EMPTY);
        }
        let [root, first, second] = steps(address);
        let node = new_or_known(&mut self.root[root], &mut self.nodes, || Box::new([EMPTY; 1 << NODE]));
        let mut step = self.nodes[node][first];
        let node_below = new_or_known(&mut step, &mut self.nodes, || Box::new([EMPTY; 1 << NODE]));
        self.nodes[node][first] = step;
        let place = &mut self.nodes[node_below][second];
        let slots = new_or_known(place, &mut self.slots, || vec![EMPTY; SLOTS].into_boxed_slice());
        if slots == self.pieces.len() {
            self.pieces.push(address >> PIECE);
        }
        &mut self.slots[slots][slot_of(address)]
    }

    /// Numbers the objects by address; calls `each` with the old row of each, in that order.
    pub(crate) fn renumber(&mut self, mut each: impl FnMut(u32)) {
        let mut pieces: Vec<(u64, u32)> = self.pieces.iter().copied().zip(0..).collect();
        pieces.sort_unstable();
        self.others.retain(|_, row| *row != EMPTY);
        let mut others: Vec<u64> = self.others.keys().copied().collect();
        others.sort_unstable();
        let mut others = others.into_iter().peekable();
        let mut new = 0;
        let mut number = |row: &mut u32| {
            each(*row);
            *row = new;
            new += 1;
        };
        for (piece, place) in pieces {
            let Some(slots) = self.slots.get_mut(place as usize) else { continue };
            for (row, slot) in slots.iter_mut().zip(0_u64..).filter(|(row, _)| **row != EMPTY) {
                let address = piece << PIECE | slot << STEP;
                while let Some(before) = others.next_if(|other| *other < address) {
                    self.others.get_mut(&before).into_iter().for_each(&mut number);
                }
                number(row);
            }
        }
        for rest in others {
            self.others.get_mut(&rest).into_iter().for_each(&mut number);
        }
    }
}

/// The place of what hangs here, which is made if nothing does.
fn new_or_known<T>(here: &mut u32, all: &mut Vec<T>, make: impl FnOnce() -> T) -> usize {
    if *here == EMPTY {
        *here = all.len() as u32;
        all.push(make());
    }
    *here as usize
}

/// Whether the object at an address has a slot.
fn has_slot(address: u64) -> bool {
    address.is_multiple_of(1 << STEP) && address >> (PIECE + 2 * NODE) < 1 << ROOT
}

/// Where the tree goes on from the root on, to the place of an address's piece.
fn steps(address: u64) -> [usize; 3] {
    let step = |shift: u32, bits: u32| (address >> shift) as usize & ((1 << bits) - 1);
    [step(PIECE + 2 * NODE, ROOT), step(PIECE + NODE, NODE), step(PIECE, NODE)]
}

fn slot_of(address: u64) -> usize {
    (address >> STEP) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::AddressTable;

    #[test]
    fn rows_follow_addresses_once_they_are_renumbered() {
        let mut table = AddressTable::default();
        let all = [0x7000_0010, 0x1000_0008, 0x7000_0000, 0x0002_0ff0, 0x7000_0008, 0x7fff_0018_u64];
        for (address, row) in all.iter().zip(0..) {
            assert_eq!(table.get_or_insert(*address, || None), None);
            assert_eq!(table.get_or_insert(*address, || Some(row)), Some(row));
        }
        assert_eq!((table.get(0x7000_0008), table.get(0x7000_0020), table.get(0x18)), (Some(4), None, None));
        let mut old = Vec::new();
        table.renumber(|row| old.push(row));
        assert_eq!(old, [3, 1, 2, 4, 0, 5]);
        let mut sorted = all;
        sorted.sort_unstable();
        assert!(sorted.iter().zip(0..).all(|(address, row)| table.get(*address) == Some(row)));
    }
}
