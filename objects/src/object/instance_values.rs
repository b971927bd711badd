//! The values of the attributes that instances of classes have without a dictionary, from 3.11 on.
//!
//! Invariant: bytes that `sys.getsizeof` counts, of the instance or of its dictionary, are not among [`InstanceValues::bytes`].

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::{Dictionary, KeyTable, values_start};
use crate::object::types::ObjectType;

/// Where an instance has its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstanceValues {
    /// Its dictionary; 0: it has none.
    pub(crate) dictionary: u64,
    /// The first of its values; 0: they are in the dictionary only.
    pub(crate) values: u64,
}

impl InstanceValues {
    /// Those of an instance of a type that says that there may be some; `None`: they cannot be read.
    pub(crate) fn read(
        memory: &ObjectMemory<'_>,
        layout: &ObjectLayout,
        of: &ObjectType,
        address: u64,
    ) -> Option<Self> {
        let word = |before: u64| memory.u64(layout.fields(address).wrapping_sub(before));
        Some(match layout.minor {
            11 => Self { dictionary: word(24)?, values: word(32)? },
            12 => match word(24)? {
                tagged if tagged & 1 == 1 => Self { dictionary: 0, values: tagged.wrapping_add(1) },
                dictionary => Self { dictionary, values: 0 },
            },
            _ => {
                let start = address.wrapping_add(of.basic_size);
                // The fourth byte tells whether they are in use.
                let has_values = of.has_inline_values && memory.u8(start.wrapping_add(3)) == Some(1);
                Self { dictionary: word(24)?, values: if has_values { values_start(layout, start) } else { 0 } }
            }
        })
    }

    /// Bytes for the values of an instance, besides those that `sys.getsizeof` counts: up to 3.12 in a block of their own, then behind
    /// the instance. A byte for each value, rounded up to words, says in which order they were set.
    pub(crate) fn bytes(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: &ObjectType, address: u64) -> u64 {
        Self::read_bytes(memory, layout, of, address).unwrap_or(0)
    }

    fn read_bytes(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: &ObjectType, address: u64) -> Option<u64> {
        if !of.has_managed_dictionary || of.cached_keys == 0 {
            return None;
        }
        let Self { dictionary, values } = Self::read(memory, layout, of, address)?;
        if dictionary == 0 && values == 0 && layout.minor < 13 {
            return None;
        }
        let (slots, order) = if layout.minor >= 13 {
            // They stay there, used or not; before them is a word of numbers.
            let start = address.wrapping_add(of.basic_size);
            let slots = of.has_inline_values.then(|| memory.u8(start)).flatten()?;
            (u64::from(slots), u64::from(slots).next_multiple_of(8) + 8)
        } else if values != 0 {
            let slots = KeyTable::read(memory, layout, of.cached_keys)?.shared;
            (slots, u64::from(memory.u8(values.wrapping_sub(1))?))
        } else {
            // A dictionary that was made of them has them now, and counts them without the bytes before them.
            let taken =
                Dictionary::read(memory, layout, dictionary).map(|of| of.values).filter(|values| *values != 0)?;
            return memory.u8(taken.wrapping_sub(1)).map(u64::from);
        };
        // A dictionary that has the same values counts them.
        let own = if dictionary != 0 && values != 0 { 0 } else { slots * 8 };
        Some(own + order)
    }
}
