//! The row of the object at each address: a table of slots for each piece of memory in which objects lie.
//!
//! Objects lie close together, at multiples of 16 bytes but for some static ones, and hardly any has fewer than 32, so a slot for
//! every 32 bytes takes less than a hash table and is found in the cache where the last one was. Invariant: a row is where its
//! address says: in its slot or, where another object has that, among the others.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use crate::finding::found_references::NewRows;
use crate::memory::piece_tree::{PIECE_BITS, PieceTree};
use crate::object::object_head::may_be_object;
use crate::side_by_side;

/// The logarithms of the bytes of a piece, of those between slots, and of those of a half of these.
const PIECE: u32 = PIECE_BITS;
const STEP: u32 = 5;
const HALF: u32 = 4;
const SLOTS: usize = 1 << (PIECE - STEP);
/// No object is there. Other slots have the row, and whether the object is in the second half.
const EMPTY: u32 = u32::MAX;
/// Rows are below.
pub(crate) const MOST_ROWS: u32 = 1 << 30;

/// The rows of the objects in a piece.
#[derive(Debug)]
struct Slots {
    rows: [AtomicU32; SLOTS],
    /// Those that are in use.
    count: AtomicU32,
    /// Whether objects are among the others whose slots another one has.
    is_shared: AtomicBool,
}

/// Rows of objects by address.
///
/// Several threads may look while one inserts: what it has just inserted they may not see yet.
#[derive(Debug, Default)]
pub(crate) struct AddressTable {
    slots: PieceTree<Box<Slots>>,
    /// The numbers of the pieces that have slots.
    pieces: Mutex<Vec<u64>>,
    /// Objects that are not at multiples of 16, and those whose slots another has.
    others: RwLock<FxHashMap<u64, u32>>,
}

impl AddressTable {
    /// The row of the object at this address.
    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        if !may_be_object(address) {
            return None;
        }
        if !may_have_slot(address) {
            return self.other(address);
        }
        let slots = self.slots(address)?;
        match slots.rows[slot_of(address)].load(Relaxed) {
            EMPTY => None,
            slot if is_of(slot, address) => Some(slot >> 1),
            _ if slots.is_shared.load(Relaxed) => self.other(address),
            _ => None,
        }
    }

    /// What the slot of an address has, for [`crate::prefetch`].
    pub(crate) fn to_prefetch(&self, address: u64) -> u64 {
        self.slots(address).map_or(0, |slots| slots.rows[slot_of(address)].load(Relaxed).into())
    }

    fn other(&self, address: u64) -> Option<u32> {
        self.others.read().unwrap_or_else(PoisonError::into_inner).get(&address).copied()
    }

    /// The row of the object at this address; where there is none, `new` is asked for one. One thread may insert.
    pub(crate) fn get_or_insert(&self, address: u64, new: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if !may_be_object(address) {
            return None;
        }
        if !may_have_slot(address) {
            return self.other(address).or_else(|| self.insert_other(address, new()?));
        }
        let slots = self.slots(address);
        let slot = slots.map_or(EMPTY, |slots| slots.rows[slot_of(address)].load(Relaxed));
        match slots {
            Some(_) if slot != EMPTY && is_of(slot, address) => Some(slot >> 1),
            Some(slots) if slot != EMPTY => {
                let known = if slots.is_shared.load(Relaxed) { self.other(address) } else { None };
                known.or_else(|| {
                    let row = self.insert_other(address, new()?);
                    slots.is_shared.store(true, Relaxed);
                    row
                })
            }
            _ => {
                // Most addresses at which nothing is are no addresses: these get no slots.
                let row = new().filter(|row| *row < MOST_ROWS)?;
                let slots = slots.unwrap_or_else(|| self.slots_or_new(address));
                slots.rows[slot_of(address)].store(slot_with(row, address), Relaxed);
                slots.count.store(slots.count.load(Relaxed) + 1, Relaxed);
                Some(row)
            }
        }
    }

    fn insert_other(&self, address: u64, row: u32) -> Option<u32> {
        self.others.write().unwrap_or_else(PoisonError::into_inner).insert(address, row);
        Some(row)
    }

    /// Pieces of memory, as [`crate::memory`] reads them, in which there are objects.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Numbers the objects by address, in so many threads: rows were given from 0 on. No other thread may look.
    pub(crate) fn renumber(&self, threads: usize) -> NewRows {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pieces.sort_unstable();
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let mut between: Vec<(u64, &mut u32)> = others.iter_mut().map(|(address, row)| (*address, row)).collect();
        between.sort_unstable_by_key(|(address, _)| *address);
        let in_slots = |piece: &u64| self.slots(piece << PIECE).map_or(0, |slots| slots.count.load(Relaxed) as usize);
        let count = between.len() + pieces.iter().map(in_slots).sum::<usize>();
        let (mut old, new) = (vec![0; count], (0..count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
        let some = pieces.len().div_ceil(threads.max(1) * 4).max(1);
        let mut work = Vec::new();
        let (mut rest, mut others, mut first) = (old.as_mut_slice(), between.as_mut_slice(), 0);
        let mut all = pieces.chunks(some).peekable();
        while let Some(pieces) = all.next() {
            let end = all.peek().map_or(u64::MAX, |next| next[0] << PIECE);
            let (own, behind) = others.split_at_mut(others.partition_point(|(address, _)| *address < end));
            let count = own.len() + pieces.iter().map(in_slots).sum::<usize>();
            let (into, after) = rest.split_at_mut(count.min(rest.len()));
            let new = new.as_slice();
            work.push(move || self.number(pieces, own, first, (into, new)));
            (rest, others, first) = (after, behind, first + count as u32);
        }
        others.iter_mut().zip(rest).zip(first..).for_each(|(((_, row), old), number)| {
            *old = std::mem::replace(*row, number);
            new[*old as usize].store(number, Relaxed);
        });
        side_by_side::execute(work, threads);
        NewRows { new: new.into_iter().map(AtomicU32::into_inner).collect(), old }
    }

    /// Numbers the objects of these pieces, and others in and before them.
    fn number(
        &self,
        pieces: &[u64],
        between: &mut [(u64, &mut u32)],
        first: u32,
        (old, new): (&mut [u32], &[AtomicU32]),
    ) {
        let (mut old, mut row) = (old.iter_mut(), first);
        let mut number = |before: u32| {
            old.next().into_iter().for_each(|old| *old = before);
            new.get(before as usize).into_iter().for_each(|new| new.store(row, Relaxed));
            row += 1;
            row - 1
        };
        let mut between = between.iter_mut().peekable();
        for piece in pieces {
            let Some(slots) = self.slots(piece << PIECE) else { continue };
            for (slot, place) in slots.rows.iter().zip(0_u64..) {
                let before = slot.load(Relaxed);
                if before == EMPTY {
                    continue;
                }
                let address = piece << PIECE | place << STEP | u64::from(before & 1) << HALF;
                while let Some((_, other)) = between.next_if(|(other, _)| *other < address) {
                    **other = number(**other);
                }
                slot.store(slot_with(number(before >> 1), address), Relaxed);
            }
        }
        between.for_each(|(_, row)| **row = number(**row));
    }

    /// The slots of the piece of an address, if it has any.
    fn slots(&self, address: u64) -> Option<&Slots> {
        self.slots.get(address).map(Box::as_ref)
    }

    fn slots_or_new(&self, address: u64) -> &Slots {
        self.slots.get_or_init(address, || {
            self.pieces.lock().unwrap_or_else(PoisonError::into_inner).push(address >> PIECE);
            let rows = [const { AtomicU32::new(EMPTY) }; SLOTS];
            Box::new(Slots { rows, count: AtomicU32::new(0), is_shared: AtomicBool::new(false) })
        })
    }
}

/// Whether the object at an address has a slot, unless another one has it.
fn may_have_slot(address: u64) -> bool {
    address.is_multiple_of(1 << HALF)
}

/// What a slot has for the row of the object at an address.
fn slot_with(row: u32, address: u64) -> u32 {
    row << 1 | (address >> HALF & 1) as u32
}

/// Whether a slot that is in use is that of the object at an address, and not of its neighbour.
fn is_of(slot: u32, address: u64) -> bool {
    u64::from(slot & 1) == address >> HALF & 1
}

fn slot_of(address: u64) -> usize {
    (address >> STEP) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::AddressTable;

    #[test]
    fn rows_follow_addresses_once_they_are_renumbered() {
        let table = AddressTable::default();
        let all = [0x7000_0010, 0x1000_0008, 0x7000_0000, 0x0002_0ff0, 0x7000_0008, 0x7fff_0018_u64];
        for (address, row) in all.iter().zip(0..) {
            assert_eq!(table.get_or_insert(*address, || None), None);
            assert_eq!(table.get_or_insert(*address, || Some(row)), Some(row));
        }
        assert_eq!((table.get(0x7000_0008), table.get(0x7000_0020), table.get(0x18)), (Some(4), None, None));
        let mut sorted = all;
        sorted.sort_unstable();
        let rows = table.renumber(2);
        assert_eq!((rows.old, rows.new), (vec![3, 1, 2, 4, 0, 5], vec![4, 1, 2, 0, 3, 5]));
        assert!(sorted.iter().zip(0..).all(|(address, row)| table.get(*address) == Some(row)));
        for threads in [0, 1, 5] {
            // What is in order already stays so.
            let rows = table.renumber(threads);
            assert_eq!((&rows.old, &rows.new), (&(0..6).collect(), &(0..6).collect()));
        }
    }

    #[test]
    fn of_objects_that_share_a_slot_each_has_its_row() {
        let table = AddressTable::default();
        let all = [0x7000_0010, 0x7000_0000, 0x7000_0030, 0x7000_0008, 0x7000_0020_u64];
        assert!(all.iter().zip(0..).all(|(address, row)| table.get_or_insert(*address, || Some(row)) == Some(row)));
        assert!(all.iter().zip(0..).all(|(address, row)| table.get_or_insert(*address, || None) == Some(row)));
        assert!(all.iter().zip(0..).all(|(address, row)| table.get(*address) == Some(row)));
        assert_eq!(table.renumber(2).old, [1, 3, 0, 4, 2]);
        assert!(all.iter().zip([2, 0, 4, 1, 3]).all(|(address, row)| table.get(*address) == Some(row)));
        // A place beside an object is none.
        assert_eq!((table.get(0x7000_0028), table.get(0x7000_0040)), (None, None));
    }

    #[test]
    fn what_is_no_object_takes_no_memory() {
        let table = AddressTable::default();
        // As the words of dates are.
        assert!((1..10_000_u64).all(|hour| table.get_or_insert(hour << 16, || None).is_none()));
        assert!(table.pieces.lock().unwrap().is_empty());
        assert!(table.slots.is_empty());
    }
}
