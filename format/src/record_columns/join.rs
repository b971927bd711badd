//! From columns to records.
//!
//! Invariant: any bytes give exactly as many bytes of records as there is room for, or `None`.

use super::fields::{COLUMNS, column};
use super::{FieldMover, RecordWalk};
use crate::varint;

/// Bytes that are moved at a time, whatever the length of a field.
const WORD: usize = 8;

/// Fills `records` from columns; `None` where they do not have exactly these bytes.
#[must_use]
pub fn join(columns: &[u8], records: &mut [u8]) -> Option<()> {
    let (&timed, _) = columns.split_first()?;
    let timed = match timed {
        0 => false,
        1 => true,
        _ => return None,
    };
    let (mut lengths, mut at) = ([0; COLUMNS], 1);
    for length in &mut lengths {
        let (number, next) = varint::read(columns, at)?;
        (*length, at) = (usize::try_from(number).ok()?, next);
    }
    let (mut starts, mut ends) = ([0; COLUMNS], [0; COLUMNS]);
    for ((length, start), end) in lengths.into_iter().zip(&mut starts).zip(&mut ends) {
        *start = at;
        at = at.checked_add(length).filter(|end| *end <= columns.len())?;
        *end = at;
    }
    if at != columns.len() {
        return None;
    }
    let mut joining = Joining { columns, at: starts, ends, records, filled: 0 };
    let mut walk = RecordWalk::new(timed);
    while !joining.is_at_end() {
        walk.record(&mut joining)?;
    }
    let rest = usize::from(column::REST);
    joining.copy(rest, ends[rest] - starts[rest])?;
    (joining.filled == joining.records.len() && joining.at == ends).then_some(())
}

struct Joining<'a> {
    columns: &'a [u8],
    at: [usize; COLUMNS],
    ends: [usize; COLUMNS],
    records: &'a mut [u8],
    filled: usize,
}

impl Joining<'_> {
    /// Moves this many bytes, 8 at most.
    #[inline(always)]
    fn take(&mut self, column: usize, length: usize) -> Option<()> {
        let at = self.at[column];
        let (from, to) = (self.columns.get(at..at + WORD), self.records.get_mut(self.filled..self.filled + WORD));
        let (Some(from), Some(to)) = (from, to) else { return self.copy(column, length) };
        if at + length > self.ends[column] {
            return None;
        }
        to.copy_from_slice(from);
        self.at[column] = at + length;
        self.filled += length;
        Some(())
    }

    /// Moves this many bytes.
    #[cold]
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
        let first = usize::from(column::TAG);
        self.at[first] >= self.ends[first]
    }

    #[inline(always)]
    fn byte(&mut self, column: u8) -> Option<u8> {
        let column = usize::from(column);
        let at = self.at[column];
        if at >= self.ends[column] {
            return None;
        }
        let byte = *self.columns.get(at)?;
        *self.records.get_mut(self.filled)? = byte;
        self.at[column] = at + 1;
        self.filled += 1;
        Some(byte)
    }

    #[inline(always)]
    fn number(&mut self, column: u8) -> Option<()> {
        let first = self.byte(column)?;
        match varint::length(first) - 1 {
            0 => Some(()),
            further => self.take(usize::from(column) + 1, further),
        }
    }

    fn text(&mut self) -> Option<()> {
        let begin = self.filled;
        self.number(column::TEXT_LENGTH)?;
        let (length, _) = varint::read(self.records.get(..self.filled)?, begin)?;
        self.copy(usize::from(column::TEXT), usize::try_from(length).ok()?)
    }
}
