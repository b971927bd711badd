//! From records to columns.
//!
//! Invariant: each byte of the records is in one column, and no column is longer than they are.

use super::fields::{COLUMNS, column};
use super::{FieldMover, RecordWalk};
use crate::varint;

/// Bytes that are moved at a time, whatever the length of a field.
const WORD: usize = 8;

/// Sorts the bytes of records by field; it keeps its memory from block to block.
#[derive(Debug)]
pub struct ColumnSplitter {
    columns: [Vec<u8>; COLUMNS],
    out: Vec<u8>,
}

impl Default for ColumnSplitter {
    fn default() -> Self {
        Self { columns: [const { Vec::new() }; COLUMNS], out: Vec::new() }
    }
}

impl ColumnSplitter {
    /// The columns of these records. `timed`: the first is in a timed segment; a wrong answer only costs bytes.
    pub fn split(&mut self, records: &[u8], timed: bool) -> &[u8] {
        self.columns.iter_mut().for_each(|one| make_room(one, records.len()));
        let (mut lengths, whole) = self.sort(records, timed);
        if whole < records.len() {
            // The columns have the beginning of what is no record; so once more, without it.
            let (before, _) = records.split_at(whole);
            lengths = self.sort(before, timed).0;
            let rest = records.get(whole..).unwrap_or_default();
            let column = usize::from(column::REST);
            self.columns[column][..rest.len()].copy_from_slice(rest);
            lengths[column] = rest.len();
        }
        self.out.clear();
        self.out.push(u8::from(timed));
        for &length in &lengths {
            let at = self.out.len();
            self.out.resize(at + varint::MAX_LEN, 0);
            let end = varint::write(&mut self.out, at, length as u64).unwrap_or(at);
            self.out.truncate(end);
        }
        for (column, &length) in self.columns.iter().zip(&lengths) {
            self.out.extend_from_slice(column.get(..length).unwrap_or_default());
        }
        &self.out
    }

    /// Sorts up to the first byte that begins no whole record: the columns' lengths, and where that is.
    fn sort(&mut self, records: &[u8], timed: bool) -> ([usize; COLUMNS], usize) {
        let mut splitting = Splitting { records, at: 0, columns: &mut self.columns, lengths: [0; COLUMNS] };
        let (mut walk, mut whole) = (RecordWalk::new(timed), 0);
        while !splitting.is_at_end() && walk.record(&mut splitting).is_some() {
            whole = splitting.at;
        }
        (splitting.lengths, whole)
    }
}

/// Room for a column of these records. A fresh allocation, since the system gives its pages when they are touched.
fn make_room(column: &mut Vec<u8>, records: usize) {
    if column.len() < records + WORD {
        *column = vec![0; records + records / 4 + WORD];
    }
}

struct Splitting<'a> {
    records: &'a [u8],
    at: usize,
    columns: &'a mut [Vec<u8>; COLUMNS],
    lengths: [usize; COLUMNS],
}

impl Splitting<'_> {
    /// Moves this many bytes, 8 at most, to a column.
    #[inline(always)]
    fn take(&mut self, column: usize, length: usize) -> Option<()> {
        let end = self.at + length;
        let word = match self.records.get(self.at..self.at + WORD) {
            Some(word) => word.first_chunk::<WORD>().copied()?,
            None => self.last_word(end)?,
        };
        let at = self.lengths[column];
        self.columns[column].get_mut(at..at + WORD)?.copy_from_slice(&word);
        self.lengths[column] = at + length;
        self.at = end;
        Some(())
    }

    /// Where fewer than 8 bytes are left.
    #[cold]
    fn last_word(&self, end: usize) -> Option<[u8; WORD]> {
        let mut word = [0; WORD];
        let bytes = self.records.get(self.at..end)?;
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(word)
    }
}

impl FieldMover for Splitting<'_> {
    #[inline(always)]
    fn is_at_end(&self) -> bool {
        self.at >= self.records.len()
    }

    #[inline(always)]
    fn byte(&mut self, column: u8) -> Option<u8> {
        let byte = *self.records.get(self.at)?;
        let length = &mut self.lengths[usize::from(column)];
        *self.columns[usize::from(column)].get_mut(*length)? = byte;
        *length += 1;
        self.at += 1;
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
        let (length, _) = varint::read(self.records, self.at)?;
        self.number(column::TEXT_LENGTH)?;
        let text = self.records.get(self.at..self.at.checked_add(usize::try_from(length).ok()?)?)?;
        let column = usize::from(column::TEXT);
        let at = self.lengths[column];
        self.columns[column].get_mut(at..at + text.len())?.copy_from_slice(text);
        self.lengths[column] += text.len();
        self.at += text.len();
        Some(())
    }
}
