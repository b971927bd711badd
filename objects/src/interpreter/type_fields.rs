//! Where a type has what, in all versions.
//!
//! Offsets are those of builds with a global lock, see [`ObjectLayout::fields`]; what versions have at different places is in
//! their layouts. Invariant: none of these offsets differs by version.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;

pub(crate) const NAME: u64 = 24;
pub(crate) const BASIC_SIZE: u64 = 32;
pub(crate) const ITEM_SIZE: u64 = 40;
pub(crate) const FLAGS: u64 = 168;
/// The documentation, as characters.
pub(crate) const DOCUMENTATION: u64 = 176;
pub(crate) const WEAK_LIST: u64 = 208;
/// The function that gives an object's iterator; 0: it has none.
pub(crate) const ITERATOR: u64 = 216;
/// The function that gives an iterator's next value; 0: it is none. Classes have one that refuses.
pub(crate) const NEXT: u64 = 224;
/// The table of methods, which C code has.
pub(crate) const METHODS: u64 = 232;
/// The table of members, which names fields.
pub(crate) const MEMBERS: u64 = 240;
pub(crate) const BASE: u64 = 256;
pub(crate) const DICTIONARY: u64 = 264;
pub(crate) const DICTIONARY_OFFSET: u64 = 288;
pub(crate) const BASES: u64 = 336;
pub(crate) const RESOLUTION_ORDER: u64 = 344;
/// The dictionary of its subclasses; of a static type from 3.12 on its number, from 1.
pub(crate) const SUBCLASSES: u64 = 360;
/// The flag of types that are objects of the heap.
pub(crate) const HEAP_TYPE: u64 = 1 << 9;

/// Whether the type at this address is an object of the heap.
pub(crate) fn is_heap_type(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: u64) -> bool {
    memory.u64(layout.fields(of).wrapping_add(FLAGS)).is_some_and(|flags| flags & HEAP_TYPE != 0)
}
