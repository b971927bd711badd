//! Arrays of NumPy: the block that they own, and what its items are.
//!
//! Offsets are those of NumPy's C interface, which versions 1 and 2 share for arrays; where a data type has the size of an item
//! differs. Invariant: an array whose numbers make no sense is none.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;

/// Offsets in an array.
const DATA: u64 = 16;
const DIMENSION_COUNT: u64 = 24;
const DIMENSIONS: u64 = 32;
const DATA_TYPE: u64 = 56;
const FLAGS: u64 = 64;
/// What it refers to: what owns its data, and its data type; the allocator of its data behind the weak references.
pub(crate) const REFERENCES: std::ops::Range<u64> = 48..64;
pub(crate) const LATER_FIELDS: u64 = 80;
/// In a data type: its number is in the upper half; the size of an item, in version 1 with the alignment in the upper half, and
/// flags of less than 32 bits in version 2, which has the size behind them.
const TYPE_NUMBER: u64 = 24;
const ITEM_SIZE_OR_FLAGS: u64 = 32;
const ITEM_SIZE: u64 = 40;
/// Version 1 has the flags before the number.
const FIRST_FLAGS: u32 = 24;
/// What a data type that is an array has the elements of, and the dictionary of a structure's fields: in versions 1 and 2.
const ELEMENT: [u64; 2] = [40, 88];
const FIELDS: [u64; 2] = [48, 96];
/// The numbers of the data types of objects and of structures.
const OBJECT: u64 = 17;
const STRUCTURE: u64 = 20;
/// The flag of data types with objects in an item.
const HAS_OBJECTS: u64 = 1;
/// The flag of an array that owns its data.
const OWNS_DATA: u32 = 4;
/// The most dimensions, and bytes for each: its length and the distance of its items.
const MOST_DIMENSIONS: u32 = 64;
const DIMENSION: u64 = 16;

/// An array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumpyArray {
    /// Bytes that it has besides its fields.
    pub(crate) extra: u64,
    /// The items that it owns: where they are, how many, and their data type.
    pub(crate) items: Option<(u64, u64, DataType)>,
}

/// What an item is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataType {
    /// From where the offsets in it count.
    fields: u64,
    number: u64,
    has_objects: bool,
    is_version_1: bool,
    /// Bytes of an item.
    pub(crate) size: u64,
}

impl DataType {
    /// Reads the data type at this address.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let fields = layout.fields(address);
        let word = |at: u64| memory.u64(fields.checked_add(at)?);
        let (number, sizes) = (word(TYPE_NUMBER)?, word(ITEM_SIZE_OR_FLAGS)?);
        let is_version_1 = sizes >> 32 != 0;
        let size = if is_version_1 { sizes & u64::from(u32::MAX) } else { word(ITEM_SIZE)? };
        let flags = if is_version_1 { number >> FIRST_FLAGS } else { sizes };
        Some(Self { fields, number: number >> 32, has_objects: flags & HAS_OBJECTS != 0, is_version_1, size })
    }

    /// Whether an item is an object.
    pub(crate) fn is_object(&self) -> bool {
        self.number == OBJECT && self.size == 8
    }

    /// Whether an item is a structure, or an array within one, that has objects in it.
    pub(crate) fn is_structure_with_objects(&self) -> bool {
        self.number == STRUCTURE && self.has_objects
    }

    /// The data type of its elements, if it is an array within a structure.
    pub(crate) fn element(&self, memory: &ObjectMemory<'_>, layout: &ObjectLayout) -> Option<Option<Self>> {
        match self.word(memory, ELEMENT)? {
            0 => Some(None),
            array => Self::read(memory, layout, memory.u64(array)?).map(Some),
        }
    }

    /// The dictionary of its fields.
    pub(crate) fn field_dictionary(&self, memory: &ObjectMemory<'_>) -> Option<u64> {
        self.word(memory, FIELDS)
    }

    /// A word whose offset depends on the version.
    fn word(&self, memory: &ObjectMemory<'_>, [first, second]: [u64; 2]) -> Option<u64> {
        memory.u64(self.fields.checked_add(if self.is_version_1 { first } else { second })?)
    }
}

/// The address of the block in which the array at this address has its items, if it owns it.
pub(crate) fn own_data(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<u64> {
    let word = |at: u64| memory.u64(layout.fields(address).checked_add(at)?);
    if word(FLAGS)? as u32 & OWNS_DATA == 0 { None } else { word(DATA) }
}

impl NumpyArray {
    /// Reads the array at this address.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let fields = layout.fields(address);
        let word = |at: u64| memory.u64(fields.checked_add(at)?);
        let dimensions = Some(word(DIMENSION_COUNT)? as u32).filter(|count| *count <= MOST_DIMENSIONS)?;
        let shape = u64::from(dimensions) * DIMENSION;
        if word(FLAGS)? as u32 & OWNS_DATA == 0 {
            return Some(Self { extra: shape, items: None });
        }
        let mut items = Some(1_u64);
        let is_whole = memory.words(word(DIMENSIONS)?, dimensions.into(), |length| {
            items = items.and_then(|items| items.checked_mul(length));
        });
        let items = items.filter(|_| is_whole)?;
        let data_type = DataType::read(memory, layout, word(DATA_TYPE)?)?;
        let extra = items.checked_mul(data_type.size)?.checked_add(shape)?;
        Some(Self { extra, items: Some((word(DATA)?, items, data_type)) })
    }
}
