//! References that types of the standard library have in memory outside of their objects: children of XML elements, items of a
//! `SimpleQueue`, what picklers have seen, handlers of a parser. No word of the object is such a reference, so that without these
//! layouts nothing would hold what they hold.
//!
//! Offsets are those of builds with a global lock, see [`ObjectLayout::fields`], and the same in all versions where no version is
//! named; names of types are those that C code gave them. Invariant: an array is read only as far as the object's own numbers say,
//! and each reading ends within a bound.

use std::ops::Range;

use crate::interpreter::layout::ObjectLayout;
use crate::object::outer_holder::OuterHolder;
use crate::object::types::ObjectType;
use crate::references::{ItemPart, MOST_ITEMS, ReferencePlace, ReferenceReader};

/// How references are called that are not in a field: by offsets behind those of all fields.
const FIRST_OUTER: u64 = 1 << 20;
/// What an element has for its attributes and children; in that: the attributes, how many children, and where they are.
const ELEMENT_EXTRA: u64 = 40;
const ATTRIBUTES: u64 = 0;
const CHILD_COUNT: u64 = 8;
const CHILDREN: u64 = 24;
/// An element's text, and the text behind it; the lowest bit is set if it is a list of texts to be joined.
const ELEMENT_TEXT: u64 = 24;
const ELEMENT_TAIL: u64 = 32;
/// The elements that an iterator is in, each with the number of a child, and how many they are.
const PARENTS: u64 = 16;
const PARENT_COUNT: u64 = 24;
/// A queue's ring from 3.13 on: the place of its oldest item, the places, how many there are, and how many are taken.
const FIRST_WITH_RINGS: u8 = 13;
const RING_FIRST: u64 = 32;
const RING: u64 = 40;
const RING_ROOM: u64 = 48;
const RING_COUNT: u64 = 56;
/// Before, a list.
const QUEUE_LIST: u64 = 32;
/// A pickler's table of what it has seen; in that: how many entries there is room for, and the entries: an object and its number.
const PICKLER_MEMO: u64 = 16;
const MEMO_ROOM: u64 = 16;
const MEMO_ENTRIES: u64 = 24;
/// An unpickler's stack, what it has made by number, and for how many that has room.
const UNPICKLER_STACK: u64 = 16;
const UNPICKLER_MEMO: u64 = 24;
const UNPICKLER_MEMO_ROOM: u64 = 32;
/// How many items a stack has, and where they are.
const STACK_COUNT: u64 = 16;
const STACK_ITEMS: u64 = 24;
/// A profiler's tree of functions, and its clock; in a node: both children and what was called.
const PROFILER_TREE: u64 = 16;
const PROFILER_TIMER: u64 = 48;
const NODE_CHILDREN: u64 = 8;
/// Nodes of a tree that are read at most, and children that are not there.
const MOST_NODES: usize = 1 << 20;
/// A time zone's offsets: how many there are, and where; each is three objects and a number.
const OFFSET_COUNT: u64 = 48;
const OFFSETS: u64 = 192;
const OFFSET_WORDS: u64 = 4;
/// What a connection calls, from 3.11 on outside of it.
const FIRST_WITH_CONTEXTS: u8 = 11;
const CONTEXTS: [&str; 3] = ["<trace callback>", "<progress handler>", "<authorizer>"];
/// What a parser calls, in the order of its array.
const HANDLERS: [&str; 22] = [
    "StartElementHandler",
    "EndElementHandler",
    "ProcessingInstructionHandler",
    "CharacterDataHandler",
    "UnparsedEntityDeclHandler",
    "NotationDeclHandler",
    "StartNamespaceDeclHandler",
    "EndNamespaceDeclHandler",
    "CommentHandler",
    "StartCdataSectionHandler",
    "EndCdataSectionHandler",
    "DefaultHandler",
    "DefaultHandlerExpand",
    "NotStandaloneHandler",
    "ExternalEntityRefHandler",
    "StartDoctypeDeclHandler",
    "EndDoctypeDeclHandler",
    "EntityDeclHandler",
    "XmlDeclHandler",
    "ElementDeclHandler",
    "AttlistDeclHandler",
    "SkippedEntityHandler",
];

/// An array in which references are.
struct OuterArray {
    first: u64,
    /// Entries, and words of each.
    count: u64,
    width: u64,
    /// The field as which all of them are called; `None`: they are items.
    field: Option<u64>,
}

impl OuterHolder {
    /// The name of a field of an object of this type, or of what is called as one.
    pub(crate) fn name_of_field(self, layout: &ObjectLayout, of: &ObjectType, offset: u64) -> Option<&'static str> {
        let outer = |names: &[&'static str]| {
            let number = offset.checked_sub(FIRST_OUTER)? / 8;
            names.get(number as usize).copied()
        };
        match (self, offset) {
            (Self::Element, 16) => Some("tag"),
            (Self::Element, ELEMENT_TEXT) => Some("text"),
            (Self::Element, ELEMENT_TAIL) => Some("tail"),
            (Self::Element, _) => outer(&["attrib"]),
            (Self::ElementIterator, PARENTS) => Some("<parents>"),
            (Self::ElementIterator, 40) => Some("<root>"),
            (Self::Pickler, PICKLER_MEMO) | (Self::Unpickler, UNPICKLER_MEMO) => Some("memo"),
            (Self::Unpickler, UNPICKLER_STACK) => Some("<stack>"),
            (Self::Profiler, PROFILER_TREE) => Some("<functions>"),
            (Self::Profiler, PROFILER_TIMER) => Some("<timer>"),
            (Self::SqliteConnection, _) => outer(&CONTEXTS),
            (Self::SimpleQueue, QUEUE_LIST) => Some("<items>"),
            (Self::TimeZone, OFFSETS) => Some("<offsets>"),
            (Self::XmlParser, _) if offset == intern_of_parser(layout, of) => Some("intern"),
            (Self::XmlParser, _) => outer(&HANDLERS),
            _ => None,
        }
    }
}

/// Where a parser has its table of names; its handlers are the next field and the last one, in all versions.
fn intern_of_parser(layout: &ObjectLayout, of: &ObjectType) -> u64 {
    of.basic_size.saturating_sub(layout.larger_head).saturating_sub(16)
}

impl ReferenceReader<'_> {
    /// The references of a part of an object that are in an array outside of it.
    pub(crate) fn outer_items(
        &self,
        holder: OuterHolder,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        if holder == OuterHolder::SimpleQueue {
            return self.layout.minor < FIRST_WITH_RINGS || self.ring(address, part, each).unwrap_or(false);
        }
        let Some(OuterArray { first, count, width, field }) = self.outer_array(holder, address) else { return false };
        let place = |number| field.map_or(ReferencePlace::Item(number), ReferencePlace::Field);
        count == 0 || self.entry_words(first, (count, width), part, place, each)
    }

    /// Where the array of an object is; `None`: it cannot be read.
    fn outer_array(&self, holder: OuterHolder, address: u64) -> Option<OuterArray> {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let outer = |begin: u64, at: u64| self.memory.u64(begin.wrapping_add(at));
        let none = OuterArray { first: 0, count: 0, width: 1, field: None };
        Some(match holder {
            OuterHolder::Element => match word(ELEMENT_EXTRA)? {
                0 => none,
                extra => OuterArray { first: outer(extra, CHILDREN)?, count: outer(extra, CHILD_COUNT)?, ..none },
            },
            OuterHolder::ElementIterator => {
                OuterArray { first: word(PARENTS)?, count: word(PARENT_COUNT)?, width: 2, field: Some(PARENTS) }
            }
            OuterHolder::Pickler => match word(PICKLER_MEMO)? {
                0 => none,
                memo => {
                    let (first, count) = (outer(memo, MEMO_ENTRIES)?, outer(memo, MEMO_ROOM)?);
                    OuterArray { first, count, width: 2, field: Some(PICKLER_MEMO) }
                }
            },
            OuterHolder::PickleStack => OuterArray { first: word(STACK_ITEMS)?, count: word(STACK_COUNT)?, ..none },
            OuterHolder::TimeZone => OuterArray {
                first: word(OFFSETS)?,
                count: word(OFFSET_COUNT)?,
                width: OFFSET_WORDS,
                field: Some(OFFSETS),
            },
            OuterHolder::Unpickler => match word(UNPICKLER_MEMO)? {
                0 => none,
                first => OuterArray { first, count: word(UNPICKLER_MEMO_ROOM)?, width: 1, field: Some(UNPICKLER_MEMO) },
            },
            OuterHolder::Profiler
            | OuterHolder::SqliteConnection
            | OuterHolder::SimpleQueue
            | OuterHolder::XmlParser => none,
        })
    }

    /// The items of a queue, from the oldest one on, which may be anywhere in the ring.
    fn ring(&self, address: u64, part: &mut ItemPart, each: &mut dyn FnMut(ReferencePlace, u64)) -> Option<bool> {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (oldest, ring, room, count) = (word(RING_FIRST)?, word(RING)?, word(RING_ROOM)?, word(RING_COUNT)?);
        if count > room || room > MOST_ITEMS || room > 0 && oldest >= room {
            return None;
        }
        let Range { start, end } = part.of(count)?;
        // Items before this number are behind the oldest one, the others at the ring's begin.
        let turn = room.saturating_sub(oldest);
        let mut number = start;
        let mut read = |first: u64, some: Range<u64>| {
            self.memory.words(ring.wrapping_add(first * 8), some.end - some.start, |word| {
                each(ReferencePlace::Item(number), word);
                number += 1;
            })
        };
        let (behind, begin) = (start.min(turn)..end.min(turn), start.max(turn)..end.max(turn));
        Some(read(oldest + behind.start, behind) && read(begin.start - turn, begin))
    }

    /// The references of an object that are outside of it and in no array of changing length.
    pub(crate) fn outer_references(
        &self,
        holder: OuterHolder,
        of: &ObjectType,
        address: u64,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        match holder {
            OuterHolder::Element => {
                for field in [ELEMENT_TEXT, ELEMENT_TAIL] {
                    // Without that bit it was read as a field.
                    if let Some(tagged) = word(field).filter(|word| word & 1 == 1) {
                        each(ReferencePlace::Field(field), tagged & !1);
                    }
                }
                let extra = word(ELEMENT_EXTRA).filter(|extra| *extra != 0);
                extra.is_none_or(|extra| self.outer_fields(extra.wrapping_add(ATTRIBUTES), 1, each))
            }
            OuterHolder::Profiler => word(PROFILER_TREE).is_some_and(|root| self.tree(root, each)),
            OuterHolder::SqliteConnection if self.layout.minor >= FIRST_WITH_CONTEXTS => {
                let first = match self.layout.minor {
                    FIRST_WITH_CONTEXTS => 112,
                    12..=14 => 120,
                    _ => 104,
                };
                let mut name = FIRST_OUTER;
                self.memory.words(self.layout.fields(address).wrapping_add(first), CONTEXTS.len() as u64, |context| {
                    if context != 0 {
                        each(ReferencePlace::Field(name), self.memory.u64(context).unwrap_or(0));
                    }
                    name += 8;
                })
            }
            OuterHolder::XmlParser => {
                let handlers = word(intern_of_parser(self.layout, of) + 8);
                handlers.is_some_and(|handlers| self.outer_fields(handlers, HANDLERS.len() as u64, each))
            }
            _ => true,
        }
    }

    /// Words that are called as fields behind those of the object.
    fn outer_fields(&self, first: u64, count: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let mut name = FIRST_OUTER;
        self.memory.words(first, count, |word| {
            each(ReferencePlace::Field(name), word);
            name += 8;
        })
    }

    /// What a profiler has for functions: their code, or their names.
    fn tree(&self, root: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let mut rest = vec![root];
        for _ in 0..MOST_NODES {
            let Some(node) = rest.pop() else { return true };
            if node == 0 {
                continue;
            }
            let mut number = 0;
            let is_read = self.memory.words(node.wrapping_add(NODE_CHILDREN), 3, |word| {
                match number {
                    0 | 1 => rest.push(word),
                    _ => each(ReferencePlace::Field(PROFILER_TREE), word),
                }
                number += 1;
            });
            if !is_read {
                return false;
            }
        }
        false
    }
}
