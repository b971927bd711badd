//! What is noted of each object while references are followed: how many there are to it, and by which one it was found first.
//!
//! Most objects are held by one other, so that what was noted is how they are called in the end, and their holder need not be read
//! again. Invariant: what is noted is one of the references that were found, and of several from the same holder the first of the
//! best rank.

use crate::references::ReferencePlace;

/// A place in eight bytes: its rank, what it is, and its number or address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotedPlace(u64);

/// Where the rank and the kind of a place begin.
const RANK: u32 = 62;
const KIND: u32 = 56;
const VALUE: u64 = 1;
const ATTRIBUTE: u64 = 2;
const LOCAL: u64 = 3;
const ITEM: u64 = 4;
const MEMBER: u64 = 5;
const FIELD: u64 = 6;
const KEY: u64 = 7;
const STACK: u64 = 9;
/// One that is not noted exactly.
const OTHER: u64 = 8;

impl NotedPlace {
    /// That of a reference to which no name belongs.
    pub(crate) const NONE: Self = Self(0);

    /// Notes a place.
    pub(crate) fn of(place: ReferencePlace) -> Self {
        let (kind, value) = match place {
            ReferencePlace::Value(key) => (VALUE, key),
            ReferencePlace::Attribute(name) => (ATTRIBUTE, name),
            ReferencePlace::Local(number) => (LOCAL, number),
            ReferencePlace::Stack => (STACK, 0),
            ReferencePlace::FrameLocal(..) | ReferencePlace::FrameStack(_) | ReferencePlace::PerhapsStack => (OTHER, 0),
            ReferencePlace::Item(number) => (ITEM, number),
            ReferencePlace::Member => (MEMBER, 0),
            ReferencePlace::Field(offset) => (FIELD, offset),
            ReferencePlace::Key => (KEY, 0),
        };
        let (kind, value) = if value >> KIND == 0 { (kind, value) } else { (OTHER, 0) };
        Self(u64::from(place.rank()) << RANK | kind << KIND | value)
    }

    /// The place; `None`: only its rank is known.
    pub(crate) fn place(self) -> Option<ReferencePlace> {
        let value = self.0 & ((1 << KIND) - 1);
        Some(match self.0 >> KIND & ((1 << (RANK - KIND)) - 1) {
            VALUE => ReferencePlace::Value(value),
            ATTRIBUTE => ReferencePlace::Attribute(value),
            LOCAL => ReferencePlace::Local(value),
            STACK => ReferencePlace::Stack,
            ITEM => ReferencePlace::Item(value),
            MEMBER => ReferencePlace::Member,
            FIELD => ReferencePlace::Field(value),
            KEY => ReferencePlace::Key,
            _ => return None,
        })
    }
}

/// What is noted of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundHolder {
    /// References to it that were found.
    references: u32,
    holder: u32,
    place: NotedPlace,
}

impl FoundHolder {
    /// Takes notice of a reference from the object in this row.
    pub(crate) fn hold(&mut self, holder: u32, place: NotedPlace) {
        self.references = self.references.saturating_add(1);
        let is_better = || self.holder == holder && place.0 >> RANK < self.place.0 >> RANK;
        if place != NotedPlace::NONE && (self.place == NotedPlace::NONE || is_better()) {
            (self.holder, self.place) = (holder, place);
        }
    }

    /// The row of the object that was found first to hold it; 0 where there is none.
    pub(crate) fn holder(self) -> u32 {
        self.holder
    }

    /// The row of the object that was found first to hold it, and the place of the reference.
    pub(crate) fn first(self) -> Option<(u32, ReferencePlace)> {
        Some((self.holder, self.place.place()?))
    }
}

/// What is noted of all objects, by their rows: no more than is asked for, since it takes the most memory besides the objects.
#[derive(Debug)]
pub(crate) enum FoundHolders {
    /// How many references to each were found.
    Counted(Vec<u32>),
    /// And by which object each was found first.
    Named(Vec<FoundHolder>),
}

impl FoundHolders {
    /// Of no objects yet; whether names are read afterwards, for which the first holders are asked.
    pub(crate) const fn new(has_names: bool) -> Self {
        if has_names { Self::Named(Vec::new()) } else { Self::Counted(Vec::new()) }
    }

    /// Whether the first holders are noted.
    pub(crate) const fn has_names(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// Adds the next object.
    pub(crate) fn push(&mut self) {
        match self {
            Self::Counted(counts) => counts.push(0),
            Self::Named(found) => found.push(FoundHolder::default()),
        }
    }

    /// Takes notice of a reference to one object from another.
    pub(crate) fn hold(&mut self, held: u32, holder: u32, place: NotedPlace) {
        match self {
            Self::Counted(counts) => counts[held as usize] = counts[held as usize].saturating_add(1),
            Self::Named(found) => found[held as usize].hold(holder, place),
        }
    }

    /// References to the object in this row that were found; 0 where there is none.
    pub(crate) fn count(&self, row: u32) -> u32 {
        let found = match self {
            Self::Counted(counts) => counts.get(row as usize).copied(),
            Self::Named(found) => found.get(row as usize).map(|found| found.references),
        };
        found.unwrap_or(0)
    }

    /// Takes so many of these away: they are none.
    pub(crate) fn discount(&mut self, row: u32, references: u32) {
        let found = match self {
            Self::Counted(counts) => &mut counts[row as usize],
            Self::Named(found) => &mut found[row as usize].references,
        };
        *found = found.saturating_sub(references);
    }

    /// Adds one that is held by what is no object.
    pub(crate) fn count_one(&mut self, row: u32) {
        self.hold(row, 0, NotedPlace::NONE);
    }

    /// What was noted of each; nothing where only references were counted.
    pub(crate) fn into_named(self) -> Vec<FoundHolder> {
        match self {
            Self::Counted(_) => Vec::new(),
            Self::Named(found) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FoundHolder, FoundHolders, NotedPlace};
    use crate::references::ReferencePlace;

    #[test]
    fn a_place_is_what_was_noted() {
        let exact = [
            ReferencePlace::Key,
            ReferencePlace::Value(0x7fff_ffff_fff0),
            ReferencePlace::Attribute(0x1000),
            ReferencePlace::Item(u64::MAX >> 8),
            ReferencePlace::Member,
            ReferencePlace::Local(3),
            ReferencePlace::Stack,
            ReferencePlace::Field(0),
        ];
        for place in exact {
            assert_eq!(NotedPlace::of(place).place(), Some(place));
        }
        for place in [ReferencePlace::FrameLocal(0x1000, 1), ReferencePlace::Item(1 << 56)] {
            assert_eq!(NotedPlace::of(place).place(), None);
        }
    }

    #[test]
    fn the_first_holder_stays_with_its_best_reference() {
        let mut found = FoundHolder::default();
        assert_eq!(found.first(), None);
        found.hold(7, NotedPlace::NONE);
        assert_eq!(found.first(), None);
        for (holder, place) in [
            (3, ReferencePlace::Key),
            (4, ReferencePlace::Value(64)),
            (3, ReferencePlace::Field(16)),
            (3, ReferencePlace::Field(24)),
        ] {
            found.hold(holder, NotedPlace::of(place));
        }
        assert_eq!((found.first(), found.references), (Some((3, ReferencePlace::Field(16))), 5));
        found.hold(3, NotedPlace::of(ReferencePlace::FrameLocal(0x1000, 0)));
        assert_eq!(found.first(), None);
    }

    #[test]
    fn references_are_counted_alike_with_and_without_names() {
        for has_names in [false, true] {
            let mut found = FoundHolders::new(has_names);
            (0..3).for_each(|_| found.push());
            for (held, place) in [(1, ReferencePlace::Key), (1, ReferencePlace::Item(0)), (2, ReferencePlace::Member)] {
                found.hold(held, 0, NotedPlace::of(place));
            }
            found.count_one(1);
            found.discount(2, 2);
            assert_eq!([0, 1, 2, 3].map(|row| found.count(row)), [0, 3, 0, 0]);
            assert_eq!(found.has_names(), has_names);
            let firsts: Vec<_> = found.into_named().iter().map(|found| found.first()).collect();
            let named = [None, Some((0, ReferencePlace::Item(0))), Some((0, ReferencePlace::Member))];
            assert_eq!(firsts, if has_names { &named[..] } else { &[] });
        }
    }
}
