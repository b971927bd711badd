//! Whether what a reference leads to, and begins as an object does, can be one.
//!
//! A structure of C may begin with two addresses of which the second is that of a type. In programs with low addresses, as those
//! whose executable has a fixed place, the first is a number that would do as a count of references. Invariant: nothing is taken
//! for an object whose count is an address of one, or whose items do not fit into the memory that is mapped there.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::object_head::{ObjectHead, may_be_object};
use crate::object::size::variable;
use crate::object::types::{ObjectKind, ObjectType, TypeTable};

/// The hash of an object without one of its own is its address, shifted.
const HASH_SHIFT: u32 = 4;
/// Objects of which so many bytes behind their fields are not looked at: what is that large is seldom.
const SMALL: u64 = 64 << 10;
/// Where an object of variable size has the number of its items.
const ITEM_COUNT: u64 = 16;

/// Whether an object of this type can be at an address to which something refers, with this head.
pub(crate) fn may_be_reached(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    types: &TypeTable<'_>,
    (of, address, head): (&ObjectType, u64, ObjectHead),
) -> bool {
    // An object that never ends has 0. Of the interpreter's own there may be as many references as an address says.
    let is_possible = || !may_be_object(head.count.into()) && head.count != 0 && head.count != u32::MAX;
    let has_count = of.is_only_static || is_possible() || !is_table(memory, layout, types, address);
    has_count && has_mapped_items(memory, layout, of, address)
}

/// Whether the word before what looks like the address of a type is no count, but the address of an object, as in the
/// items of a list, or the type's hash, as in the keys of a dictionary. In programs with low addresses such words are small.
pub(crate) fn is_table(memory: &ObjectMemory<'_>, layout: &ObjectLayout, types: &TypeTable<'_>, address: u64) -> bool {
    let (Some(first), Some(of)) = (memory.u64(address), layout.type_of(memory, address)) else { return true };
    let is_object = || ObjectHead::read(memory, layout, first).is_some_and(|head| types.number(head.of).is_some());
    !layout.is_free_threaded() && (first == of >> HASH_SHIFT || is_object())
}

/// Whether the items that an object says to have behind its fields are in memory.
fn has_mapped_items(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: &ObjectType, address: u64) -> bool {
    if of.item_size == 0 || !matches!(of.kind, ObjectKind::Fields | ObjectKind::Tuple) {
        return true;
    }
    let count = memory.u64(layout.fields(address).wrapping_add(ITEM_COUNT));
    let bytes = count.and_then(|count| variable(of, count));
    bytes.is_some_and(|bytes| bytes < SMALL || memory.is_mapped(address, bytes))
}
