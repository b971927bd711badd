//! The columns that the fields of records belong to, by number: see the table in `record_columns/fields.rs`.
//!
//! A number's further bytes are in the column behind that of its first byte.
//!
//! Invariant: a number of a released format version keeps its meaning.

/// First bytes of records.
pub(crate) const TAG: u8 = 0;
/// Further fields of one byte.
pub(crate) const BYTE: u8 = 1;
pub(crate) const TEXT: u8 = 2;
pub(crate) const TEXT_LENGTH: u8 = 3;
pub(crate) const SIZE: u8 = 5;
pub(crate) const ADDRESS: u8 = 7;
pub(crate) const AGE: u8 = 9;
pub(crate) const FREED: u8 = 11;
pub(crate) const CODE: u8 = 13;
pub(crate) const INSTRUCTION: u8 = 15;
pub(crate) const MOVE: u8 = 17;
pub(crate) const COUNT: u8 = 19;
pub(crate) const STACK_TOP: u8 = 21;
pub(crate) const TICKET: u8 = 23;
pub(crate) const OTHER: u8 = 25;
pub(crate) const LOCATED: [u8; 3] = [27, 29, 31];
/// Eight numbers: see [`time`].
pub(crate) const TIME: u8 = 33;
/// What is no record.
pub(crate) const REST: u8 = 49;

/// The column of the time of an event, which is a free or not, as the event before it was; how long it takes depends on
/// that, and on whether the stack changed between.
#[inline(always)]
pub(crate) fn time(free: bool, last_free: bool, stack_changed: bool) -> u8 {
    TIME + 2 * (u8::from(free) | u8::from(last_free) << 1 | u8::from(stack_changed) << 2)
}
