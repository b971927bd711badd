//! Mappings that are not heap, by who made them.
//!
//! Invariant: as that of all sections.

use crate::fields::{FieldReader, FieldWriter};

/// The mappings of one class, stack, allocator and thread that are not heap, when those of the class were largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateMapped {
    /// A [`MapClass`](crate::MapClass) by number.
    pub class: u8,
    /// 0, or a row of `stacks` plus one.
    pub stack: u32,
    /// An [`Allocator`](crate::Allocator) by number.
    pub allocator: u8,
    /// A row of `threads`.
    pub thread: u32,
    /// Mapped bytes.
    pub bytes: u64,
    /// The number of mappings.
    pub count: u64,
}

pub(super) fn write_mapped(out: &mut FieldWriter, row: &AggregateMapped) {
    out.numbers(&[row.class.into(), row.stack.into(), row.allocator.into(), row.thread.into()]);
    out.numbers(&[row.bytes, row.count]);
}

pub(super) fn read_mapped(
    input: &mut FieldReader<'_>,
    stack: &impl Fn(u32) -> Option<u32>,
    thread: &impl Fn(u32) -> Option<u32>,
) -> Option<AggregateMapped> {
    Some(AggregateMapped {
        class: u8::try_from(input.number()?).ok()?,
        stack: stack(input.small()?)?,
        allocator: u8::try_from(input.number()?).ok()?,
        thread: thread(input.small()?)?,
        bytes: input.number()?,
        count: input.number()?,
    })
}
