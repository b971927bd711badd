//! Dictionaries, their tables of keys, and what keys are: strings and numbers.
//!
//! Invariant: the number of entries is bounded by what the table's own size allows.

use std::ops::Range;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;

/// The logarithm of the largest table.
const MOST_LOG: u32 = 32;
/// The longest text that is read.
const MOST_TEXT: u64 = 4096;

/// A table of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyTable {
    pub(crate) references: u64,
    /// Bytes that it has.
    pub(crate) bytes: u64,
    /// Entries in use, including those whose value is gone.
    pub(crate) entries: u64,
    /// Entries for which there is room.
    pub(crate) usable: u64,
    /// Entries that a dictionary with values of its own has room for.
    pub(crate) shared: u64,
    first: u64,
    /// Words of an entry; the key and the value are its last two.
    words: u64,
}

impl KeyTable {
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let word = |at: u64| memory.u64(address.checked_add(at)?);
        let references = word(0)?;
        if layout.minor <= 10 {
            let (size, free, entries) = (word(8)?, word(24)?, word(32)?);
            if !size.is_power_of_two() || size.ilog2() > MOST_LOG {
                return None;
            }
            let index = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            let usable = (size << 1) / 3;
            let first = address + 40 + size * index;
            let shared = usable;
            return (entries <= usable).then_some(Self {
                references,
                bytes: 40 + size * index + usable * 24,
                entries,
                usable,
                shared: shared.max(free.min(usable)),
                first,
                words: 3,
            });
        }
        let small = word(8)?.to_le_bytes();
        let (log, index_log, kind) = (u32::from(small[0]), u32::from(small[1]), small[2]);
        if log > MOST_LOG || index_log > MOST_LOG + 3 {
            return None;
        }
        let (free, entries) = (word(16)?, word(24)?);
        let usable = (2_u64 << log) / 3;
        let words = if kind == 0 { 3 } else { 2 };
        (entries <= usable).then_some(Self {
            references,
            bytes: 32 + (1 << index_log) + usable * words * 8,
            entries,
            usable,
            shared: free.checked_add(entries).filter(|sum| *sum <= usable).unwrap_or(usable),
            first: address + 32 + (1 << index_log),
            words,
        })
    }

    /// The address of an entry's key.
    fn key_at(&self, index: u64) -> u64 {
        self.first + (index * self.words + self.words - 2) * 8
    }

    /// Calls `each` with number, key and value of the entries; zeroes for what is not there.
    pub(crate) fn each(&self, memory: &ObjectMemory<'_>, each: impl FnMut(u64, u64, u64)) -> bool {
        self.each_of(memory, 0..self.entries, each)
    }

    /// The same for the entries with these numbers.
    fn each_of(&self, memory: &ObjectMemory<'_>, some: Range<u64>, mut each: impl FnMut(u64, u64, u64)) -> bool {
        let mut entry = [0; 3];
        let (mut place, mut number) = (0, some.start);
        let first = self.first.wrapping_add(some.start * self.words * 8);
        memory.words(first, (some.end - some.start) * self.words, |word| {
            entry[place] = word;
            place += 1;
            if place == self.words as usize {
                each(number, entry[place - 2], entry[place - 1]);
                (place, number) = (0, number + 1);
            }
        })
    }

    pub(crate) fn key(&self, memory: &ObjectMemory<'_>, index: u64) -> Option<u64> {
        if index < self.entries { memory.u64(self.key_at(index)) } else { None }
    }
}

/// A dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dictionary {
    pub(crate) used: u64,
    pub(crate) keys: KeyTable,
    /// Its values, if it shares its keys with others: their address, and 0 otherwise.
    pub(crate) values: u64,
}

impl Dictionary {
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let fields = layout.fields(address);
        let word = |at: u64| memory.u64(fields.checked_add(at)?);
        let keys = KeyTable::read(memory, layout, word(32)?)?;
        let values = word(40)?;
        let values = if values == 0 { 0 } else { values_start(layout, values) };
        Some(Self { used: word(16)?, keys, values })
    }

    /// Calls `each` with key and value of every entry.
    pub(crate) fn each(&self, memory: &ObjectMemory<'_>, each: impl FnMut(u64, u64)) -> bool {
        self.each_of(memory, 0..self.keys.entries, each)
    }

    /// The same for the entries with these numbers.
    pub(crate) fn each_of(&self, memory: &ObjectMemory<'_>, some: Range<u64>, mut each: impl FnMut(u64, u64)) -> bool {
        self.keys.each_of(memory, some, |number, key, value| {
            let value = match self.values {
                0 => value,
                values => memory.u64(values.wrapping_add(number * 8)).unwrap_or(0),
            };
            each(key, value);
        })
    }

    /// The value of a key that is this text.
    pub(crate) fn find(&self, memory: &ObjectMemory<'_>, layout: &ObjectLayout, wanted: &str) -> Option<u64> {
        let mut found = None;
        self.each(memory, |key, value| {
            if found.is_none() && value != 0 && text_of(memory, layout, key).as_deref() == Some(wanted) {
                found = Some(value);
            }
        });
        found
    }
}

/// Where values begin that are apart from their keys.
pub(crate) fn values_start(layout: &ObjectLayout, values: u64) -> u64 {
    values.wrapping_add(if layout.minor >= 13 { 8 } else { 0 })
}

/// Where a string has its characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextLayout {
    pub(crate) length: u64,
    /// Bytes of a character.
    pub(crate) width: u64,
    pub(crate) is_compact: bool,
    pub(crate) is_ascii: bool,
    /// Bytes before the characters of compact ones.
    pub(crate) header: u64,
    pub(crate) data: u64,
}

impl TextLayout {
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let address = layout.fields(address);
        let length = memory.u64(address.checked_add(16)?)?;
        let flags = layout.text_flags(memory.u32(address.checked_add(32)?)?);
        let (width, is_compact, is_ascii) = (u64::from(flags & 7), flags >> 3 & 1 == 1, flags >> 4 & 1 == 1);
        let (ascii, compact) = if layout.minor >= 12 { (40, 56) } else { (48, 72) };
        let header = if is_ascii { ascii } else { compact };
        let data = if is_compact { address + header } else { memory.u64(address.checked_add(compact)?)? };
        Some(Self { length, width, is_compact, is_ascii, header, data })
    }
}

/// A string's begin; `None`: it cannot be read.
pub(crate) fn text_of(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<String> {
    let text = TextLayout::read(memory, layout, address)?;
    if !matches!(text.width, 1 | 2 | 4) {
        return None;
    }
    let mut bytes = vec![0; (text.length.min(MOST_TEXT) * text.width) as usize];
    memory.read(text.data, &mut bytes)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
    let chars = bytes.chunks_exact(text.width as usize).map(number);
    Some(chars.map(|number| char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}

/// An integer of at most two digits of 30 bits.
pub(crate) fn small_integer(memory: &ObjectMemory<'_>, layout: &ObjectLayout, at: u64) -> Option<i64> {
    let at = layout.fields(at);
    let head = memory.u64(at.wrapping_add(16))?;
    let (digits, sign) = if layout.minor >= 12 {
        (head >> 3, if head & 3 == 2 { -1 } else { 1 })
    } else {
        (head.cast_signed().unsigned_abs(), head.cast_signed().signum())
    };
    let digit = |number: u64| memory.u32(at.wrapping_add(24 + number * 4)).map(i64::from);
    match digits {
        0 => Some(0),
        1 => Some(sign * digit(0)?),
        2 => Some(sign * (digit(0)? + (digit(1)? << 30))),
        _ => None,
    }
}
