//! Whether what a block begins with can be an object of the type whose address stands in its place.
//!
//! Blocks without an object may look like the begin of one: attribute values apart from their instance, of which an early one is
//! a type, or a structure of C that begins with a number and a type. Invariant: what is taken for an object is no larger than
//! its block, and of types whose objects have one block and tell their size, it has the block that this size needs.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::leaf_contents::{bytes_count, integer_digits, whole_text};
use crate::object::object_head::may_be_object;
use crate::object::size::variable;
use crate::object::types::{ObjectKind, ObjectType};

/// What a block may have besides what a smaller object leaves of it: what its size is rounded up by, and guards.
const MOST_ROUNDED: u64 = 64;
/// Bytes of the smallest text.
const LEAST_TEXT: u64 = 40;
/// The first version whose attribute values begin with their numbers, and how many values they are at most.
const FIRST_WITH_COUNTED_VALUES: u8 = 13;
const MOST_VALUES: u8 = 30;
const VALUES: u64 = 8;
/// In an object of a free-threaded build: flags, of which the second byte has none, and a lock with two states.
const FLAGS: u64 = 8;
const MOST_LOCKED: u8 = 3;

/// Whether there can be an object of this type, with so many bytes from its address to the end of its block.
pub(crate) fn may_be_in_block(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    of: &ObjectType,
    address: u64,
    room: u64,
) -> bool {
    let is_large_enough = least_bytes(layout, of) <= room;
    is_large_enough && !of.is_only_static && has_head(memory, layout, address, room) && {
        let bytes = bytes_in_block(memory, layout, of, address);
        bytes.is_some_and(|bytes| bytes <= room && (!tells_block(of) || room <= most_room(layout, bytes)))
    }
}

/// The largest block in which an allocator leaves an object of so many bytes that has shrunk: pymalloc moves it once a quarter of the
/// block is free, mimalloc, which free-threaded builds have, once half of it is.
fn most_room(layout: &ObjectLayout, bytes: u64) -> u64 {
    let left = if layout.is_free_threaded() { bytes } else { bytes / 3 };
    bytes.saturating_add(left).saturating_add(MOST_ROUNDED)
}

/// Bytes of the smallest object of a type.
fn least_bytes(layout: &ObjectLayout, of: &ObjectType) -> u64 {
    match of.kind {
        // Texts of one byte for each character have no more than that.
        ObjectKind::Text => of.basic_size.min(layout.fields(LEAST_TEXT)),
        _ => of.basic_size,
    }
}

/// Whether the words before the type are those of an object, and not the begin of attribute values.
fn has_head(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64, room: u64) -> bool {
    // Where values are, there is an address.
    let [_, flags, lock, ..] = memory.u32(address.wrapping_add(FLAGS)).unwrap_or(u32::MAX).to_le_bytes();
    let is_head = !layout.is_free_threaded() || flags == 0 && lock <= MOST_LOCKED;
    is_head && (layout.minor < FIRST_WITH_COUNTED_VALUES || !are_values(memory, address, room))
}

/// Whether attribute values are there that are apart from their instance: for how many there is room, how many there are, the
/// values, and behind these their order. As a count of references, the numbers may be small.
fn are_values(memory: &ObjectMemory<'_>, address: u64, room: u64) -> bool {
    let [capacity, count, is_within, ..] = memory.u64(address).unwrap_or(0).to_le_bytes();
    let order = VALUES + u64::from(capacity) * 8;
    let is_possible = (1..=MOST_VALUES).contains(&capacity) && (1..=capacity).contains(&count) && is_within == 0;
    if !is_possible || order + u64::from(capacity) > room {
        return false;
    }
    let is_value = |number: u64| {
        let value = memory.u64(address.wrapping_add(VALUES + number * 8));
        value.is_some_and(|value| value == 0 || may_be_object(value))
    };
    let place = |number: u64| memory.u8(address.wrapping_add(order + number)).is_some_and(|place| place < capacity);
    // Those for which there is room only are not set.
    (0..count.into()).all(|number| place(number) && is_value(number))
}

/// Whether the object's block is as large as it is: it was made in one piece, with room for what it has.
fn tells_block(of: &ObjectType) -> bool {
    let has_one_block = match of.kind {
        ObjectKind::Bytes | ObjectKind::Integer | ObjectKind::NoReferences | ObjectKind::Text => true,
        // Those of other modules may have more than their type says.
        ObjectKind::Fields => of.name.starts_with("builtins."),
        _ => false,
    };
    has_one_block && !of.is_heap_type
}

/// What an object has in its block; `None`: it is none.
fn bytes_in_block(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: &ObjectType, address: u64) -> Option<u64> {
    let items = || memory.u64(layout.fields(address).wrapping_add(16));
    match of.kind {
        ObjectKind::Integer => {
            let digits = integer_digits(memory, layout, address)?.checked_mul(4)?;
            Some(layout.fields(24).checked_add(digits)?.max(least_bytes(layout, of)))
        }
        ObjectKind::Bytes => variable(of, bytes_count(memory, layout, address)?),
        ObjectKind::Text => match whole_text(memory, layout, address)? {
            read if read.is_compact => {
                let characters = read.length.checked_add(1)?.checked_mul(read.width)?;
                read.data.checked_add(characters)?.checked_sub(address)
            }
            // Its characters are in a block of their own, and before 3.12 perhaps not known yet.
            _ => Some(of.basic_size),
        },
        ObjectKind::Tuple => variable(of, items()?),
        ObjectKind::Fields if of.item_size > 0 => variable(of, items()?),
        _ => Some(of.basic_size),
    }
}

#[cfg(test)]
mod tests {
    use super::most_room;
    use crate::interpreter::layout::ObjectLayout;

    #[test]
    fn a_block_of_mimalloc_may_be_twice_its_object() {
        let most = |is_free_threaded| most_room(ObjectLayout::of(13, is_free_threaded).unwrap(), 3000);
        assert_eq!((most(false), most(true)), (4064, 6064));
    }
}
