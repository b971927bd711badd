//! What an object refers to: by the layout of the types that CPython has, and of all others every word of their fields and
//! items that is the address of an object.
//!
//! Weak references and lists of them are left out. Invariant: what is passed on is a candidate; whoever takes it checks
//! that an object is there.

use crate::dictionary::{Dictionary, KeyTable, values_start};
use crate::greenlets::{GreenletState, MOST_FRAMES};
use crate::layout::ObjectLayout;
use crate::measures::Measure;
use crate::memory::ObjectMemory;
use crate::numpy_array::{self, NumpyArray};
use crate::static_types::StaticTypes;
use crate::type_fields::{DICTIONARY, SUBCLASSES, is_heap_type};
use crate::types::{ObjectKind, ObjectType};

/// Slots of a frame before its locals, in words.
const FRAME_WORDS: u64 = 8;
/// And where it has the position of its stack.
const STACK_POSITION: u64 = 64;
/// The owner of a frame that is within a generator; frames of owners from a number on execute nothing of the program, from 3.12 on.
const OWNED_BY_GENERATOR: u8 = 1;
const FRAMES_OF_INTERPRETER: u8 = 3;
/// Offsets in frame objects before 3.11: where the stack begins and ends (from 3.10 on, how many it has).
const VALUE_STACK: u64 = 64;
const STACK_TOP: u64 = 72;
const STACK_DEPTH: u64 = 80;
/// In a code object from 3.11 on: the end of its first references, and where those behind its numbers are.
const CODE_NUMBERS: u64 = 48;
const CODE_NAMES: std::ops::Range<u64> = 96..144;
/// What a code object makes when it is asked for it: its bytes in 3.11, else the address of so many references, at an offset
/// by version. They are called by offsets behind those of all fields.
const CODE_KEPT: [u64; 3] = [152, 152, 160];
const CODE_KEPT_FIELDS: u64 = 4;
pub(crate) const FIRST_OF_CODE_KEPT: u64 = 1 << 20;
/// How the dictionaries are called that a static type has in other interpreters than the main one.
pub(crate) const OF_SUBINTERPRETERS: u64 = 1 << 20;
/// Blocks of a deque that are followed at most.
const MOST_BLOCKS: u64 = 1 << 24;
/// Where the values of [`ObjectKind::TeeData`] begin.
const TEE_VALUES: u64 = 40;
/// Items of a block.
pub(crate) const DEQUE_ITEMS: u64 = 64;
/// The most words of a fixed part.
const MOST_FIELDS: u64 = 1 << 16;

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
    /// A local variable, by number, of a frame at this address that is no object.
    FrameLocal(u64, u64),
    /// A field, by offset.
    Field(u64),
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
        let mut is_whole = self.attributes(of, address, each);
        is_whole &= match of.kind {
            ObjectKind::Array
            | ObjectKind::ByteArray
            | ObjectKind::Bytes
            | ObjectKind::Integer
            | ObjectKind::NoReferences
            | ObjectKind::Text => self.fields(of, address, self.own_fields(of), each),
            ObjectKind::Dictionary | ObjectKind::OrderedDictionary => {
                self.dictionary(address, each) & self.fields(of, address, 48, each)
            }
            ObjectKind::List => self.list(address, each) & self.fields(of, address, 40, each),
            ObjectKind::Set => self.set(address, each) & self.fields(of, address, 200, each),
            ObjectKind::NumpyArray => {
                let (from, to) = (numpy_array::REFERENCES.start, numpy_array::REFERENCES.end);
                self.field_words(of, address, from, to, each)
                    & self.fields(of, address, numpy_array::LATER_FIELDS, each)
                    & self.objects_of_array(address, each)
            }
            ObjectKind::Deque => self.deque(address, each) & self.fields(of, address, 72, each),
            ObjectKind::Frame if self.layout.has_light_frames() => {
                let frame = self.memory.u64(self.layout.fields(address).wrapping_add(24));
                // Behind these fields is room for the frame, which has something in it only once its function has ended.
                frame.is_some_and(|frame| self.frame(frame, each))
                    & self.field_words(of, address, 32, self.layout.frame_data, each)
            }
            ObjectKind::Generator if self.layout.has_light_frames() => {
                let frame = self.layout.generator_frame;
                self.field_words(of, address, 16, frame, each)
                    & self.frame(self.layout.fields(address).wrapping_add(frame), each)
            }
            ObjectKind::Frame => self.frame_object(of, address, each),
            ObjectKind::WeakReference => {
                // Not the object, nor the neighbours in its list of weak references, nor that list's lock.
                let own = if self.layout.is_free_threaded() { 72 } else { 64 };
                self.field_words(of, address, 24, 32, each) & self.fields(of, address, own, each)
            }
            // Behind the pointers to its neighbours, which it does not own, and a hash.
            ObjectKind::Cache => self.fields(of, address, 40, each),
            // The managed buffer and the object that has it: other words are numbers, some of which are never set.
            ObjectKind::MemoryView => {
                self.field_words(of, address, 24, 32, each) & self.field_words(of, address, 64, 72, each)
            }
            ObjectKind::TeeData => self.tee_data(of, address, each),
            ObjectKind::Greenlet => self.items(of, address, each) & self.greenlet(address, each),
            ObjectKind::Type => self.type_fields(of, address, each),
            ObjectKind::Code if self.layout.has_light_frames() => self.code(of, address, each),
            ObjectKind::Tuple | ObjectKind::Fields | ObjectKind::Code | ObjectKind::Generator => {
                self.items(of, address, each)
            }
        };
        is_whole
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

    fn field_words(
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
            if self.layout.fields(offset).cast_signed() != of.weak_list || of.weak_list == 0 {
                each(ReferencePlace::Field(offset), word);
            }
            offset += 8;
        })
    }

    /// Fields and items: all words of fixed and variable part.
    fn items(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let items = self.layout.tuple_items;
        let (first, base) = if of.kind == ObjectKind::Tuple { (items, items) } else { (16, self.fixed(of)) };
        let fixed = self.field_words(of, address, first, base, each);
        if of.item_size != 8 {
            return fixed;
        }
        let address = self.layout.fields(address);
        let Some(count) = self.memory.u64(address.wrapping_add(16)) else { return false };
        let count = count.cast_signed().unsigned_abs();
        let mut index = 0;
        fixed
            & self.memory.words(address.wrapping_add(base), count, |word| {
                each(ReferencePlace::Item(index), word);
                index += 1;
            })
    }

    /// The dictionary or the values that stand before or behind the object, where its type says so.
    fn attributes(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        if !of.has_managed_dictionary {
            return of.dictionary_offset >= 0 || self.dictionary_at_end(of, address, each);
        }
        let word = |before: u64| self.memory.u64(self.layout.fields(address).wrapping_sub(before));
        let (dictionary, values) = match self.layout.minor {
            11 => (word(24), word(32)),
            12 => match word(24) {
                Some(tagged) if tagged & 1 == 1 => (Some(0), Some(tagged + 1)),
                plain => (plain, Some(0)),
            },
            _ => {
                let start = address.wrapping_add(of.basic_size);
                // The fourth byte tells whether they are in use.
                let has_values = of.has_inline_values && self.memory.u8(start.wrapping_add(3)) == Some(1);
                (word(24), Some(if has_values { values_start(self.layout, start) } else { 0 }))
            }
        };
        let (Some(dictionary), Some(values)) = (dictionary, values) else { return false };
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

    /// The objects that a NumPy array owns.
    fn objects_of_array(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let Some(read) = NumpyArray::read(self.memory, self.layout, address) else { return false };
        let mut index = 0;
        read.objects.is_none_or(|(data, count)| {
            self.memory.words(data, count, |word| {
                each(ReferencePlace::Item(index), word);
                index += 1;
            })
        })
    }

    /// The iterator, what comes behind it, and the values so far: the words of later ones are never set.
    fn tee_data(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let fields = self.layout.fields(address);
        let Some(count) = self.memory.u32(fields.wrapping_add(24)) else { return false };
        let most = self.fixed(of).saturating_sub(TEE_VALUES) / 8;
        let mut index = 0;
        self.field_words(of, address, 16, 24, each)
            & self.field_words(of, address, 32, TEE_VALUES, each)
            & self.memory.words(fields.wrapping_add(TEE_VALUES), u64::from(count).min(most), |word| {
                each(ReferencePlace::Item(index), word);
                index += 1;
            })
    }

    fn dictionary(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let Some(read) = Dictionary::read(self.memory, self.layout, address) else { return false };
        read.each(self.memory, |key, value| {
            if value != 0 {
                each(ReferencePlace::Value(key), value);
                each(ReferencePlace::Key, key);
            }
        })
    }

    fn list(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(count), Some(items)) = (word(16), word(24)) else { return false };
        let mut index = 0;
        self.memory.words(items, count, |word| {
            each(ReferencePlace::Item(index), word);
            index += 1;
        })
    }

    fn set(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(mask), Some(table)) = (word(32), word(40)) else { return false };
        let Some(words) = mask.checked_add(1).and_then(|size| size.checked_mul(2)) else { return false };
        let mut index = 0_u64;
        self.memory.words(table, words, |word| {
            if index.is_multiple_of(2) {
                each(ReferencePlace::Member, word);
            }
            index += 1;
        })
    }

    fn deque(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(count), Some(mut block), Some(left)) = (word(16), word(24), word(40)) else { return false };
        let (mut done, mut place) = (0, left % DEQUE_ITEMS);
        for _ in 0..MOST_BLOCKS {
            let some = (DEQUE_ITEMS - place).min(count.saturating_sub(done));
            if some == 0 {
                return true;
            }
            let is_read = self.memory.words(block.wrapping_add(8 + place * 8), some, |word| {
                each(ReferencePlace::Item(done), word);
                done += 1;
            });
            let Some(next) = self.memory.u64(block.wrapping_add(8 + DEQUE_ITEMS * 8)) else { return false };
            if !is_read {
                return false;
            }
            (block, place) = (next, 0);
        }
        false
    }

    /// What a greenlet has besides its fields, and the frames of one that waits.
    fn greenlet(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        // One that is just being made or taken down has no state.
        let Some(state) = GreenletState::read(self.memory, self.layout, address) else { return true };
        let (words, mut offset) = state.words();
        let is_whole = self.memory.words(words.start, (words.end - words.start) / 8, |word| {
            each(ReferencePlace::Field(offset), word);
            offset += 8;
        });
        if !self.layout.has_light_frames() || !state.is_active(self.memory) {
            return is_whole;
        }
        let frame = state.frame(self.memory).filter(|frame| *frame != 0);
        let mut at = frame.and_then(|frame| self.memory.u64(self.layout.fields(frame).wrapping_add(24)));
        for _ in 0..MOST_FRAMES {
            let Some(frame) = at.filter(|frame| *frame != 0 && !self.is_frame_of_interpreter(*frame)) else { break };
            self.frame(frame, &mut |place, word| match place {
                ReferencePlace::Local(number) => each(ReferencePlace::FrameLocal(frame, number), word),
                _ => each(ReferencePlace::Field(offset), word),
            });
            at = self.memory.u64(frame.wrapping_add(self.layout.frame_previous));
        }
        is_whole
    }

    /// Whether a frame executes nothing of the program.
    fn is_frame_of_interpreter(&self, frame: u64) -> bool {
        let owner = || self.memory.u8(frame.wrapping_add(self.layout.frame_owner)).unwrap_or(FRAMES_OF_INTERPRETER);
        self.layout.minor >= 12 && owner() >= FRAMES_OF_INTERPRETER
    }

    /// A frame that is no object: what it executes, and its local variables.
    pub(crate) fn frame(&self, frame: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(frame.wrapping_add(at));
        let Some(code) = word(self.layout.frame_code).map(|code| self.layout.untagged(code)) else { return false };
        let owner = match self.layout.minor {
            ..12 => Some(0),
            12.. => self.memory.u8(frame.wrapping_add(self.layout.frame_owner)),
        };
        if code == 0 || owner.is_some_and(|owner| owner >= FRAMES_OF_INTERPRETER) {
            return true;
        }
        // Globals and builtins of the function, which the frame only borrows from it: through them, each variable of a module
        // would be called after a coroutine that was suspended in it.
        let borrowed = if self.layout.minor == 11 { 8..24 } else { 24..40 };
        let mut offset = 0;
        let head = self.memory.words(frame, FRAME_WORDS, |value| {
            if offset != self.layout.frame_previous && !borrowed.contains(&offset) {
                each(ReferencePlace::Field(offset), self.layout.untagged(value));
            }
            offset += 8;
        });
        let Some(slots) = self.slots_of_frame(frame, self.layout.fields(code), owner) else { return head };
        let mut index = 0;
        head & self.memory.words(frame.wrapping_add(self.layout.frame_locals), slots.min(1 << 16), |value| {
            each(ReferencePlace::Local(index), self.layout.untagged(value));
            index += 1;
        })
    }

    /// Slots in use of a frame that executes this code: its variables, and what is on its stack, unless the frame is just being
    /// executed, when nobody else knows how far its stack goes.
    fn slots_of_frame(&self, frame: u64, code: u64, owner: Option<u8>) -> Option<u64> {
        let number = |at: u64| self.memory.u32(code.wrapping_add(at)).map(u64::from);
        let (locals, stack) = (number(self.layout.local_slots)?, number(self.layout.stack_slots)?);
        let position = self.memory.u64(frame.wrapping_add(STACK_POSITION)).unwrap_or(0);
        let in_use = match self.layout.minor {
            // An address; that of an earlier moment while the frame is being executed, so that of no frame of a thread is taken.
            14.. if owner == Some(OWNED_BY_GENERATOR) => {
                position.saturating_sub(frame.wrapping_add(self.layout.frame_locals)) / 8
            }
            14.. => 0,
            // A number of 32 bits, -1 while the frame is being executed.
            _ => u64::try_from((position as u32).cast_signed()).unwrap_or(0),
        };
        let is_sound = in_use <= locals + stack;
        Some(if is_sound { in_use.max(locals) } else { locals })
    }

    /// A frame object before 3.11.
    fn frame_object(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let Some(slots) = self.slots_in_use(address) else { return false };
        let fields = self.field_words(of, address, 24, self.layout.frame_data, each);
        let mut index = 0;
        fields
            & self.memory.words(address.wrapping_add(self.layout.frame_data), slots.min(1 << 16), |word| {
                each(ReferencePlace::Local(index), word);
                index += 1;
            })
    }

    /// Slots of a frame object before 3.11 that are in use: its variables, and what is on its stack if it is suspended. While it
    /// runs, nobody else knows how far its stack goes, and behind that stand addresses of what was there before.
    fn slots_in_use(&self, address: u64) -> Option<u64> {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let first = address.checked_add(self.layout.frame_data)?;
        let (all, stack) = (word(16)?, word(VALUE_STACK)?);
        let end = if self.layout.minor >= 10 {
            let depth = self.memory.u32(address.checked_add(STACK_DEPTH)?)?.cast_signed().max(0);
            stack.checked_add(u64::from(depth.cast_unsigned()) * 8)?
        } else {
            stack.max(word(STACK_TOP)?)
        };
        Some((end.checked_sub(first)? / 8).min(all))
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
        let size = if is_heap_type { self.layout.heap_type } else { self.layout.static_type };
        let is_whole = self.field_words(of, address, 24, size, each);
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
