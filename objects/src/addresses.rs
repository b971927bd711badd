//! The row of the object at each address: a table of slots for each piece of memory in which objects lie.
//!
//! Objects lie close together, at multiples of 16 bytes but for some static ones, so a slot for every 16 bytes takes less than
//! a hash table and is found in the cache where the last one was. Invariant: a row is where its address says, and nowhere else.

use std::cell::Cell;

use rustc_hash::FxHashMap;

/// The logarithms of the bytes of a piece, and of those between slots.
const PIECE: u32 = 16;
const STEP: u32 = 4;
const SLOTS: usize = 1 << (PIECE - STEP);
/// No object is there.
const EMPTY: u32 = u32::MAX;

/// Rows of objects by address.
#[derive(Debug, Default)]
pub(crate) struct AddressTable {
    pieces: FxHashMap<u64, u32>,
    slots: Vec<Box<[u32]>>,
    /// The last piece that was found: its number and place.
    last: Cell<Option<(u64, u32)>>,
    /// Objects between slots.
    others: FxHashMap<u64, u32>,
}

impl AddressTable {
    /// The row of the object at this address.
    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        if !address.is_multiple_of(1 << STEP) {
            return self.others.get(&address).copied();
        }
        let slots = self.slots.get(self.place(address >> PIECE)? as usize)?;
        slots.get(slot_of(address)).copied().filter(|row| *row != EMPTY)
    }

    /// Notes the row of the object at an address.
    pub(crate) fn insert(&mut self, address: u64, row: u32) {
        if !address.is_multiple_of(1 << STEP) {
            self.others.insert(address, row);
            return;
        }
        let piece = address >> PIECE;
        let place = self.place(piece).unwrap_or_else(|| {
            let place = self.slots.len() as u32;
            self.slots.push(vec![EMPTY; SLOTS].into_boxed_slice());
            self.pieces.insert(piece, place);
            place
        });
        if let Some(slot) = self.slots.get_mut(place as usize).and_then(|slots| slots.get_mut(slot_of(address))) {
            *slot = row;
        }
    }

    /// Numbers the objects by address; calls `each` with the old row of each, in that order.
    pub(crate) fn renumber(&mut self, mut each: impl FnMut(u32)) {
        let mut pieces: Vec<(u64, u32)> = self.pieces.iter().map(|(piece, place)| (*piece, *place)).collect();
        pieces.sort_unstable();
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

    fn place(&self, piece: u64) -> Option<u32> {
        if let Some((_, place)) = self.last.get().filter(|(last, _)| *last == piece) {
            return Some(place);
        }
        let place = *self.pieces.get(&piece)?;
        self.last.set(Some((piece, place)));
        Some(place)
    }
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
        all.iter().zip(0..).for_each(|(address, row)| table.insert(*address, row));
        assert_eq!((table.get(0x7000_0008), table.get(0x7000_0020), table.get(0x18)), (Some(4), None, None));
        let mut old = Vec::new();
        table.renumber(|row| old.push(row));
        assert_eq!(old, [3, 1, 2, 4, 0, 5]);
        let mut sorted = all;
        sorted.sort_unstable();
        assert!(sorted.iter().zip(0..).all(|(address, row)| table.get(*address) == Some(row)));
    }
}
