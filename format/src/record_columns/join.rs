//! From columns to records.
//!
//! Invariant: any bytes give exactly as many bytes of records as there is room for, or `None`.

use std::hint::cold_path;
use std::slice;

use super::fields::COLUMNS;
use super::head::ColumnHead;
use super::{FieldMover, RecordWalk};
use crate::record::column;
use crate::varint;

/// Bytes that are moved behind the first of a number, whatever its length.
const WORD: usize = 8;

/// Fills `records` from columns; `None` where they do not have exactly these bytes.
#[must_use]
pub fn join(columns: &[u8], records: &mut [u8]) -> Option<()> {
    let ColumnHead { timed, mut starts, ends } = ColumnHead::read(columns)?;
    let first = usize::from(column::TAG);
    let tags = columns.get(starts[first]..ends[first])?.iter();
    starts[first] = ends[first];
    let mut joining = Joining { columns, at: &mut starts, ends: &ends, records, filled: 0, tags };
    let mut walk = RecordWalk::new(timed);
    while !joining.is_at_end() {
        walk.record(&mut joining)?;
    }
    let rest = usize::from(column::REST);
    joining.copy(rest, ends[rest] - joining.at[rest])?;
    let is_full = joining.filled == joining.records.len();
    (is_full && starts == ends).then_some(())
}

/// The arrays are borrowed, so that the other fields can stay in registers.
struct Joining<'a> {
    columns: &'a [u8],
    at: &'a mut [usize; COLUMNS],
    ends: &'a [usize; COLUMNS],
    records: &'a mut [u8],
    filled: usize,
    /// The first bytes of the records to come.
    tags: slice::Iter<'a, u8>,
}

impl Joining<'_> {
    /// A number near the end of the columns or of the records.
    #[inline(always)]
    fn last_number(&mut self, column: usize) -> Option<()> {
        cold_path();
        let first = *self.columns.get(self.at[column])?;
        self.copy(column, 1)?;
        self.copy(column + 1, varint::length(first) - 1)
    }

    /// Moves this many bytes.
    #[inline(always)]
    fn copy(&mut self, column: usize, length: usize) -> Option<()> {
        let at = self.at[column];
        let end = at.checked_add(length).filter(|end| *end <= self.ends[column])?;
        let to = self.filled.checked_add(length)?;
        self.records.get_mut(self.filled..to)?.copy_from_slice(self.columns.get(at..end)?);
        (self.at[column], self.filled) = (end, to);
        Some(())
    }
}

impl FieldMover for Joining<'_> {
    #[inline(always)]
    fn is_at_end(&self) -> bool {
        self.tags.as_slice().is_empty()
    }

    #[inline(always)]
    fn byte(&mut self, column: u8) -> Option<u8> {
        let byte = if column == column::TAG {
            *self.tags.next()?
        } else {
            let at = &mut self.at[usize::from(column)];
            let byte = *self.columns.get(*at).filter(|_| *at < self.ends[usize::from(column)])?;
            *at += 1;
            byte
        };
        *self.records.get_mut(self.filled)? = byte;
        self.filled += 1;
        Some(byte)
    }

    /// Without a branch on the length, which nothing predicts.
    #[inline(always)]
    fn number(&mut self, column: u8) -> Option<()> {
        let column = usize::from(column);
        let (at, behind) = (self.at[column], self.at[column + 1]);
        let to = self.records.get_mut(self.filled..self.filled + 1 + WORD);
        let (Some(&first), Some(word), Some(to)) = (self.columns.get(at), self.columns.get(behind..behind + WORD), to)
        else {
            return self.last_number(column);
        };
        let length = varint::length(first);
        to[0] = first;
        to[1..].copy_from_slice(word);
        self.at[column] = at + 1;
        self.at[column + 1] = behind + length - 1;
        self.filled += length;
        (at < self.ends[column] && behind + length - 1 <= self.ends[column + 1]).then_some(())
    }

    #[inline(always)]
    fn text(&mut self) -> Option<()> {
        let begin = self.filled;
        self.number(column::TEXT_LENGTH)?;
        let (length, _) = varint::read(self.records.get(..self.filled)?, begin)?;
        self.copy(usize::from(column::TEXT), usize::try_from(length).ok()?)
    }
}
