//! Objects with many items, which are read in parts.
//!
//! What a list refers to may lie anywhere. Where that is so, what is not known yet is collected from all parts first and read in
//! the order of its addresses; then the parts are read again. Invariant: a part is taken once, and no part of an object is behind
//! one that could not be read.

use std::collections::VecDeque;

use memtrack_format::objects::PicturedObject;

use crate::followed_objects::{FollowedObjects, FollowedPart};
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
    /// Whether what it refers to was collected.
    pub(crate) is_collected: bool,
}

/// What is to be read next.
#[derive(Debug)]
pub(crate) enum LargeWork {
    Part(LargeObject),
    /// What these begin with, ascending.
    Addresses(Vec<u64>),
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
}

impl LargeObjects {
    /// Has the further parts read of an object, behind this one.
    pub(crate) fn add(&mut self, row: u32, object: PicturedObject, first: &ItemPart) {
        self.parts.extend(first.next().map(|part| LargeObject { row, object, part, is_collected: false }));
    }

    /// Whether anything is left to be read or taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.collected.is_empty() && self.unread == 0
    }

    /// What is to be read next; `None`: nothing, or nothing until something is taken.
    pub(crate) fn next(&mut self) -> Option<LargeWork> {
        if self.given.is_none() && (self.parts.is_empty() || self.addresses.len() >= MOST_COLLECTED) {
            if self.collected.is_empty() || self.unread > 0 {
                return None;
            }
            self.addresses.sort_unstable();
            self.addresses.dedup();
            self.given = Some(0);
        }
        if let Some(given) = &mut self.given {
            let next = self.addresses.chunks(ADDRESSES_AT_ONCE).nth(*given)?;
            *given += 1;
            self.unread += 1;
            return Some(LargeWork::Addresses(next.to_vec()));
        }
        let next = self.parts.pop_front()?;
        // A part that is read again has those behind it among the others.
        let behind = if next.is_collected { None } else { next.part.next() };
        behind.into_iter().for_each(|part| self.parts.push_front(LargeObject { part, ..next.clone() }));
        self.unread += 1;
        Some(LargeWork::Part(next))
    }

    /// Takes notice of what was read.
    pub(crate) fn take(&mut self, read: &FollowedObjects) {
        let Some(part) = &read.part else { return };
        self.unread = self.unread.saturating_sub(1);
        if let FollowedPart::Collected(part) = part {
            self.collected.push_back(LargeObject { is_collected: true, ..part.clone() });
            self.addresses.extend(read.new.iter().map(|(address, _)| address));
        }
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

    use super::{ADDRESSES_AT_ONCE, LargeObjects, LargeWork};
    use crate::followed_objects::{FollowedObjects, FollowedPart};
    use crate::object_head::ObjectHead;
    use crate::references::ItemPart;

    fn read(part: FollowedPart, addresses: impl Iterator<Item = u64>) -> FollowedObjects {
        let new = addresses.map(|address| (address, ObjectHead::default())).collect();
        FollowedObjects { part: Some(part), new, ..FollowedObjects::default() }
    }

    /// The part that is to be read next.
    fn next_part(large: &mut LargeObjects) -> super::LargeObject {
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
        let mut large = LargeObjects::default();
        large.add(7, PicturedObject::default(), &ItemPart::first_of(600 << 10));
        let (second, third) = (next_part(&mut large), next_part(&mut large));
        assert_eq!((&third.part, third.part.next()), (&second.part.next().unwrap(), None));
        assert!(large.next().is_none() && !large.is_empty());

        let some = ADDRESSES_AT_ONCE as u64;
        large.take(&read(FollowedPart::Collected(second.clone()), (1..=some).rev().map(|number| number * 64)));
        // The other part may have more of them.
        assert!(large.next().is_none());
        large.take(&read(FollowedPart::Collected(third.clone()), [64, 32, some * 64].into_iter()));
        let first = next_addresses(&mut large);
        assert_eq!((first.len(), first[..3].to_vec()), (ADDRESSES_AT_ONCE, vec![32, 64, 128]));
        assert_eq!(next_addresses(&mut large), [some * 64]);
        large.take(&read(FollowedPart::Heads, first.into_iter()));
        // Nobody knows the others yet.
        assert!(large.next().is_none());
        large.take(&read(FollowedPart::Heads, [some * 64].into_iter()));

        for before in [second, third] {
            let again = next_part(&mut large);
            assert_eq!((again.row, again.is_collected, &again.part), (7, true, &before.part));
        }
        assert!(large.next().is_none() && !large.is_empty());
        large.take(&read(FollowedPart::Read(7), [].into_iter()));
        large.take(&read(FollowedPart::Read(7), [].into_iter()));
        assert!(large.is_empty() && large.next().is_none());
    }

    #[test]
    fn no_part_of_an_object_that_was_given_up_is_read() {
        let mut large = LargeObjects::default();
        for row in [1, 2] {
            large.add(row, PicturedObject::default(), &ItemPart::first_of(600 << 10));
        }
        let first = next_part(&mut large);
        large.take(&read(FollowedPart::Collected(first), [64].into_iter()));
        large.give_up(1);
        assert_eq!(next_part(&mut large).row, 2);
        assert_eq!(next_part(&mut large).row, 2);
        large.take(&read(FollowedPart::Read(2), [].into_iter()));
        large.take(&read(FollowedPart::Read(2), [].into_iter()));
        assert!(large.is_empty() && large.next().is_none());
    }
}
