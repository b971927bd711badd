//! Objects with many items, which are read in parts.
//!
//! What a list refers to may lie anywhere. Where that is so, what is not known yet is collected from all parts first and read in
//! the order of its addresses; then the parts are read again. Invariant: the parts of an object are taken in their order, each
//! once, and none that is behind one that cannot be read.

use std::collections::VecDeque;

use memtrack_format::objects::PicturedObject;
use rustc_hash::FxHashSet;

use crate::references::ItemPart;

/// Addresses that are collected at once, unless the parts that are being read have more.
const MOST_COLLECTED: usize = 4 << 20;
/// Of these, so many are read at once.
const ADDRESSES_AT_ONCE: usize = 32 << 10;

/// A part of an object with many items.
#[derive(Clone, Debug)]
pub(crate) struct LargeObject {
    pub(crate) row: u32,
    pub(crate) object: PicturedObject,
    pub(crate) part: ItemPart,
    pub(crate) reading: PartReading,
}

/// How a part is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartReading {
    /// Once.
    Once,
    /// For the addresses of what it refers to.
    Collecting,
    /// After these were collected.
    Again,
}

/// What is to be read next.
#[derive(Debug)]
pub(crate) enum LargeWork {
    Part(LargeObject),
    /// What these begin with, ascending.
    Addresses(Vec<u64>),
}

/// What was read.
#[derive(Debug)]
pub(crate) enum LargeRead {
    /// A further part of the object in this row.
    Part(u32),
    /// Nothing but the addresses of what a part refers to and has no row; whether all of the part can be read.
    Collected(LargeObject, bool),
    /// What objects begin with that were collected.
    Addresses,
}

/// What is to be read of objects with many items.
#[derive(Debug, Default)]
pub(crate) struct LargeObjects {
    /// The next parts; those behind them are not among them yet.
    parts: VecDeque<LargeObject>,
    /// Parts of which the addresses are collected.
    collected: VecDeque<LargeObject>,
    addresses: Vec<u64>,
    /// Of the addresses, once they are sorted, those that somebody was told to read.
    given: Option<usize>,
    /// What somebody was told to read, and has not been taken yet.
    unread: usize,
    /// Objects of which a part that cannot be read was collected.
    unreadable: FxHashSet<u32>,
}

impl LargeObjects {
    /// Has the further parts read of an object, behind this one. If this has no items, they lie anywhere.
    pub(crate) fn add(&mut self, row: u32, object: PicturedObject, first: &ItemPart) {
        let reading = if first.has_items() { PartReading::Once } else { PartReading::Collecting };
        self.parts.extend(first.next().map(|part| LargeObject { row, object, part, reading }));
    }

    /// Whether nothing is left to be read or taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.collected.is_empty() && self.unread == 0
    }

    /// What is to be read next; `None`: nothing, or nothing until something is taken.
    pub(crate) fn next(&mut self) -> Option<LargeWork> {
        if self.given.is_none() && (self.parts.is_empty() || self.addresses.len() >= MOST_COLLECTED) {
            if self.unread > 0 {
                return None;
            }
            self.addresses.sort_unstable();
            self.addresses.dedup();
            self.given = Some(0);
            self.end_addresses();
        }
        if let Some(given) = &mut self.given {
            let next = self.addresses.chunks(ADDRESSES_AT_ONCE).nth(*given)?;
            *given += 1;
            self.unread += 1;
            return Some(LargeWork::Addresses(next.to_vec()));
        }
        let next = self.parts.pop_front()?;
        // A part that is read again has those behind it among the others.
        let behind = if next.reading == PartReading::Again { None } else { next.part.next() };
        behind.into_iter().for_each(|part| self.parts.push_front(LargeObject { part, ..next.clone() }));
        self.unread += 1;
        Some(LargeWork::Part(next))
    }

    /// Takes notice of what was read, and of the addresses that are new.
    pub(crate) fn take(&mut self, read: &LargeRead, addresses: impl Iterator<Item = u64>) {
        self.unread = self.unread.saturating_sub(1);
        match read {
            LargeRead::Collected(part, is_whole) if !self.unreadable.contains(&part.row) => {
                self.collected.push_back(LargeObject { reading: PartReading::Again, ..part.clone() });
                self.addresses.extend(addresses);
                if !is_whole {
                    self.parts.retain(|behind| behind.row != part.row);
                    self.unreadable.insert(part.row);
                }
            }
            _ => {}
        }
        self.end_addresses();
    }

    /// Has collected parts read again if all addresses were read.
    fn end_addresses(&mut self) {
        let are_given = |given| given * ADDRESSES_AT_ONCE >= self.addresses.len();
        if self.given.is_some_and(are_given) && self.unread == 0 {
            self.given = None;
            self.addresses = Vec::new();
            self.collected.append(&mut self.parts);
            self.parts = std::mem::take(&mut self.collected);
        }
    }

    /// Has no further part read of this object.
    pub(crate) fn give_up(&mut self, row: u32) {
        self.parts.retain(|part| part.row != row);
        self.collected.retain(|part| part.row != row);
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::objects::PicturedObject;

    use super::{ADDRESSES_AT_ONCE, LargeObject, LargeObjects, LargeRead, LargeWork, MOST_COLLECTED, PartReading};
    use crate::references::ItemPart;

    /// Some with a list of which so many items lie anywhere.
    fn with_list(row: u32, items: u64) -> LargeObjects {
        let mut large = LargeObjects::default();
        large.add(row, PicturedObject::default(), &ItemPart::first_of(items).without_items());
        large
    }

    fn collect(large: &mut LargeObjects, part: &LargeObject, addresses: impl Iterator<Item = u64>) {
        assert_eq!(part.reading, PartReading::Collecting);
        large.take(&LargeRead::Collected(part.clone(), true), addresses);
    }

    fn take(large: &mut LargeObjects, read: LargeRead) {
        large.take(&read, std::iter::empty());
    }

    /// The part that is to be read next.
    fn next_part(large: &mut LargeObjects) -> LargeObject {
        match large.next() {
            Some(LargeWork::Part(part)) => part,
            other => panic!("a part expected, found {other:?}"),
        }
    }

    fn next_addresses(large: &mut LargeObjects) -> Vec<u64> {
        match large.next() {
            Some(LargeWork::Addresses(addresses)) => addresses,
            other => panic!("addresses expected, found {other:?}"),
        }
    }

    #[test]
    fn what_parts_refer_to_is_read_by_address_before_they_are_read_again() {
        let mut large = with_list(7, 300 << 10);
        let (first, second) = (next_part(&mut large), next_part(&mut large));
        assert_eq!((first.part.next().as_ref(), second.part.next()), (Some(&second.part), None));
        assert!(large.next().is_none() && !large.is_empty());

        let some = ADDRESSES_AT_ONCE as u64;
        collect(&mut large, &first, (1..=some).rev().map(|number| number * 64));
        // The other part may have more of them.
        assert!(large.next().is_none());
        collect(&mut large, &second, [64, 32, some * 64].into_iter());
        let addresses = next_addresses(&mut large);
        assert_eq!((addresses.len(), &addresses[..3]), (ADDRESSES_AT_ONCE, &[32, 64, 128][..]));
        assert_eq!(next_addresses(&mut large), [some * 64]);
        take(&mut large, LargeRead::Addresses);
        // Nobody knows the others yet.
        assert!(large.next().is_none());
        take(&mut large, LargeRead::Addresses);

        for before in [first, second] {
            let again = next_part(&mut large);
            assert_eq!((again.row, again.reading, &again.part), (7, PartReading::Again, &before.part));
        }
        assert!(large.next().is_none() && !large.is_empty());
        take(&mut large, LargeRead::Part(7));
        take(&mut large, LargeRead::Part(7));
        assert!(large.is_empty() && large.next().is_none());
    }

    #[test]
    fn parts_are_read_again_in_their_order_also_if_nothing_is_new_in_some() {
        let mut large = with_list(7, 300 << 10);
        let (first, second) = (next_part(&mut large), next_part(&mut large));
        for part in [&first, &second] {
            collect(&mut large, part, std::iter::empty());
        }
        assert_eq!([next_part(&mut large).part, next_part(&mut large).part], [first.part, second.part]);
    }

    #[test]
    fn what_is_behind_a_part_that_cannot_be_read_is_not_collected() {
        let mut large = with_list(7, 1200 << 10);
        let [first, second, third] = [(); 3].map(|()| next_part(&mut large));
        collect(&mut large, &first, [64].into_iter());
        large.take(&LargeRead::Collected(second.clone(), false), [128].into_iter());
        // Another thread has read this one meanwhile.
        collect(&mut large, &third, [192].into_iter());
        assert_eq!(next_addresses(&mut large), [64, 128]);
        take(&mut large, LargeRead::Addresses);
        assert_eq!([next_part(&mut large).part, next_part(&mut large).part], [first.part, second.part]);
        take(&mut large, LargeRead::Part(7));
        take(&mut large, LargeRead::Part(7));
        large.give_up(7);
        assert!(large.is_empty() && large.next().is_none());
    }

    #[test]
    fn others_are_read_also_if_nothing_is_left_of_what_was_collected() {
        let mut large = with_list(7, 300 << 10);
        large.add(8, PicturedObject::default(), &ItemPart::first_of(300 << 10));
        let first = next_part(&mut large);
        collect(&mut large, &first, 0..MOST_COLLECTED as u64);
        large.give_up(7);
        // Their addresses may be read all the same.
        let mut read = 0;
        while let Some(LargeWork::Addresses(some)) = large.next() {
            read += some.len();
            assert!(read <= MOST_COLLECTED);
            take(&mut large, LargeRead::Addresses);
        }
        take(&mut large, LargeRead::Part(8));
        assert!(large.is_empty() && large.next().is_none());
    }

    #[test]
    fn items_in_order_are_read_once() {
        let mut large = LargeObjects::default();
        large.add(1, PicturedObject::default(), &ItemPart::first_of(600 << 10));
        large.add(2, PicturedObject::default(), &ItemPart::first_of(600 << 10));
        assert_eq!((next_part(&mut large).reading, next_part(&mut large).row), (PartReading::Once, 1));
        large.give_up(1);
        take(&mut large, LargeRead::Part(1));
        take(&mut large, LargeRead::Part(1));
        assert_eq!([next_part(&mut large).row, next_part(&mut large).row], [2, 2]);
        take(&mut large, LargeRead::Part(2));
        take(&mut large, LargeRead::Part(2));
        assert!(large.is_empty() && large.next().is_none());
    }
}
