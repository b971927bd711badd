//! What a thread has read of some objects: their sizes, and what they refer to.
//!
//! Invariant: references stand in the order of the objects, and each has its place.

use std::ops::Range;

use memtrack_format::objects::PicturedObject;

use crate::finding::blocks::ScreenedBlocks;
use crate::finding::found_holders::NotedPlace;
use crate::finding::large_objects::LargeRead;
use crate::object::object_head::ObjectHead;
use crate::references::ItemPart;

/// Set in the number of an object that has no row yet.
pub(crate) const NEW: u32 = 1 << 31;

/// What was read of some objects.
#[derive(Debug, Default)]
pub(crate) struct FollowedObjects {
    /// These objects.
    pub(crate) objects: Vec<PicturedObject>,
    /// Of each object; `None`: it cannot be read.
    pub(crate) sizes: Vec<Option<u64>>,
    /// The types of instances whose values have bytes that their sizes leave out, and these.
    pub(crate) value_bytes: Vec<(u32, u64)>,
    /// Of each object, where its references end.
    pub(crate) ends: Vec<usize>,
    /// The addresses that they refer to, as they were found.
    pub(crate) addresses: Vec<u64>,
    /// The rows of these, or their numbers among the new ones, as far as they have been looked up.
    pub(crate) references: Vec<u32>,
    /// Where each of them is.
    pub(crate) places: Vec<NotedPlace>,
    /// What had no row, and what it begins with, unless it is no object.
    pub(crate) new: Vec<(u64, ObjectHead)>,
    /// The order of these by address, where they are scattered.
    pub(crate) order: Vec<u32>,
    /// Objects whose references could not all be read.
    pub(crate) unreadable: u64,
    /// Objects of which only a part was read, by their numbers among these.
    pub(crate) large: Vec<(usize, ItemPart)>,
    /// What was read for objects with many items, instead of whole objects.
    pub(crate) part: Option<LargeRead>,
    /// What is known of blocks.
    pub(crate) blocks: ScreenedBlocks,
}

/// An object that another refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowedReference {
    /// Its row.
    Known(u32),
    /// It had no row: its number among the new ones.
    New(usize),
}

impl FollowedObjects {
    /// Empties it; what it has allocated is used again.
    pub(crate) fn clear(&mut self) {
        let Self {
            objects,
            sizes,
            value_bytes,
            ends,
            addresses,
            references,
            places,
            new,
            order,
            unreadable,
            large,
            part,
            blocks,
        } = self;
        objects.clear();
        sizes.clear();
        value_bytes.clear();
        ends.clear();
        addresses.clear();
        references.clear();
        places.clear();
        new.clear();
        order.clear();
        large.clear();
        *blocks = ScreenedBlocks::default();
        (*unreadable, *part) = (0, None);
    }

    /// Forgets the last references, so that so many of them, and of objects without a row, are left.
    pub(crate) fn truncate(&mut self, references: usize, new: usize) {
        self.addresses.truncate(references);
        self.references.truncate(references);
        self.places.truncate(references);
        self.new.truncate(new);
    }

    /// The row of the object of which this is a further part.
    pub(crate) fn part_of(&self) -> Option<u32> {
        match &self.part {
            Some(LargeRead::Part(row)) => Some(*row),
            _ => None,
        }
    }

    /// The references of the object with this number among these, as they were found.
    pub(crate) fn references_of(&self, number: usize) -> impl Iterator<Item = (FollowedReference, NotedPlace)> {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.found(begin..self.ends[number])
    }

    /// The rows that objects with these numbers refer to, as far as they had some.
    pub(crate) fn known_of(&self, numbers: Range<usize>) -> impl Iterator<Item = u32> {
        let begin = numbers.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        let end = self.ends.get(numbers.end - 1).or(self.ends.last()).copied().unwrap_or(begin);
        self.references.get(begin..end).unwrap_or_default().iter().copied().filter(|reference| reference & NEW == 0)
    }

    /// Those of a further part of an object.
    pub(crate) fn references_of_part(&self) -> impl Iterator<Item = (FollowedReference, NotedPlace)> {
        self.found(0..self.references.len())
    }

    /// What had no row, by address where it is scattered: its number among the new ones, its address, and what it begins with.
    pub(crate) fn new_in_order(&self) -> impl Iterator<Item = (usize, u64, ObjectHead)> + Clone {
        let numbers = self.order.iter().map(|number| *number as usize).chain(self.order.len()..self.new.len());
        numbers.filter_map(|number| self.new.get(number).map(|(address, head)| (number, *address, *head)))
    }

    fn found(&self, some: Range<usize>) -> impl Iterator<Item = (FollowedReference, NotedPlace)> {
        let references = self.references.get(some.clone()).unwrap_or_default();
        let places = self.places.get(some).unwrap_or_default();
        references.iter().zip(places).map(|(&reference, &place)| {
            if reference & NEW == 0 {
                return (FollowedReference::Known(reference), place);
            }
            (FollowedReference::New((reference & !NEW) as usize), place)
        })
    }
}
