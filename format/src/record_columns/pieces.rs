//! From records to columns piece by piece, while a consumer of stacks walks over them: each record is looked at once.
//!
//! Invariant: the columns are those that [`split`](ColumnSplitter::split) makes of all records that were moved and inserted,
//! or [`PieceSplitter::finish`] says that they are not.

use super::fields::{COLUMNS, EVENT_ALLOC, row};
use super::split::{ColumnSplitter, Splitting};
use super::stacks::{StackStop, brings_frame};
use super::{FieldMover, RecordWalk, is_timed};
use crate::record::{DecodeError, Decoder, FieldSource, RawFrame, RecordBytes, tag};

/// Bytes of inserted records that a piece has room for.
const MOST_INSERTED: usize = 64 << 10;

/// The columns of the pieces so far.
#[derive(Debug)]
pub struct SplitPieces {
    timed: bool,
    walk: RecordWalk,
    columns: [Vec<u8>; COLUMNS],
}

impl Default for SplitPieces {
    fn default() -> Self {
        Self { timed: false, walk: RecordWalk::new(false), columns: [const { Vec::new() }; COLUMNS] }
    }
}

impl SplitPieces {
    /// Begins anew, with this segment.
    pub fn begin(&mut self, segment: &[u8]) {
        self.timed = is_timed(segment);
        self.walk = RecordWalk::new(self.timed);
        self.columns.iter_mut().for_each(Vec::clear);
    }
}

impl ColumnSplitter {
    /// Begins to split a piece of records, behind those in `split`. `None`: there is no memory for it.
    pub fn piece<'a>(&'a mut self, records: &'a [u8], split: &'a mut SplitPieces) -> Option<PieceSplitter<'a>> {
        let splitting = self.begin(records, MOST_INSERTED)?;
        Some(PieceSplitter { splitting, split, whole: true })
    }

    /// As [`split`](Self::split), of the records of these pieces.
    pub fn gather(&mut self, split: &SplitPieces) -> Option<&[u8]> {
        self.take(split.timed, &split.columns)
    }
}

/// Splits the records of one piece.
#[derive(Debug)]
pub struct PieceSplitter<'a> {
    splitting: Splitting<'a>,
    split: &'a mut SplitPieces,
    /// All records so far were whole.
    whole: bool,
}

impl PieceSplitter<'_> {
    /// As [`pass_stacks`](super::pass_stacks), and moves what it passes. The record at which it stops is not moved.
    ///
    /// # Errors
    /// As [`Decoder::read`].
    #[inline]
    pub fn pass_stacks(
        &mut self,
        decoder: &mut Decoder,
        mut is_known: impl FnMut(RawFrame) -> bool,
    ) -> Result<StackStop, DecodeError> {
        // Copies, so that they can stay in registers.
        let Splitting { records, at, columns, lengths } = &mut self.splitting;
        let (mut splitting, mut walk) = (Splitting { records, at: *at, columns, lengths }, self.split.walk);
        let stop = loop {
            let start = splitting.at;
            let Some(&first) = splitting.records.get(start) else { break Ok(StackStop::Other(start)) };
            // Nearly all records are blocks, which go by one comparison. The mover has a copy for each kind, where it goes by
            // what is known of the first byte.
            if first >= tag::ALLOC {
                if walk.record(&mut splitting).is_some() {
                    continue;
                }
            } else if Decoder::is_of_stack(first) {
                let mut fields = RecordBytes::at(splitting.records, start);
                if let Err(error) = decoder.read_stack_change(&mut fields, first) {
                    break Err(error);
                }
                if brings_frame(first) && decoder.stack().last().is_some_and(|&frame| !is_known(frame)) {
                    break Ok(StackStop::Frame { at: start, next: fields.offset() });
                }
                if walk.record(&mut splitting).is_some() {
                    continue;
                }
            } else if row(first).class < EVENT_ALLOC {
                break Ok(StackStop::Other(start));
            } else if walk.record(&mut splitting).is_some() {
                continue;
            }
            self.whole = false;
            break Ok(StackStop::Other(start));
        };
        (*at, self.split.walk) = (splitting.at, walk);
        stop
    }

    /// Moves the next record.
    pub fn pass(&mut self) {
        self.whole &= self.split.walk.record(&mut self.splitting).is_some();
    }

    /// Leaves out the records up to this position.
    pub fn leave_out(&mut self, next: usize) {
        self.splitting.at = next;
    }

    /// Inserts a record that is not of the piece.
    pub fn insert(&mut self, record: &[u8]) {
        let Splitting { columns, lengths, .. } = &mut self.splitting;
        let mut inserting = Splitting { records: record, at: 0, columns, lengths };
        self.whole &= self.split.walk.record(&mut inserting).is_some() && inserting.is_at_end();
    }

    /// Adds the piece's columns to those of the pieces before it; `false`: not all of its records were moved, or there is no
    /// memory for them.
    #[must_use]
    pub fn finish(self) -> bool {
        let Splitting { columns, lengths, .. } = &self.splitting;
        let mut pieces =
            columns.iter().zip(lengths.iter()).map(|(column, &length)| column.get(..length).unwrap_or_default());
        let is_added = self.split.columns.iter_mut().zip(&mut pieces).all(|(all, piece)| {
            let has_room = all.try_reserve(piece.len()).is_ok();
            all.extend_from_slice(if has_room { piece } else { &[] });
            has_room
        });
        is_added && self.whole && self.splitting.is_at_end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ColumnSplitter, PieceSplitter, SplitPieces, StackStop};
    use crate::lines::SourcePosition;
    use crate::record::tests::{encode, records};
    use crate::record::{Decoder, LocationEncoder, Record};

    /// Walks over a piece, with a record inserted before each frame whose instruction has this bit, and without unmappings.
    fn walk(mut splitter: PieceSplitter<'_>, decoder: &mut Decoder, piece: &[u8], bit: u32, out: &mut Vec<u8>) -> bool {
        let mut passed = 0;
        let mut pass_until =
            |at, next, out: &mut Vec<u8>| out.extend_from_slice(&piece[std::mem::replace(&mut passed, next)..at]);
        while let Ok(stop) = splitter.pass_stacks(decoder, |frame| frame.instruction & 1 == bit) {
            match stop {
                StackStop::Frame { at, .. } => {
                    pass_until(at, at, out);
                    let before = out.len();
                    LocationEncoder::default().put(out, *decoder.stack().last().unwrap(), &SourcePosition::default());
                    splitter.insert(&out[before..]);
                    splitter.pass();
                }
                StackStop::Other(at) => match decoder.next(piece, at) {
                    Ok(Some((Record::Unmap { .. }, next))) => {
                        pass_until(at, next, out);
                        splitter.leave_out(next);
                    }
                    Ok(Some(_)) => splitter.pass(),
                    _ => break,
                },
            }
        }
        pass_until(piece.len(), piece.len(), out);
        splitter.finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pieces_have_the_columns_of_the_whole(wanted in records(), timed: bool, cut in 0usize..3, bit in 0u32..2) {
            let (_, segment) = encode(&wanted, timed);
            let (mut splitter, mut split) = (ColumnSplitter::default(), SplitPieces::default());
            let (mut decoder, mut out) = (Decoder::new(), Vec::new());
            split.begin(&segment);
            for piece in [&segment, &segment[..segment.len() - cut]] {
                let splitting = splitter.piece(piece, &mut split).unwrap();
                let whole = walk(splitting, &mut decoder, piece, bit, &mut out);
                prop_assert!(whole || piece.len() < segment.len());
                if whole {
                    let columns = splitter.gather(&split).unwrap().to_vec();
                    prop_assert_eq!(columns, splitter.split(&out, timed).unwrap());
                }
            }
        }
    }
}
