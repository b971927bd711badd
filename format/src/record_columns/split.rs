//! From records to columns.
//!
//! Invariant: each byte of the records is in one column, and no column is longer than they are.

use std::hint::cold_path;

use super::fields::COLUMNS;
use super::{FieldMover, MAX_HEAD, RecordWalk};
use crate::record::column;
use crate::varint;

/// Bytes that are moved behind the first of a number, whatever its length.
const WORD: usize = 8;
/// Bytes that have to be left when the columns have theirs.
const MARGIN: usize = 8 << 20;

/// Sorts the bytes of records by field; it keeps its memory from block to block.
#[derive(Debug)]
pub struct ColumnSplitter {
    columns: [Vec<u8>; COLUMNS],
    out: Vec<u8>,
    /// Of the columns in `out`.
    lengths: [usize; COLUMNS],
}

impl Default for ColumnSplitter {
    fn default() -> Self {
        Self { columns: [const { Vec::new() }; COLUMNS], out: Vec::new(), lengths: [0; COLUMNS] }
    }
}

impl ColumnSplitter {
    /// The columns of these records. `timed`: the first is in a timed segment; a wrong answer only costs bytes. `None`:
    /// there is no memory for them.
    pub fn split(&mut self, records: &[u8], timed: bool) -> Option<&[u8]> {
        self.make_room(records.len())?;
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
        write_columns(&mut self.out, timed, self.columns.iter().zip(lengths));
        self.lengths = lengths;
        Some(&self.out)
    }

    /// The same of columns that were made before.
    pub(super) fn take(&mut self, timed: bool, columns: &[Vec<u8>; COLUMNS]) -> Option<&[u8]> {
        let lengths = columns.each_ref().map(Vec::len);
        self.out.clear();
        self.out.try_reserve(lengths.iter().sum::<usize>() + MAX_HEAD).ok()?;
        write_columns(&mut self.out, timed, columns.iter().zip(lengths));
        self.lengths = lengths;
        Some(&self.out)
    }

    /// Begins to split these records, and so many more bytes. `None`: there is no memory for them.
    pub(super) fn begin<'a>(&'a mut self, records: &'a [u8], more: usize) -> Option<Splitting<'a>> {
        self.make_room(records.len() + more)?;
        self.lengths = [0; COLUMNS];
        Some(Splitting { records, at: 0, columns: &mut self.columns, lengths: &mut self.lengths })
    }

    /// What [`split`](Self::split) gave last, in parts: a column of at least so many bytes begins one, and has the small
    /// columns behind it.
    #[must_use]
    pub fn parts(&self, least: usize) -> Vec<&[u8]> {
        let mut at = self.out.len().saturating_sub(self.lengths.iter().sum());
        let mut starts = vec![0];
        for &length in &self.lengths {
            if length >= least {
                starts.push(at);
            }
            at += length;
        }
        let ends = starts.iter().skip(1).copied().chain([self.out.len()]);
        starts.iter().zip(ends).map(|(&start, end)| self.out.get(start..end).unwrap_or_default()).collect()
    }

    /// Room for these many bytes of records in each column. Fresh allocations, since the system gives their pages when they
    /// are touched; so it is asked beforehand whether it has them all.
    fn make_room(&mut self, records: usize) -> Option<()> {
        let is_short = |column: &&mut Vec<u8>| column.len() < records + WORD;
        let short = self.columns.iter_mut().filter(is_short).count();
        let room = records + records / 4 + WORD;
        let more = (room * short).checked_add(if short == 0 { 0 } else { MARGIN })?;
        Vec::<u8>::new().try_reserve_exact(more).ok()?;
        self.columns.iter_mut().filter(is_short).for_each(|column| *column = vec![0; room]);
        self.out.clear();
        self.out.try_reserve(records + MAX_HEAD).ok()
    }

    /// Sorts up to the first byte that begins no whole record: the columns' lengths, and where that is.
    fn sort(&mut self, records: &[u8], timed: bool) -> ([usize; COLUMNS], usize) {
        let mut lengths = [0; COLUMNS];
        let mut splitting = Splitting { records, at: 0, columns: &mut self.columns, lengths: &mut lengths };
        let (mut walk, mut whole) = (RecordWalk::new(timed), 0);
        while !splitting.is_at_end() && walk.record(&mut splitting).is_some() {
            whole = splitting.at;
        }
        (lengths, whole)
    }
}

/// Writes the head and the columns.
fn write_columns<'a>(out: &mut Vec<u8>, timed: bool, columns: impl Iterator<Item = (&'a Vec<u8>, usize)> + Clone) {
    out.clear();
    out.push(u8::from(timed));
    for (_, length) in columns.clone() {
        let at = out.len();
        out.resize(at + varint::MAX_LEN, 0);
        let end = varint::write(out, at, length as u64).unwrap_or(at);
        out.truncate(end);
    }
    columns.for_each(|(column, length)| out.extend_from_slice(column.get(..length).unwrap_or_default()));
}

/// The arrays are borrowed, so that the position can stay in a register.
#[derive(Debug)]
pub(super) struct Splitting<'a> {
    pub(super) records: &'a [u8],
    pub(super) at: usize,
    pub(super) columns: &'a mut [Vec<u8>; COLUMNS],
    pub(super) lengths: &'a mut [usize; COLUMNS],
}

impl Splitting<'_> {
    /// A number near the end of the records.
    #[inline(always)]
    fn last_number(&mut self, column: usize) -> Option<()> {
        cold_path();
        let length = varint::length(*self.records.get(self.at)?);
        self.copy(column, 1)?;
        self.copy(column + 1, length - 1)
    }

    /// Moves this many bytes.
    #[inline(always)]
    fn copy(&mut self, column: usize, length: usize) -> Option<()> {
        let bytes = self.records.get(self.at..self.at.checked_add(length)?)?;
        let at = self.lengths[column];
        self.columns[column].get_mut(at..at + length)?.copy_from_slice(bytes);
        self.lengths[column] = at + length;
        self.at += length;
        Some(())
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
        self.number_if(column, true)
    }

    /// Without a branch, neither on whether it is there nor on its length: nothing predicts them.
    #[inline(always)]
    fn number_if(&mut self, column: u8, is_there: bool) -> Option<()> {
        let column = usize::from(column);
        // Arrays, since the bytes of a slice are moved by a call.
        let word = self.records.get(self.at..).and_then(<[u8]>::first_chunk::<{ 1 + WORD }>);
        let Some(&[first, ref word @ ..]) = word else {
            return if is_there { self.last_number(column) } else { Some(()) };
        };
        let count = usize::from(is_there);
        let length = varint::length(first) & count.wrapping_neg();
        let (at, behind) = (self.lengths[column], self.lengths[column + 1]);
        *self.columns[column].get_mut(at)? = first;
        *self.columns[column + 1].get_mut(behind..)?.first_chunk_mut()? = *word;
        self.lengths[column] = at + count;
        self.lengths[column + 1] = behind + length - count;
        self.at += length;
        Some(())
    }

    #[inline(always)]
    fn text(&mut self) -> Option<()> {
        let (length, _) = varint::read(self.records, self.at)?;
        self.number(column::TEXT_LENGTH)?;
        self.copy(usize::from(column::TEXT), usize::try_from(length).ok()?)
    }
}
