//! From columns to the fields of records, for the decoder: the same fields as of the joined bytes, without joining them.
//!
//! Invariant: no column is read beyond its end. If [`join`](super::join()) gives the records of these columns, a reader has the
//! same fields; else it ends with `None` or before its end.

use std::cell::Cell;
use std::fmt;
use std::hint::cold_path;

use super::fields::{self, COLUMNS};
use super::head::ColumnHead;
use super::join;
use crate::record::{FieldSource, column, tag};
use crate::varint;

/// Bytes that are read behind the first of a number, whatever its length.
const WORD: usize = 8;

/// The columns of a piece of records, and how far they were read.
pub struct RecordColumns {
    /// [`WORD`] zeros behind them.
    bytes: Vec<u8>,
    timed: bool,
    /// The next byte of each column.
    at: [Cell<usize>; COLUMNS],
    ends: [usize; COLUMNS],
    /// Bytes of their records.
    length: usize,
    place: ColumnPlace,
}

/// A place between two records, but for what the columns themselves have of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColumnPlace {
    records: usize,
    offset: usize,
    context: TimeContext,
}

/// What decides about the column of a time.
#[derive(Clone, Copy, Debug, Default)]
struct TimeContext {
    last_free: bool,
    stack_changed: bool,
}

impl RecordColumns {
    /// These columns of so many bytes of records. `None`: they are not that, or not all of them are of whole records;
    /// [`join`](super::join()) tells.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>, length: usize) -> Option<Self> {
        let ColumnHead { timed, mut starts, ends } = ColumnHead::read(&bytes)?;
        let total = ends.last()?.checked_sub(*starts.first()?)?;
        let rest = usize::from(column::REST);
        if total != length || starts[rest] != total + starts[0] {
            return None;
        }
        let place = ColumnPlace { records: starts[0], ..ColumnPlace::default() };
        starts[0] = ends[0];
        bytes.resize(bytes.len() + WORD, 0);
        Some(Self { bytes, timed, at: starts.map(Cell::new), ends, length, place })
    }

    /// Whether they may be decoded behind records with or without times. Columns that were sorted as others must be joined.
    #[must_use]
    pub fn continues(&self, timed: bool) -> bool {
        self.place.offset > 0 || self.timed == timed || self.begins()
    }

    /// Whether the first record is the beginning of a segment.
    fn begins(&self) -> bool {
        let which = || self.bytes.get(self.at[usize::from(column::BYTE)].get()).copied().and_then(fields::timed_from);
        self.bytes.get(self.place.records) == Some(&tag::EXTRA) && which().is_some()
    }

    /// Bytes of their records.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Appends the records.
    pub fn join_to(&self, records: &mut Vec<u8>) -> Option<()> {
        let before = records.len();
        records.resize(before + self.length, 0);
        let columns = self.bytes.get(..self.bytes.len() - WORD)?;
        let joined = join(columns, records.get_mut(before..)?);
        if joined.is_none() {
            records.truncate(before);
        }
        joined
    }

    /// Reads on.
    #[must_use]
    pub fn reader(&self) -> ColumnReader<'_> {
        let Self { bytes, at, ends, length, place, .. } = self;
        let tags = bytes.get(place.records..ends[usize::from(column::TAG)]).unwrap_or_default();
        ColumnReader { bytes, tags, at, ends, length: *length, offset: place.offset, context: place.context }
    }

    /// The reader has come to this place.
    pub fn read_to(&mut self, place: ColumnPlace) {
        self.place = place;
    }
}

impl fmt::Debug for RecordColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordColumns")
            .field("length", &self.length)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Reads columns. Where each column is read is not in the reader, so that the rest of it can stay in registers.
#[derive(Clone, Debug)]
pub struct ColumnReader<'a> {
    bytes: &'a [u8],
    /// The first bytes of the records to come.
    tags: &'a [u8],
    at: &'a [Cell<usize>; COLUMNS],
    ends: &'a [usize; COLUMNS],
    length: usize,
    offset: usize,
    context: TimeContext,
}

impl ColumnReader<'_> {
    /// Where it is.
    #[must_use]
    pub fn place(&self) -> ColumnPlace {
        let records = self.ends[usize::from(column::TAG)] - self.tags.len();
        ColumnPlace { records, offset: self.offset, context: self.context }
    }
}

impl<'a> FieldSource<'a> for ColumnReader<'a> {
    #[inline(always)]
    fn first(&self) -> Option<u8> {
        self.tags.first().copied()
    }

    #[inline(always)]
    fn pass_first(&mut self) {
        self.tags = self.tags.get(1..).unwrap_or_default();
        self.offset += 1;
    }

    #[inline(always)]
    fn byte(&mut self, column: u8) -> Option<u8> {
        let column = usize::from(column);
        let at = self.at[column].get();
        let byte = *self.bytes.get(at).filter(|_| at < self.ends[column])?;
        self.at[column].set(at + 1);
        self.offset += 1;
        Some(byte)
    }

    /// Without a branch on the length but for the longest, since nothing predicts it.
    #[inline(always)]
    fn number(&mut self, column: u8) -> Option<u64> {
        let column = usize::from(column);
        let (at, behind) = (self.at[column].get(), self.at[column + 1].get());
        let first = *self.bytes.get(at)?;
        let word = u64::from_le_bytes(*self.bytes.get(behind..)?.first_chunk::<WORD>()?);
        let more = varint::length(first) - 1;
        if at >= self.ends[column] || behind + more > self.ends[column + 1] {
            cold_path();
            return None;
        }
        self.at[column].set(at + 1);
        self.at[column + 1].set(behind + more);
        self.offset += 1 + more;
        Some(varint::of_parts(first, word))
    }

    #[inline(always)]
    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number(column::TEXT_LENGTH)?).ok()?;
        let text = usize::from(column::TEXT);
        let at = self.at[text].get();
        let end = at.checked_add(length).filter(|end| *end <= self.ends[text])?;
        self.at[text].set(end);
        self.offset += length;
        self.bytes.get(at..end)
    }

    #[inline(always)]
    fn time(&mut self, free: bool) -> Option<u64> {
        let TimeContext { last_free, stack_changed } = self.context;
        self.context = TimeContext { last_free: free, stack_changed: false };
        self.number(column::time(free, last_free, stack_changed))
    }

    #[inline(always)]
    fn note_stack_change(&mut self) {
        self.context.stack_changed = true;
    }

    #[inline(always)]
    fn offset(&self) -> usize {
        self.offset
    }

    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    fn is_at_end(&self) -> bool {
        self.tags.is_empty() && self.at.iter().map(Cell::get).eq(*self.ends)
    }
}
