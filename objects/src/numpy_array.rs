//! Arrays of NumPy: the block that they own, and the objects in it.
//!
//! Offsets are those of NumPy's C interface, which versions 1 and 2 share for arrays; where a data type has the size of an item
//! differs. Invariant: an array whose numbers make no sense is none.

use crate::layout::ObjectLayout;
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
/// The number of the data type of objects.
const OBJECT: u64 = 17;
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
    /// Where objects are that it refers to, and how many.
    pub(crate) objects: Option<(u64, u64)>,
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
            return Some(Self { extra: shape, objects: None });
        }
        let mut items = Some(1_u64);
        let is_whole = memory.words(word(DIMENSIONS)?, dimensions.into(), |length| {
            items = items.and_then(|items| items.checked_mul(length));
        });
        let items = items.filter(|_| is_whole)?;
        let data_type = layout.fields(word(DATA_TYPE)?);
        let of_type = |at: u64| memory.u64(data_type.checked_add(at)?);
        let size = match of_type(ITEM_SIZE_OR_FLAGS)? {
            sizes if sizes >> 32 != 0 => sizes & u64::from(u32::MAX),
            _ => of_type(ITEM_SIZE)?,
        };
        let has_objects = of_type(TYPE_NUMBER)? >> 32 == OBJECT && size == 8;
        let objects = if has_objects { Some((word(DATA)?, items)) } else { None };
        Some(Self { extra: items.checked_mul(size)?.checked_add(shape)?, objects })
    }
}
