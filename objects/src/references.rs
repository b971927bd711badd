//! What an object refers to: by the layout of the types that CPython has, and of all others every word of their fields and
//! items that is the address of an object.
//!
//! Weak references and lists of them are left out. Invariant: what is passed on is a candidate; whoever takes it checks
//! that an object is there.

pub(crate) mod container_references;
pub(crate) mod frame_references;
pub(crate) mod numpy_objects;
pub(crate) mod outer_references;

use std::ops::Range;

use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::static_types::StaticTypes;
use crate::interpreter::type_fields::{BASE, BASIC_SIZE, DICTIONARY, DOCUMENTATION, METHODS, SUBCLASSES, is_heap_type};
use crate::memory::ObjectMemory;
use crate::object::dictionary::KeyTable;
use crate::object::instance_values::InstanceValues;
use crate::object::known_fields::{KnownFields, OptionalFields};
use crate::object::measures::Measure;
use crate::object::numpy_array;
use crate::object::types::{ObjectKind, ObjectType};

/// In a code object from 3.11 on: the end of its first references, and where those behind its numbers are.
const CODE_NUMBERS: u64 = 48;
const CODE_NAMES: Range<u64> = 96..144;
/// What a code object makes when it is asked for it: its bytes in 3.11, else the address of so many references, at an offset
/// by version. They are called by offsets behind those of all fields.
const CODE_KEPT: [u64; 3] = [152, 152, 160];
const CODE_KEPT_FIELDS: u64 = 4;
pub(crate) const FIRST_OF_CODE_KEPT: u64 = 1 << 20;
/// How the dictionaries are called that a static type has in other interpreters than the main one.
pub(crate) const OF_SUBINTERPRETERS: u64 = 1 << 20;
/// The most words of a fixed part.
const MOST_FIELDS: u64 = 1 << 16;
/// Items of an object that are read at once, where an object is read in parts.
const ITEMS_OF_A_PART: u64 = 256 << 10;
/// Items of an object that is believed.
pub(crate) const MOST_ITEMS: u64 = 1 << 29;

/// Where in an object a reference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferencePlace {
    /// A key of a dictionary, or of a table of attributes.
    Key,
    /// The value of a dictionary's entry with the key at this address.
    Value(u64),
    /// An attribute, whose name is the string at this address.
    Attribute(u64),
    /// An item, by number.
    Item(u64),
    /// A member of a set.
    Member,
    /// A local variable, by number in the frame's code.
    Local(u64),
    /// A value that its code has on the frame's stack.
    Stack,
    /// A value that may be on the frame's stack, or was there earlier.
    PerhapsStack,
    /// A local variable, by number, of a frame at this address that is no object.
    FrameLocal(u64, u64),
    /// A value on the stack of such a frame.
    FrameStack(u64),
    /// A field, by offset.
    Field(u64),
}

impl ReferencePlace {
    /// What is said first of several references to the same object.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Value(_) | Self::Attribute(_) => 0,
            Self::Local(_) | Self::FrameLocal(..) | Self::Item(_) | Self::Member => 1,
            Self::Field(_) | Self::Stack | Self::PerhapsStack | Self::FrameStack(_) => 2,
            Self::Key => 3,
        }
    }
}

/// Which items of an object are read, by number: those of a list or tuple and of what else has as many as it says, entries of a
/// dictionary and slots of a set; and how many there are. An object's other references belong to its first part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemPart {
    wanted: Range<u64>,
    /// Items of the object; 0: it has none, or is not read in parts.
    all: u64,
    is_first: bool,
}

impl ItemPart {
    /// What is read first of every object.
    pub(crate) const FIRST: Self = Self { wanted: 0..ITEMS_OF_A_PART, all: 0, is_first: true };

    /// The next part of the object.
    pub(crate) fn next(&self) -> Option<Self> {
        let (begin, all) = (self.wanted.end, self.all);
        (begin < all).then_some(Self { wanted: begin..begin + ITEMS_OF_A_PART, all, is_first: false })
    }

    /// The first part of an object with so many items.
    #[cfg(test)]
    pub(crate) fn first_of(all: u64) -> Self {
        Self { all, ..Self::FIRST }
    }

    /// The first part without items: the next one begins with the first item.
    pub(crate) fn without_items(&self) -> Self {
        Self { wanted: 0..0, ..self.clone() }
    }

    /// The first part with its items.
    pub(crate) fn with_items(&self) -> Self {
        Self { wanted: Self::FIRST.wanted, ..self.clone() }
    }

    /// Whether the part has items, if the object has some.
    pub(crate) fn has_items(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The wanted ones of so many items; `None`: there cannot be as many.
    pub(crate) fn of(&mut self, count: u64) -> Option<Range<u64>> {
        self.all = Some(count).filter(|count| *count <= MOST_ITEMS)?;
        Some(self.wanted.start.min(count)..self.wanted.end.min(count))
    }
}

/// What reads references.
#[derive(Clone, Copy)]
pub(crate) struct ReferenceReader<'a> {
    pub(crate) memory: &'a ObjectMemory<'a>,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) static_types: &'a StaticTypes,
}

impl ReferenceReader<'_> {
    /// Calls `each` with place and address of every reference; returns whether all could be read.
    pub(crate) fn each(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let mut whole = ItemPart { wanted: 0..u64::MAX, ..ItemPart::FIRST };
        self.part(of, address, &mut whole, each)
    }

    /// The same for a part of them, which learns how many items there are.
    pub(crate) fn part(
        &self,
        of: &ObjectType,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        if !part.is_first {
            return self.items_of_part(of, address, part, each);
        }
        let mut is_whole = self.attributes(of, address, each);
        if !self.items_of_part(of, address, part, each) {
            // What is behind them may be anything.
            (part.all, is_whole) = (0, false);
        }
        is_whole &= match of.kind {
            ObjectKind::Array
            | ObjectKind::ByteArray
            | ObjectKind::Bytes
            | ObjectKind::Integer
            | ObjectKind::NoReferences
            | ObjectKind::Text => self.fields(of, address, self.own_fields(of), each),
            ObjectKind::Dictionary | ObjectKind::OrderedDictionary => self.fields(of, address, 48, each),
            ObjectKind::List => self.fields(of, address, 40, each),
            ObjectKind::Set => self.fields(of, address, 200, each),
            ObjectKind::NumpyArray => {
                let (from, to) = (numpy_array::REFERENCES.start, numpy_array::REFERENCES.end);
                self.field_words(of, address, from, to, each)
                    & self.fields(of, address, numpy_array::LATER_FIELDS, each)
            }
            ObjectKind::Deque => self.deque(address, each) & self.fields(of, address, 72, each),
            ObjectKind::Frame if self.layout.has_light_frames() => {
                let frame = self.memory.u64(self.layout.fields(address).wrapping_add(24));
                // Behind these fields is room for the frame, which has something in it only once its function has ended.
                frame.is_some_and(|frame| self.frame(frame, each))
                    & self.field_words(of, address, 16, 24, each)
                    & self.field_words(of, address, 32, self.layout.frame_data, each)
            }
            ObjectKind::Generator if self.layout.has_light_frames() => {
                self.generator_fields(of, address, each) & self.frame_of_generator(address, each)
            }
            ObjectKind::Generator => self.generator_fields(of, address, each),
            ObjectKind::Frame => self.frame_object(of, address, each),
            ObjectKind::WeakReference => {
                // Not the object, nor the neighbours in its list of weak references, nor that list's lock.
                let own = if self.layout.is_free_threaded() { 72 } else { 64 };
                self.field_words(of, address, 24, 32, each) & self.fields(of, address, own, each)
            }
            // Behind the pointers to its neighbours, which it does not own, and a hash.
            ObjectKind::Cache => self.fields(of, address, 40, each),
            // The managed buffer and the object that has it, unless it was released, which leaves the address: other words are
            // numbers, some of which are never set.
            ObjectKind::MemoryView => {
                let flags = self.memory.u32(self.layout.fields(address).wrapping_add(40));
                let end = if flags.is_none_or(|flags| flags & 1 != 0) { 64 } else { 72 };
                self.field_words(of, address, 24, 32, each) & self.field_words(of, address, 64, end, each)
            }
            ObjectKind::TeeData => self.tee_data(of, address, each),
            ObjectKind::Greenlet => self.fields_before_items(of, address, each) & self.greenlet(address, each),
            ObjectKind::Outer(holder) => {
                self.fields_before_items(of, address, each) & self.outer_references(holder, of, address, each)
            }
            ObjectKind::Type => self.type_fields(of, address, each),
            ObjectKind::Code if self.layout.has_light_frames() => self.code(of, address, each),
            ObjectKind::Fields if let Some(known) = of.known => self.known_fields(of, known, address, each),
            ObjectKind::Tuple | ObjectKind::Fields | ObjectKind::Code => self.fields_before_items(of, address, each),
        };
        is_whole
    }

    /// The items of a part.
    fn items_of_part(
        &self,
        of: &ObjectType,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        match of.kind {
            ObjectKind::Dictionary | ObjectKind::OrderedDictionary => self.dictionary(address, part, each),
            ObjectKind::List => self.list(address, part, each),
            ObjectKind::Set => self.set(address, part, each),
            ObjectKind::NumpyArray => self.objects_of_array(address, part, each),
            ObjectKind::Outer(holder) => self.outer_items(holder, address, part, each),
            ObjectKind::Code if self.layout.has_light_frames() => true,
            ObjectKind::Fields if of.known.is_some() => true,
            ObjectKind::Tuple | ObjectKind::Fields | ObjectKind::Code | ObjectKind::Greenlet => {
                self.items(of, address, part, each)
            }
            _ => true,
        }
    }

    /// The fields of a type of which it is known which are references, and of classes derived from it.
    fn known_fields(
        &self,
        of: &ObjectType,
        known: &KnownFields,
        address: u64,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let mut is_whole = true;
        let mut optional: &[(u64, u64)] = &[];
        if let Some(OptionalFields { references, word, bits }) = known.optional {
            let word = self.memory.u64(self.layout.fields(address).wrapping_add(word));
            is_whole = word.is_some();
            optional = if word.is_some_and(|word| word & bits != 0) { references } else { &[] };
        }
        for (start, end) in known.references.iter().chain(optional) {
            // Of a version that does not have so many.
            is_whole &= self.field_words(of, address, *start, (*end).min(self.fixed(of)), each);
        }
        is_whole & self.fields(of, address, known.end, each)
    }

    /// Where the fields of a class derived from a type without references begin.
    fn own_fields(&self, of: &ObjectType) -> u64 {
        if !of.is_heap_type {
            return self.fixed(of);
        }
        match of.kind {
            // Its digits, which are behind numbers of a version.
            ObjectKind::NoReferences if let Some((Measure::Decimal, fixed)) = of.measure => {
                fixed.saturating_sub(self.layout.larger_head)
            }
            ObjectKind::Text if self.layout.minor >= 12 => 64,
            ObjectKind::Text => 80,
            ObjectKind::ByteArray if self.layout.minor >= 15 => 64,
            ObjectKind::ByteArray => 56,
            ObjectKind::Array => 64,
            _ => 24,
        }
    }

    /// Where the fixed part ends, as an offset.
    fn fixed(&self, of: &ObjectType) -> u64 {
        of.basic_size.saturating_sub(self.layout.larger_head)
    }

    /// The words of the fixed part from an offset on.
    fn fields(&self, of: &ObjectType, address: u64, from: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        self.field_words(of, address, from, self.fixed(of), each)
    }

    pub(crate) fn field_words(
        &self,
        of: &ObjectType,
        address: u64,
        from: u64,
        to: u64,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let mut offset = from;
        let count = (to.saturating_sub(from) / 8).min(MOST_FIELDS);
        self.memory.words(self.layout.fields(address).wrapping_add(from), count, |word| {
            let is_weak_list = of.weak_list != 0 && self.layout.fields(offset).cast_signed() == of.weak_list;
            if !is_weak_list && (of.borrowed == 0 || of.borrowed != offset) {
                each(ReferencePlace::Field(offset), word);
            }
            offset += 8;
        })
    }

    /// Where the items of an object of variable size begin, as offsets: its fields, and what is behind them.
    fn item_offsets(&self, of: &ObjectType) -> (u64, u64) {
        let items = self.layout.tuple_items;
        if of.kind == ObjectKind::Tuple { (items, items) } else { (16, self.fixed(of)) }
    }

    /// All words of the fixed part.
    fn fields_before_items(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let (first, base) = self.item_offsets(of);
        self.field_words(of, address, first, base, each)
    }

    /// The words of the variable part.
    fn items(
        &self,
        of: &ObjectType,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        if of.item_size == 0 || !of.item_size.is_multiple_of(8) {
            return true;
        }
        let (address, (_, base)) = (self.layout.fields(address), self.item_offsets(of));
        let Some(count) = self.memory.u64(address.wrapping_add(16)) else { return false };
        let entries = (count.cast_signed().unsigned_abs(), of.item_size / 8);
        self.entry_words(address.wrapping_add(base), entries, part, ReferencePlace::Item, each)
    }

    /// Words of an array with so many entries of so many words; `place` says how those of an entry are called.
    pub(crate) fn entry_words(
        &self,
        first: u64,
        (count, width): (u64, u64),
        part: &mut ItemPart,
        place: impl Fn(u64) -> ReferencePlace,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let Some(Range { start, end }) = part.of(count) else { return false };
        let (mut index, mut word) = (start, 0);
        self.memory.words(first.wrapping_add(start * width * 8), (end - start) * width, |value| {
            each(place(index), value);
            word += 1;
            if word == width {
                (index, word) = (index + 1, 0);
            }
        })
    }

    /// The dictionary or the values that stand before or behind the object, where its type says so.
    fn attributes(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        if !of.has_managed_dictionary {
            return of.dictionary_offset >= 0 || self.dictionary_at_end(of, address, each);
        }
        let Some(read) = InstanceValues::read(self.memory, self.layout, of, address) else { return false };
        let InstanceValues { dictionary, values } = read;
        if dictionary != 0 {
            each(ReferencePlace::Field(0), dictionary);
        }
        // A dictionary that shares the values refers to them as well; it comes first on every path.
        if values == 0 || dictionary != 0 || of.cached_keys == 0 {
            return true;
        }
        let Some(keys) = KeyTable::read(self.memory, self.layout, of.cached_keys) else { return false };
        let mut index = 0;
        self.memory.words(values, keys.entries, |value| {
            if value != 0 {
                each(ReferencePlace::Attribute(keys.key(self.memory, index).unwrap_or(0)), value);
            }
            index += 1;
        })
    }

    /// The dictionary behind the items of a class derived from a type of variable size.
    fn dictionary_at_end(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let Some(items) = self.memory.u64(self.layout.fields(address).wrapping_add(16)) else { return false };
        let items = items.cast_signed().unsigned_abs().saturating_mul(of.item_size);
        let size = of.basic_size.saturating_add(items).saturating_add(7) & !7;
        let Some(at) = address.checked_add(size).and_then(|end| end.checked_add_signed(of.dictionary_offset)) else {
            return false;
        };
        let found = self.memory.u64(at);
        each(ReferencePlace::Field(0), found.unwrap_or(0));
        found.is_some()
    }

    /// A code object, whose other fields are numbers, some of them left as the memory was.
    fn code(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let fields = self.field_words(of, address, 24, CODE_NUMBERS, each)
            & self.field_words(of, address, CODE_NAMES.start, CODE_NAMES.end, each);
        let kept = CODE_KEPT[usize::from(self.layout.minor.saturating_sub(11)).min(CODE_KEPT.len() - 1)];
        let Some(kept) = self.memory.u64(self.layout.fields(address).wrapping_add(kept)) else { return false };
        let mut offset = FIRST_OF_CODE_KEPT;
        if self.layout.minor == 11 {
            each(ReferencePlace::Field(offset), kept);
        }
        let is_more = kept != 0 && self.layout.minor > 11;
        fields
            & self.memory.words(kept, if is_more { CODE_KEPT_FIELDS } else { 0 }, |word| {
                each(ReferencePlace::Field(offset), word);
                offset += 8;
            })
    }

    /// A type's own fields, what interpreters have for it, and the keys that its instances share.
    fn type_fields(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let is_heap_type = is_heap_type(self.memory, self.layout, address);
        // Metatypes of C code have fields behind those of all classes.
        let size = if is_heap_type { self.fixed(of).max(self.layout.heap_type) } else { self.layout.static_type };
        // The name and the documentation are characters, behind which may be what was left in memory; the tables of methods, members and
        // accessors are C's.
        let parts = [BASIC_SIZE..DOCUMENTATION, DOCUMENTATION + 8..METHODS, BASE..size];
        let is_whole = parts
            .into_iter()
            .fold(true, |is_whole, part| is_whole & self.field_words(of, address, part.start, part.end, each));
        if !is_heap_type {
            for state in self.static_types.of(self.memory, self.layout, address) {
                let offset = if state.is_main { 0 } else { OF_SUBINTERPRETERS };
                each(ReferencePlace::Field(offset + DICTIONARY), state.dictionary);
                each(ReferencePlace::Field(offset + SUBCLASSES), state.subclasses);
            }
        }
        let keys = word(self.layout.cached_keys).filter(|_| is_heap_type);
        let keys = keys.filter(|keys| *keys != 0).and_then(|at| KeyTable::read(self.memory, self.layout, at));
        is_whole & keys.is_none_or(|keys| keys.each(self.memory, |_, key, _| each(ReferencePlace::Key, key)))
    }
}
