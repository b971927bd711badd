//! Collects the segments of one stream into groups, which compress better than single segments.
//!
//! Invariant: a group has consecutive segments of one thread, at most [`FULL`] bytes and one segment; the pieces that are
//! taken out of it are the group's bytes, each once and in order.

use std::sync::Arc;

use memtrack_format::block::Codec;
use memtrack_format::record::{Decoder, Record};
use memtrack_format::record_columns::{ColumnSplitter, SplitPieces};

use crate::file::line_table_filter::LineTableFilter;
use crate::sink::RecordPiece;

/// A group of this many bytes takes no further segment: enough for a compressor, and little to lose by damage.
const FULL: usize = 1 << 20;

/// The current group of one stream.
#[derive(Debug, Default)]
pub(crate) struct SegmentGroup {
    line_tables: LineTableFilter,
    /// The columns of `bytes`, if `is_split`.
    split: Box<SplitPieces>,
    is_split: bool,
    /// Columns suited what was last written of this stream.
    wants_split: bool,
    /// Number of its first segment.
    segment: u32,
    /// Its bytes, but for the first that are `forgotten`.
    bytes: Vec<u8>,
    discarded: usize,
    /// How many of `bytes` are written.
    taken: usize,
    tid: Option<i32>,
    first_ticket: u64,
    last_ticket: u64,
}

impl SegmentGroup {
    /// Whether the waiting bytes must be written before this piece is added.
    pub(crate) fn must_write_before(&self, piece: &RecordPiece<'_>) -> bool {
        let begun = self.taken == 0 && self.discarded == 0;
        let fits = begun && self.bytes.len() + piece.bytes.len() <= FULL && self.tid == tid(piece.bytes);
        piece.offset == 0 && self.waits() && !fits
    }

    fn waits(&self) -> bool {
        self.taken < self.bytes.len()
    }

    /// Adds the piece's records; returns by how many bytes the group has grown.
    pub(crate) fn add(&mut self, piece: &RecordPiece<'_>, splitter: &mut ColumnSplitter) -> usize {
        if !self.waits() {
            self.first_ticket = piece.first_ticket;
            self.is_split = piece.offset == 0 && self.wants_split;
            if piece.offset == 0 {
                self.split.begin(piece.bytes);
                self.bytes.clear();
                (self.segment, self.discarded, self.taken, self.tid) = (piece.segment, 0, 0, tid(piece.bytes));
            }
        }
        let before = self.bytes.len();
        self.last_ticket = piece.last_ticket;
        let splitter = if self.is_split { splitter.piece(piece.bytes, &mut self.split) } else { None };
        let (begins, out) = (piece.offset == 0, &mut self.bytes);
        self.is_split = self.line_tables.pass_on(begins, piece.has_code, piece.bytes, out, splitter);
        self.bytes.len() - before
    }

    /// The files of code objects that came with what was added.
    pub(crate) fn take_files(&mut self) -> Vec<Arc<[u8]>> {
        self.line_tables.take_files()
    }

    /// The files and lines of frames that came with what was added.
    pub(crate) fn take_lines(&mut self) -> Vec<(Arc<[u8]>, u32)> {
        self.line_tables.take_lines()
    }

    /// The waiting bytes, to be written as one block of this stream, and the earlier bytes of the group.
    pub(crate) fn piece(&self, stream: u32) -> Option<(RecordPiece<'_>, &[u8])> {
        let &Self { segment, first_ticket, last_ticket, .. } = self;
        let (before, bytes) = self.bytes.split_at_checked(self.taken)?;
        let offset = u32::try_from(self.discarded + self.taken).unwrap_or(u32::MAX);
        let before = if self.discarded == 0 { before } else { &[] };
        let piece = RecordPiece { stream, segment, offset, first_ticket, last_ticket, has_code: true, bytes };
        (!bytes.is_empty()).then_some((piece, before))
    }

    /// The columns of the waiting bytes, if they are known.
    pub(crate) fn columns(&self) -> Option<&SplitPieces> {
        self.is_split.then_some(&self.split)
    }

    /// Notes with which codec they were written.
    pub(crate) fn note_codec(&mut self, codec: Codec) {
        self.wants_split = matches!(codec, Codec::ZstdColumns | Codec::Lz4Columns);
    }

    /// Notes that the waiting bytes are written. With `keep` they stay in memory, as a dictionary for later pieces.
    pub(crate) fn written(&mut self, keep: bool) {
        if !keep {
            self.discarded += self.bytes.len();
            (self.bytes, self.split) = (Vec::new(), Box::default());
        }
        self.taken = self.bytes.len();
    }
}

/// The thread that wrote a segment, by its Begin record.
fn tid(bytes: &[u8]) -> Option<i32> {
    match Decoder::new().next(bytes, 0) {
        Ok(Some((Record::Begin { tid, .. }, _))) => Some(tid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL, SegmentGroup};
    use crate::sink::RecordPiece;
    use memtrack_format::Allocator;
    use memtrack_format::block::Codec;
    use memtrack_format::record::{CodeHead, Encoder, LineTableFormat, RawFrame};
    use memtrack_format::record_columns::ColumnSplitter;

    /// The beginning of a segment of this thread, or bytes that follow one.
    fn bytes(tid: i32, len: usize) -> Vec<u8> {
        let mut bytes = vec![2; len.max(64)];
        if tid != 0 {
            Encoder::new(false).begin(&mut bytes, 0, 1, 2, tid).unwrap();
        }
        bytes
    }

    /// Adds pieces (segment, offset, thread, length) with a checkpoint wherever the length is 0; gives what is written.
    fn written(pieces: &[(u32, u32, i32, usize)], keep: bool) -> Vec<(u32, u32, usize, usize)> {
        let (mut group, mut blocks) = (SegmentGroup::default(), Vec::new());
        let mut splitter = ColumnSplitter::default();
        let mut write = |group: &mut SegmentGroup| {
            let block = group.piece(5).map(|(piece, before)| {
                assert_eq!((piece.stream, piece.first_ticket), (5, u64::from(piece.segment)));
                (piece.segment, piece.offset, piece.bytes.len(), before.len())
            });
            blocks.extend(block);
            group.written(keep);
        };
        for &(segment, offset, tid, len) in pieces {
            let bytes = bytes(tid, len);
            let (first_ticket, last_ticket) = (u64::from(segment), u64::from(segment));
            let piece =
                RecordPiece { stream: 5, segment, offset, first_ticket, last_ticket, has_code: true, bytes: &bytes };
            if len == 0 || group.must_write_before(&piece) {
                write(&mut group);
            }
            if len > 0 {
                assert_eq!(group.add(&piece, &mut splitter), len);
            }
        }
        write(&mut group);
        blocks
    }

    #[test]
    fn segments_that_follow_each_other_are_one_block() {
        assert_eq!(written(&[(0, 0, 7, 100), (1, 0, 7, 200), (1, 200, 0, 300)], true), [(0, 0, 600, 0)]);
        assert_eq!(written(&[(0, 0, 7, 100), (1, 0, 8, 200)], true), [(0, 0, 100, 0), (1, 0, 200, 0)]);
        assert_eq!(written(&[(0, 0, 7, FULL), (1, 0, 7, 200)], true), [(0, 0, FULL, 0), (1, 0, 200, 0)]);
    }

    #[test]
    fn a_checkpoint_ends_the_group_with_the_segment() {
        let pieces = [(3, 0, 7, 100), (0, 0, 0, 0), (3, 100, 0, 200), (4, 0, 7, 300), (5, 0, 7, 400)];
        assert_eq!(written(&pieces, true), [(3, 0, 100, 0), (3, 100, 200, 100), (4, 0, 700, 0)]);
        assert_eq!(written(&pieces, false), [(3, 0, 100, 0), (3, 100, 200, 0), (4, 0, 700, 0)]);
    }

    #[test]
    fn where_columns_suited_the_last_block_they_are_made_of_each_piece() {
        let (mut encoder, mut bytes) = (Encoder::new(false), vec![0; 1000]);
        let head =
            CodeHead { id: 7, first_line: 10, lines: LineTableFormat::Lnotab, lines_len: 3, name: b"f", file: b"f" };
        let mut at = encoder.begin(&mut bytes, 0, 1, 2, 7).unwrap();
        at = encoder.code(&mut bytes, at, &head).unwrap();
        at = encoder.code_lines(&mut bytes, at, 7, &[10, 1, 10]).unwrap();
        at = encoder.push(&mut bytes, at, RawFrame { code: 7, instruction: 12 }).unwrap();
        at = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x1000, 8, 0).unwrap();
        let (mut group, mut splitter) = (SegmentGroup::default(), ColumnSplitter::default());
        for (segment, codec) in [Codec::ZstdColumns, Codec::ZstdColumns, Codec::Lz4].into_iter().enumerate() {
            for offset in [0, 0, at as u32] {
                let place = RecordPiece {
                    stream: 5,
                    segment: 0,
                    offset,
                    first_ticket: 1,
                    last_ticket: 1,
                    has_code: true,
                    bytes: &[],
                };
                // The last is what follows in the segment.
                let of_piece = if offset == 0 { &bytes[..at] } else { &[Allocator::Malloc as u8 | 0x70][..] };
                group.add(&RecordPiece { bytes: of_piece, ..place }, &mut splitter);
            }
            let columns = group.columns().map(|split| splitter.gather(split).unwrap().to_vec());
            let expected = splitter.split(group.piece(5).unwrap().0.bytes, false).unwrap();
            assert_eq!(columns.as_deref(), (segment > 0).then_some(expected));
            group.note_codec(codec);
            group.written(true);
        }
        let piece = RecordPiece {
            stream: 5,
            segment: 0,
            offset: 0,
            first_ticket: 1,
            last_ticket: 1,
            has_code: true,
            bytes: &bytes[..at],
        };
        group.add(&piece, &mut splitter);
        assert!(group.columns().is_none());
    }
}
