//! The records of a group of segments: its pieces, from the file to the decoder.
//!
//! Columns are decoded as they are, unless there is another piece in the group: then all are joined to bytes.
//!
//! Invariant: the events are those of the joined bytes of all pieces up to the first gap.

use memtrack_format::block::MAX_RAW;
use memtrack_format::record::{FieldSource, RecordBytes};
use memtrack_format::record_columns::RecordColumns;

use super::DataLoss;
use super::file::{OpenCaptureFile, StoredPiece};
use super::index::{Index, IndexedSegment};
use super::segment::{Batch, DecodeProgress, SegmentReader};
use crate::error::Error;

/// The records, and how far they are decoded.
#[derive(Debug, Default)]
pub(super) struct GroupRecords {
    /// What is decoded is empty.
    parts: Vec<GroupPart>,
    /// The part that is decoded now.
    part: usize,
}

/// All pieces, or one of columns.
#[derive(Debug)]
enum GroupPart {
    Bytes { bytes: Vec<u8>, at: usize },
    Columns(Box<RecordColumns>),
}

impl GroupPart {
    const EMPTY: Self = Self::Bytes { bytes: Vec::new(), at: 0 };

    /// Bytes of its records.
    fn length(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Columns(columns) => columns.length(),
        }
    }

    /// Appends its records; `None`: there are none.
    fn join_to(&self, all: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Bytes { bytes, .. } => all.extend_from_slice(bytes),
            Self::Columns(columns) => columns.join_to(all)?,
        }
        Some(())
    }

    /// Decodes on.
    fn decode(&mut self, reader: &mut SegmentReader, batch: &mut Batch, limit: usize) -> DecodeProgress {
        match self {
            Self::Bytes { bytes, at } => {
                let mut fields = RecordBytes::at(bytes, *at);
                let progress = reader.decode(&mut fields, batch, limit);
                *at = fields.offset();
                progress
            }
            Self::Columns(columns) => {
                let mut fields = columns.reader();
                let progress = reader.decode(&mut fields, batch, limit);
                let place = fields.place();
                columns.read_to(place);
                progress
            }
        }
    }
}

impl GroupRecords {
    /// Reads the pieces up to the first gap; what follows is lost.
    pub(super) fn load(
        file: &OpenCaptureFile,
        index: &Index,
        segment: &IndexedSegment,
    ) -> Result<(Self, DataLoss), Error> {
        let (mut records, mut lost, mut length) = (Self::default(), DataLoss::default(), 0);
        let pieces: &[StoredPiece] = index.records.get(segment.pieces.clone()).unwrap_or_default();
        for (i, piece) in pieces.iter().enumerate() {
            let fits = piece.header.offset == length && length + piece.header.raw_len <= MAX_RAW;
            if !fits || !records.add(file, piece)? {
                pieces[i..].iter().for_each(|lost_piece| lost.add(1, lost_piece.stored_bytes()));
                break;
            }
            length += piece.header.raw_len;
        }
        Ok((records, lost))
    }

    /// Adds a piece; `false`: it is damaged.
    fn add(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<bool, Error> {
        // Columns are of whole records, which bytes before them may not be.
        if !matches!(self.parts.last(), Some(GroupPart::Bytes { .. }))
            && let Some(columns) = file.columns(piece)?
        {
            self.parts.push(GroupPart::Columns(Box::new(columns)));
            return Ok(true);
        }
        // What comes before may be the dictionary of this piece.
        let Some(bytes) = self.join() else { return Ok(false) };
        file.payload(piece, bytes)
    }

    /// Joins all parts to bytes; `None`: one of them has none.
    fn join(&mut self) -> Option<&mut Vec<u8>> {
        if !matches!(&self.parts[..], [GroupPart::Bytes { .. }]) {
            let mut bytes = Vec::new();
            self.parts.iter().try_for_each(|part| part.join_to(&mut bytes))?;
            self.parts = vec![GroupPart::Bytes { bytes, at: 0 }];
        }
        match self.parts.last_mut() {
            Some(GroupPart::Bytes { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    /// Decodes on, until the batch has `limit` events or the records end.
    pub(super) fn decode(&mut self, reader: &mut SegmentReader, batch: &mut Batch, limit: usize) -> DecodeProgress {
        loop {
            let is_usable = self.join_if_other(reader.is_timed());
            let Some(part) = self.parts.get_mut(self.part) else { return DecodeProgress::End };
            if !is_usable {
                return DecodeProgress::Damaged { left: self.left() };
            }
            match part.decode(reader, batch, limit) {
                DecodeProgress::Full => return DecodeProgress::Full,
                DecodeProgress::End => *part = GroupPart::EMPTY,
                DecodeProgress::Damaged { left } => {
                    *part = GroupPart::EMPTY;
                    return DecodeProgress::Damaged { left: left + self.left() };
                }
            }
            self.part += 1;
        }
    }

    /// Bytes of the part that is decoded now, and of those behind it.
    fn left(&self) -> usize {
        self.parts.iter().skip(self.part).map(GroupPart::length).sum()
    }

    /// Joins columns that were sorted as records of another timing, with those behind them: they may end within a record.
    /// `false`: they cannot be joined.
    #[inline]
    fn join_if_other(&mut self, timed: bool) -> bool {
        let behind = self.parts.get_mut(self.part..).unwrap_or_default();
        match behind.first() {
            Some(GroupPart::Columns(columns)) if !columns.continues(timed) => {}
            _ => return true,
        }
        let mut bytes = Vec::new();
        let joined = behind.iter().take_while(|part| part.join_to(&mut bytes).is_some()).count();
        behind.iter_mut().take(joined).for_each(|part| *part = GroupPart::EMPTY);
        if let Some(first) = behind.first_mut().filter(|_| joined > 0) {
            *first = GroupPart::Bytes { bytes, at: 0 };
        }
        joined > 0
    }
}
