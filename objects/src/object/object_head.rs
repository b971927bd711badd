//! What an object begins with: its count of references, and its type.
//!
//! Invariant: where the count cannot be that of an object, there is none.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::memory::piece_tree::END;
use crate::object::reference_count::{MOST_REFERENCES, ReferenceCount};

/// Bytes of the collector's header, before each of its objects.
pub(crate) const HEADER: u64 = 16;

/// The lowest address of an object: no program has memory below it. And what each is a multiple of.
const LOWEST: u64 = 4096;
const ALIGNMENT: u64 = 8;

/// What an object begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObjectHead {
    /// The address of its type, if it is an object.
    pub(crate) of: u64,
    /// Its references, as they are stored.
    pub(crate) count: u32,
    /// Its own bytes, where they were measured with it; otherwise 0.
    pub(crate) own_bytes: u64,
}

impl ObjectHead {
    /// Reads it; `None`: there is no object.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        if !may_be_object(address) {
            return None;
        }
        let (count, of) = if layout.is_free_threaded() {
            (ReferenceCount::read(memory, layout, address)?, layout.type_of(memory, address)?)
        } else {
            let (count, of) = memory.two_words(address)?;
            (ReferenceCount::of_word(count, layout.minor), of)
        };
        let is_count = !matches!(count, ReferenceCount::Counted(0 | MOST_REFERENCES..));
        is_count.then_some(Self { of, count: count.stored(), own_bytes: 0 })
    }
}

/// Whether an object can be at an address.
pub(crate) fn may_be_object(address: u64) -> bool {
    address.is_multiple_of(ALIGNMENT) && (LOWEST..END).contains(&address)
}
