//! The pieces of a stream that is followed: from the file to the decoder, one after the other when their turn comes.
//!
//! A piece may refer to the bytes before it in its group. Columns are decoded as they are, and joined to bytes only for a piece that
//! refers to them. The rounds of loops are found in bytes alone, so that repetitive columns are joined, ever more seldom where no
//! rounds are found.
//!
//! Invariant: between two pieces it has no more bytes than a piece can refer to, and columns of no more than that and one piece.

use std::collections::VecDeque;

use memtrack_format::block::{BlockHeader, Codec, PREFIX, prefix};
use memtrack_format::record_columns::RecordColumns;

use super::file::{OpenCaptureFile, StoredPiece};
use super::repeats::PiecePlace;
use super::segment::{Batch, DecodeProgress, SegmentReader};
use crate::error::Error;

/// Columns that are compressed by less than this factor have few rounds of loops, if any.
const REPETITIVE: u32 = if cfg!(test) { 0 } else { 8 };
/// Joined columns without rounds, one behind the other, for each of which one more is then decoded as it is; and how many at most.
const IN_VAIN: u32 = if cfg!(test) { 1 } else { 4 };
const MOST_PASSED: u32 = if cfg!(test) { 1 } else { 15 };

/// The pieces that wait, and the group of the one that is decoded.
#[derive(Debug, Default)]
pub(super) struct FollowedGroup {
    waiting: VecDeque<StoredPiece>,
    waiting_bytes: u64,
    segment: u32,
    /// Bytes of the group up to the end of the piece that was opened last.
    len: u32,
    /// The last of them, but for those of `columns`.
    bytes: Vec<u8>,
    /// Pieces behind these bytes, which are not joined; the last one may be open.
    columns: Vec<RecordColumns>,
    open: Option<OpenPiece>,
    place: PiecePlace,
    /// Whether the piece that is decoded by its bytes has rounds, and whether it is of columns.
    has_rounds: bool,
    is_joined: bool,
    /// Joined columns without rounds, one behind the other.
    in_vain: u32,
    /// Repetitive columns that were decoded as they are since then.
    passed: u32,
}

/// The piece that is decoded.
#[derive(Clone, Copy, Debug)]
enum OpenPiece {
    Columns,
    /// `bytes` from here on.
    Bytes {
        from: usize,
    },
}

impl FollowedGroup {
    /// Adds a piece behind the others.
    pub(super) fn push(&mut self, piece: StoredPiece) {
        self.waiting_bytes += piece.stored_bytes();
        self.waiting.push_back(piece);
    }

    /// Takes the first piece that waits.
    pub(super) fn next_piece(&mut self) -> Option<StoredPiece> {
        let piece = self.waiting.pop_front()?;
        self.waiting_bytes -= piece.stored_bytes();
        Some(piece)
    }

    /// Bytes of the pieces that wait.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Whether a piece is not decoded to its end.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens a piece; `false`: it is damaged, or a piece before it, which it refers to, is lost.
    pub(super) fn open(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<bool, Error> {
        let BlockHeader { segment, offset, raw_len, codec, .. } = piece.header;
        let follows = offset > 0 && (self.segment, self.len) == (segment, offset);
        if !follows {
            (self.segment, self.len) = (segment, offset);
            self.forget();
            if offset > 0 && codec == Codec::ZstdPrefix {
                return Ok(false);
            }
        }
        let is_open = self.open_columns(file, piece)? || self.open_bytes(file, piece)?;
        if is_open {
            self.len = self.len.saturating_add(raw_len);
        }
        Ok(is_open)
    }

    fn open_columns(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<bool, Error> {
        let BlockHeader { codec, raw_len, stored_len, .. } = piece.header;
        self.is_joined = matches!(codec, Codec::ZstdColumns | Codec::Lz4Columns);
        if !self.is_joined {
            return Ok(false);
        }
        if raw_len >= stored_len.saturating_mul(REPETITIVE) {
            if self.passed >= (self.in_vain / IN_VAIN).min(MOST_PASSED) {
                return Ok(false);
            }
            self.passed += 1;
        }
        let Some(columns) = file.columns(piece)? else { return Ok(false) };
        self.columns.push(columns);
        self.forget_far();
        self.open = Some(OpenPiece::Columns);
        Ok(true)
    }

    fn open_bytes(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<bool, Error> {
        self.join();
        let from = self.bytes.len();
        if !file.payload(piece, &mut self.bytes)? {
            return Ok(false);
        }
        self.open = Some(OpenPiece::Bytes { from });
        self.place.begin();
        self.has_rounds = false;
        Ok(true)
    }

    /// Makes bytes of the pieces before, to which the next one may refer, and keeps what it can refer to.
    fn join(&mut self) {
        for columns in std::mem::take(&mut self.columns) {
            if columns.join_to(&mut self.bytes).is_none() {
                // They were decoded, but are not the columns of any bytes.
                self.bytes.clear();
            }
        }
        let needed = prefix(&self.bytes).len();
        self.bytes.drain(..self.bytes.len() - needed);
    }

    /// Forgets what is so far back that no piece behind can refer to it.
    fn forget_far(&mut self) {
        let mut length: usize = self.columns.iter().map(RecordColumns::length).sum();
        if length >= PREFIX {
            self.bytes.clear();
        }
        let mut is_far = |columns: &RecordColumns| {
            length = length.saturating_sub(columns.length());
            length >= PREFIX
        };
        let far = self.columns.iter().map_while(|columns| is_far(columns).then_some(())).count();
        self.columns.drain(..far);
    }

    fn forget(&mut self) {
        self.columns.clear();
        self.bytes.clear();
    }

    /// The piece is not decoded any further.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Decodes on, until the batch has about `limit` events or the piece ends.
    pub(super) fn decode(&mut self, reader: &mut SegmentReader, batch: &mut Batch, limit: usize) -> DecodeProgress {
        let progress = match (self.open, self.columns.last_mut()) {
            (Some(OpenPiece::Columns), Some(columns)) if columns.continues(reader.is_timed()) => {
                let mut fields = columns.reader();
                let progress = reader.decode(&mut fields, batch, limit);
                let place = fields.place();
                columns.read_to(place);
                progress
            }
            (Some(OpenPiece::Columns), _) => return self.decode_joined(reader, batch, limit),
            (Some(OpenPiece::Bytes { from }), _) => {
                let bytes = self.bytes.get(from..).unwrap_or_default();
                let progress = reader.decode_rounds(bytes, &mut self.place, batch, limit);
                self.has_rounds |= batch.runs.iter().any(|run| run.again > 0);
                progress
            }
            (None, _) => DecodeProgress::End,
        };
        if progress != DecodeProgress::Full {
            if matches!(self.open, Some(OpenPiece::Bytes { .. })) && self.is_joined {
                self.in_vain = if self.has_rounds { 0 } else { self.in_vain.saturating_add(1) };
                self.passed = 0;
            }
            self.close();
        }
        progress
    }

    /// The same of columns that were sorted as records of another timing.
    #[cold]
    fn decode_joined(&mut self, reader: &mut SegmentReader, batch: &mut Batch, limit: usize) -> DecodeProgress {
        self.close();
        let Some(columns) = self.columns.pop() else { return DecodeProgress::End };
        self.join();
        let from = self.bytes.len();
        if columns.join_to(&mut self.bytes).is_none() {
            return DecodeProgress::Damaged { left: columns.length() };
        }
        self.open = Some(OpenPiece::Bytes { from });
        self.place.begin();
        self.decode(reader, batch, limit)
    }
}
