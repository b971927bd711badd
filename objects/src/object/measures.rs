//! Sizes of types of the standard library that have a `__sizeof__` of their own besides the containers that [`crate::object::size`]
//! knows: what buffered files, numbers, picklers and others keep in memory that is no object.
//!
//! Invariant: what is added is what that `__sizeof__` adds, read from the fields that it reads; a type is known by the name
//! that its C code gave it.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::reference_count::ReferenceCount;

/// What a bytes object has besides its bytes.
pub(crate) const BYTES_HEAD: u64 = 33;
/// A code of a format, with what it means first.
const FORMAT_CODE: u64 = 32;
const MOST_CODES: u64 = 1 << 16;
/// What an element has for its attributes and children; where that has room for few.
const ELEMENT_EXTRA: u64 = 64;
const FEW_CHILDREN: u64 = 32;
/// Flags of a number: its digits are not in memory of their own.
const NO_OWN_DIGITS: u64 = 0xe0;
/// A pickler's table of what it has seen, and an entry of it.
const SEEN: u64 = 32;
const SEEN_ENTRY: u64 = 16;
/// The longest text of C that is measured.
const MOST_TEXT: u64 = 1 << 16;
/// What the dictionary of a ctypes class has besides that of a dictionary, before 3.13.
const CTYPES_FIELDS: u64 = 144;

/// How the objects of a type are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// A file with a buffer.
    Buffered,
    /// Bytes that are read and written like a file.
    BytesFile,
    /// A class of ctypes: from 3.13 on itself, before that the dictionary that describes it.
    CtypesClass,
    CtypesDictionary,
    Decimal,
    Element,
    /// Iterators of `itertools`.
    Combinations,
    Permutations,
    Product,
    Pickler,
    Unpickler,
    Queue,
    Format,
}

impl Measure {
    /// That of the type with this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "_io.BufferedReader" | "_io.BufferedWriter" | "_io.BufferedRandom" => Self::Buffered,
            "_io.BytesIO" => Self::BytesFile,
            "_ctypes.CType_Type" => Self::CtypesClass,
            "StgDict" => Self::CtypesDictionary,
            "decimal.Decimal" => Self::Decimal,
            "xml.etree.ElementTree.Element" => Self::Element,
            "itertools.combinations" | "itertools.combinations_with_replacement" => Self::Combinations,
            "itertools.permutations" => Self::Permutations,
            "itertools.product" => Self::Product,
            "_pickle.Pickler" => Self::Pickler,
            "_pickle.Unpickler" => Self::Unpickler,
            "_queue.SimpleQueue" => Self::Queue,
            "_struct.Struct" | "Struct" => Self::Format,
            _ => return None,
        })
    }
}

/// An object that is measured.
struct Measured<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'a ObjectLayout,
    address: u64,
    /// The fixed size of the type that has the `__sizeof__`, as builds with a global lock have it.
    fixed: u64,
}

/// What an object has besides its fields and items; `fixed` is the fixed size of the type whose code measures it.
pub(crate) fn bytes_beside(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    (measure, fixed): (Measure, u64),
    address: u64,
) -> Option<u64> {
    let measured = Measured { memory, layout, address, fixed: fixed.saturating_sub(layout.larger_head) };
    match measure {
        Measure::Buffered if measured.word(56)? == 0 => Some(0),
        Measure::Buffered => measured.block(measured.word(56)?, measured.word(120)?),
        Measure::BytesFile => measured.bytes_file(),
        Measure::CtypesClass => measured.ctypes_class(),
        Measure::CtypesDictionary => measured.ctypes(48, 168).map(|bytes| bytes + CTYPES_FIELDS),
        Measure::Decimal if measured.word(24)? & NO_OWN_DIGITS != 0 => Some(0),
        Measure::Decimal => measured.words(64, 56),
        Measure::Element => measured.element(),
        Measure::Combinations => measured.words(24, 40),
        Measure::Permutations => measured.words(32, 48)?.checked_add(measured.words_of_tuple()?),
        Measure::Product => measured.words_of_tuple(),
        Measure::Pickler => measured.pickler(),
        Measure::Unpickler => measured.unpickler(),
        // Its ring; before 3.15 it has no `__sizeof__`.
        Measure::Queue if layout.minor < 15 => Some(0),
        Measure::Queue => measured.words(32, 48),
        Measure::Format => measured.format(),
    }
}

/// The bytes object that an object of this type has for itself, and that is counted with it, if there is one.
pub(crate) fn bytes_within(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    (measure, fixed): (Measure, u64),
    address: u64,
) -> Option<u64> {
    let measured = Measured { memory, layout, address, fixed: fixed.saturating_sub(layout.larger_head) };
    match measure {
        Measure::BytesFile if measured.bytes_file()? > 0 => measured.word(16),
        Measure::Pickler => measured.pickler_output(),
        _ => None,
    }
    .filter(|within| *within != 0)
}

impl Measured<'_> {
    fn word(&self, offset: u64) -> Option<u64> {
        self.at(self.layout.fields(self.address), offset)
    }

    fn at(&self, address: u64, offset: u64) -> Option<u64> {
        self.memory.u64(address.checked_add(offset)?)
    }

    /// The bytes of a block, if it ends in memory that is there: their number may have been overwritten.
    fn block(&self, start: u64, bytes: u64) -> Option<u64> {
        self.memory.has_end_of(start, bytes).then_some(bytes)
    }

    /// Bytes of the block to which one field points, and of which another one says how many words it has.
    fn words(&self, start: u64, count: u64) -> Option<u64> {
        self.block(self.word(start)?, self.word(count)?.checked_mul(8)?)
    }

    /// Bytes of as many words as the tuple in the first field has items; the second field points to them.
    fn words_of_tuple(&self) -> Option<u64> {
        let count = self.at(self.layout.fields(self.word(16)?), 16)?;
        self.block(self.word(24)?, count.checked_mul(8)?)
    }

    /// Bytes of a text of C at this address, with its end.
    fn text(&self, address: u64) -> Option<u64> {
        if address == 0 { Some(0) } else { Some(self.memory.text(address, MOST_TEXT)?.len() as u64 + 1) }
    }

    /// Its bytes, unless others refer to them, too.
    fn bytes_file(&self) -> Option<u64> {
        let bytes = self.word(16)?;
        let is_marked = self.layout.is_free_threaded() && self.layout.minor >= 14 && self.word(64)? as u32 != 0;
        if bytes == 0
            || is_marked
            || ReferenceCount::read(self.memory, self.layout, bytes)? != ReferenceCount::Counted(1)
        {
            return Some(0);
        }
        self.bytes_object(bytes)
    }

    /// Bytes of the bytes object at this address.
    fn bytes_object(&self, address: u64) -> Option<u64> {
        let length = self.at(self.layout.fields(address), 16)?;
        self.block(address, self.layout.fields(BYTES_HEAD).checked_add(length)?)
    }

    /// What a class of ctypes has behind the fields of a class.
    fn ctypes_class(&self) -> Option<u64> {
        let info = self.layout.fields(self.layout.heap_type).checked_next_multiple_of(16)?;
        let info = info - self.layout.larger_head;
        // Whether it describes anything is its first field.
        match self.word(info)? as u32 {
            0 => Some(0),
            _ => self.ctypes(info + 8, info + if self.layout.minor >= 14 { 144 } else { 136 }),
        }
    }

    /// Format, shape and elements: `size` and `format` are offsets of fields.
    fn ctypes(&self, size: u64, format: u64) -> Option<u64> {
        let elements = match self.word(size + 40)? {
            0 => 0,
            elements => self.block(elements, self.word(size + 16)?.checked_add(1)?.checked_mul(8)?)?,
        };
        let dimensions = u64::from(self.word(format + 8)? as u32) * 8;
        self.text(self.word(format)?)?.checked_add(elements)?.checked_add(dimensions)
    }

    fn element(&self) -> Option<u64> {
        let extra = self.word(40)?;
        if extra == 0 {
            return Some(0);
        }
        let children = match self.at(extra, 24)? {
            few if few == extra.wrapping_add(FEW_CHILDREN) => 0,
            many => self.block(many, self.at(extra, 16)?.checked_mul(8)?)?,
        };
        children.checked_add(ELEMENT_EXTRA)
    }

    /// Its table of what it has seen, and its output.
    fn pickler(&self) -> Option<u64> {
        let seen = self.word(16)?;
        let seen = match seen {
            0 => 0,
            seen => self.block(self.at(seen, 24)?, self.at(seen, 16)?.checked_mul(SEEN_ENTRY)?)?.checked_add(SEEN)?,
        };
        let output = match self.pickler_output()? {
            0 => 0,
            output => self.bytes_object(output)?,
        };
        seen.checked_add(output)
    }

    fn pickler_output(&self) -> Option<u64> {
        /// Of a pickler that keeps what makes persistent numbers in one field, as 3.13.0 does.
        const SHORTER: u64 = 144;
        self.word(if self.fixed == SHORTER { 56 } else { 64 })
    }

    /// Its tables, and texts of C. Releases of one version differ in how many fields it has; the last ones are the same.
    fn unpickler(&self) -> Option<u64> {
        /// From so many bytes on it has a flag at its end, and the bounds of a frame before the texts.
        const WITH_FLAG: u64 = 280;
        const WITH_BOUNDS: u64 = 288;
        let encoding = self.fixed.checked_sub(if self.fixed >= WITH_FLAG { 56 } else { 48 })?;
        let line = encoding.checked_sub(if self.fixed >= WITH_BOUNDS { 88 } else { 72 })?;
        let table = |at: u64, size: u64| match self.word(at)? {
            0 => Some(0),
            _ => self.words(at, size),
        };
        let tables = table(24, 32)?.checked_add(table(encoding + 16, encoding + 32)?)?;
        let texts = [line, encoding, encoding + 8].map(|at| self.word(at).and_then(|at| self.text(at)));
        texts.into_iter().try_fold(tables, |all, text| all.checked_add(text?))
    }

    /// Codes up to the one that means nothing.
    fn format(&self) -> Option<u64> {
        let codes = self.word(32)?;
        if codes == 0 {
            return Some(0);
        }
        let mut before = 0..MOST_CODES;
        let count = before.find(|code| self.at(codes, code * FORMAT_CODE).is_none_or(|means| means == 0))?;
        Some((count + 1) * FORMAT_CODE)
    }
}
