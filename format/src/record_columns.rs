//! The columns of a block: its records with their bytes sorted by field, which compresses better and in less time.
//!
//! Sizes resemble sizes and times resemble times more than either resembles the byte before it. So a block may hold, in
//! place of its records, a column for each of their fields:
//!
//! ```text
//! 1        1: the first record is in a timed segment; else 0
//! numbers  the length of each of the COLUMNS columns, as prefix varints
//! bytes    the columns one after the other: all bytes of the records, each once
//! ```
//!
//! A number has two columns, one for its first byte and one for the bytes behind it, since the latter are few or noise.
//! [`fields`] says which fields follow a record's first byte. What is no whole record, and all behind it, is a column of its
//! own.
//!
//! [`RecordColumns`] gives the fields to the decoder without joining them.
//!
//! Invariant: `join(split(bytes)) = bytes`, whatever the bytes are; and `join` takes any bytes, and writes into the room
//! that it is given.

mod fields;
mod head;
mod join;
mod pieces;
mod read;
mod skip;
mod split;
mod stacks;

pub use join::join;
pub use pieces::{PieceSplitter, SplitPieces};
pub use read::{ColumnPlace, ColumnReader, RecordColumns};
pub use skip::{repeatable_blocks, skip_blocks};
pub use split::ColumnSplitter;
pub use stacks::{StackStop, pass_stacks};

use crate::Allocator;
use crate::record::{column, extra, tag};
use crate::varint;
use fields::{COLUMNS, EVENT_FREE, FieldKind, NO_EVENT, STACK_CHANGE, extra_fields, row};

/// The most bytes that columns take beside those of their records.
pub const MAX_HEAD: usize = 1 + COLUMNS * varint::MAX_LEN;

/// Whether this segment, given from its start, has times; the answer is the second argument of [`ColumnSplitter::split`].
#[must_use]
pub fn is_timed(segment: &[u8]) -> bool {
    matches!(segment, [tag::EXTRA, extra::BEGIN_TIMED | extra::BEGIN_3_TIMED, ..])
}

/// Moves the fields of records from where they are to where they belong: [`split()`](ColumnSplitter::split) or [`join()`].
/// A method returns `None` where the bytes end too early.
trait FieldMover {
    /// Whether all records are moved.
    fn is_at_end(&self) -> bool;
    /// A byte, of this column.
    fn byte(&mut self, column: u8) -> Option<u8>;
    /// A number, of this column and the one behind it.
    fn number(&mut self, column: u8) -> Option<()>;
    /// A number that is there or not, which nothing predicts.
    #[inline(always)]
    fn number_if(&mut self, column: u8, is_there: bool) -> Option<()> {
        if is_there { self.number(column) } else { Some(()) }
    }
    /// A text with its length.
    fn text(&mut self) -> Option<()>;
}

/// The state that decides which fields a record has, and which column its time belongs to.
#[derive(Clone, Copy, Debug)]
struct RecordWalk {
    timed: bool,
    /// See [`column::time`].
    last_free: bool,
    stack_changed: bool,
}

impl RecordWalk {
    const fn new(timed: bool) -> Self {
        Self { timed, last_free: false, stack_changed: false }
    }

    /// Moves one record; `None`: it is none, or not whole.
    ///
    /// Nearly all records are allocations, frees and changes of the stack. They go by their bits, which takes a third of the
    /// time that the table takes; a test holds both together.
    #[inline(always)]
    fn record(&mut self, mover: &mut impl FieldMover) -> Option<()> {
        let first = mover.byte(column::TAG)?;
        match first {
            tag::FREE_YOUNG.. => self.time(mover, true),
            tag::ALLOC.. if first & 15 != Allocator::SHORT => {
                mover.number_if(column::SIZE, first & tag::ALLOC_SIZE_EXPECTED == 0)?;
                mover.number_if(column::ADDRESS, first & tag::ALLOC_ADDRESS_EXPECTED == 0)?;
                self.time(mover, false)
            }
            tag::POP..tag::ALLOC | tag::PUSH_EXPECTED => self.note_stack_change(),
            tag::REPLACE_TOP_AFTER..tag::POP => {
                mover.byte(column::STACK_TOP)?;
                mover.byte(column::STACK_TOP + 1)?;
                self.note_stack_change()
            }
            tag::FREE => {
                mover.number(column::FREED)?;
                self.time(mover, true)
            }
            tag::MOVE_FAR => {
                mover.number(column::MOVE)?;
                self.note_stack_change()
            }
            tag::PUSH => {
                mover.number(column::CODE)?;
                mover.number(column::INSTRUCTION)?;
                self.note_stack_change()
            }
            tag::PUSH_EXPECTED_CODE => {
                mover.number(column::INSTRUCTION)?;
                self.note_stack_change()
            }
            tag::REPLACE_TOP => {
                mover.number(column::STACK_TOP)?;
                mover.number(column::COUNT)?;
                self.note_stack_change()
            }
            _ => self.by_table(mover, first),
        }
    }

    /// What the record of a change ends with.
    #[inline(always)]
    #[expect(clippy::unnecessary_wraps, reason = "as `time`")]
    fn note_stack_change(&mut self) -> Option<()> {
        self.stack_changed = true;
        Some(())
    }

    /// The fields behind a first byte, whichever it is.
    #[inline(always)]
    fn by_table(&mut self, mover: &mut impl FieldMover, first: u8) -> Option<()> {
        let row = row(first);
        for field in row.fields {
            match field {
                FieldKind::End => break,
                FieldKind::Number(column) => mover.number(column)?,
                FieldKind::Byte => drop(mover.byte(column::BYTE)?),
                FieldKind::TwoBytes(column) => {
                    mover.byte(column)?;
                    mover.byte(column + 1)?;
                }
                FieldKind::Extra => return self.extra(mover),
                FieldKind::Text | FieldKind::Time | FieldKind::None => return None,
            }
        }
        match row.class {
            NO_EVENT => {}
            STACK_CHANGE => self.stack_changed = true,
            class => return self.time(mover, class == EVENT_FREE),
        }
        Some(())
    }

    #[inline(always)]
    fn extra(&mut self, mover: &mut impl FieldMover) -> Option<()> {
        let which = mover.byte(column::BYTE)?;
        self.timed = fields::timed_from(which).unwrap_or(self.timed);
        for &field in extra_fields(which) {
            match field {
                FieldKind::Number(column) => mover.number(column)?,
                FieldKind::Byte => drop(mover.byte(column::BYTE)?),
                FieldKind::Text => mover.text()?,
                FieldKind::Time => self.time(mover, false)?,
                FieldKind::End | FieldKind::Extra | FieldKind::TwoBytes(_) | FieldKind::None => return None,
            }
        }
        Some(())
    }

    #[inline(always)]
    fn time(&mut self, mover: &mut impl FieldMover, free: bool) -> Option<()> {
        if !self.timed {
            return Some(());
        }
        let column = column::time(free, self.last_free, self.stack_changed);
        (self.last_free, self.stack_changed) = (free, false);
        mover.number(column)
    }
}

#[cfg(test)]
mod decode_tests;
#[cfg(test)]
mod tests;
