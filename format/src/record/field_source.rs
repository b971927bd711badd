//! Where the decoder takes the fields of records from: the bytes of records, or columns of them.
//!
//! Invariant: a source gives the fields in the order of the records' bytes, and `None` where they end too early. After a
//! `None` nothing more is taken from it.

use super::column;
use crate::fields::FieldReader;

/// The fields of records, one after the other. Their columns are numbers from [`mod@column`].
///
/// A clone is the same source at the same place. Only one of both may be read further.
pub trait FieldSource<'a>: Clone {
    /// The first byte of the next record; `None`: there is none.
    fn first(&self) -> Option<u8>;
    /// Passes the first byte, which is there.
    fn pass_first(&mut self);
    /// A further byte.
    fn byte(&mut self, column: u8) -> Option<u8>;
    /// A number.
    fn number(&mut self, column: u8) -> Option<u64>;
    /// A text with its length.
    fn text(&mut self) -> Option<&'a [u8]>;
    /// The time of an event, which is a free or not, of a timed segment.
    fn time(&mut self, free: bool) -> Option<u64>;
    /// The record is a change of the stack.
    fn note_stack_change(&mut self);
    /// How many bytes of records were passed.
    fn offset(&self) -> usize;
    /// Bytes of all records.
    fn length(&self) -> usize;
    /// Whether everything was passed.
    fn is_at_end(&self) -> bool;

    /// A number of 32 bits; a larger one is none.
    #[inline(always)]
    fn small(&mut self, column: u8) -> Option<u32> {
        u32::try_from(self.number(column)?).ok()
    }

    /// A number of no column of its own.
    #[inline(always)]
    fn other(&mut self) -> Option<u64> {
        self.number(column::OTHER)
    }

    /// The same of 32 bits.
    #[inline(always)]
    fn other_small(&mut self) -> Option<u32> {
        self.small(column::OTHER)
    }
}

/// The bytes of records.
#[derive(Clone, Debug)]
pub struct RecordBytes<'a> {
    fields: FieldReader<'a>,
    length: usize,
}

impl<'a> RecordBytes<'a> {
    /// From this position on.
    #[inline(always)]
    #[must_use]
    pub const fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { fields: FieldReader::at(bytes, at), length: bytes.len() }
    }
}

impl<'a> FieldSource<'a> for RecordBytes<'a> {
    #[inline(always)]
    fn first(&self) -> Option<u8> {
        self.fields.clone().byte()
    }

    #[inline(always)]
    fn pass_first(&mut self) {
        let _ = self.fields.byte();
    }

    #[inline(always)]
    fn byte(&mut self, _column: u8) -> Option<u8> {
        self.fields.byte()
    }

    #[inline(always)]
    fn number(&mut self, _column: u8) -> Option<u64> {
        self.fields.number()
    }

    #[inline(always)]
    fn text(&mut self) -> Option<&'a [u8]> {
        self.fields.bytes()
    }

    #[inline(always)]
    fn time(&mut self, _free: bool) -> Option<u64> {
        self.fields.number()
    }

    #[inline(always)]
    fn note_stack_change(&mut self) {}

    #[inline(always)]
    fn offset(&self) -> usize {
        self.fields.position()
    }

    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn is_at_end(&self) -> bool {
        self.offset() >= self.length
    }
}
