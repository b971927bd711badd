//! Collects the segments of one stream into groups, which compress better than single segments.
//!
//! Invariant: a group has consecutive segments of one thread, at most [`FULL`] bytes and one segment; the pieces that are
//! taken out of it are the group's bytes, each once and in order.

use std::sync::Arc;

use memtrack_format::record::{Decoder, Record};

use crate::line_table_filter::LineTableFilter;
use crate::sink::RecordPiece;

/// A group of this many bytes takes no further segment: enough for a compressor, and little to lose by damage.
const FULL: usize = 1 << 20;

/// The current group of one stream.
#[derive(Debug, Default)]
pub(crate) struct SegmentGroup {
    line_tables: LineTableFilter,
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
    pub(crate) fn add(&mut self, piece: &RecordPiece<'_>) -> usize {
        if !self.waits() {
            self.first_ticket = piece.first_ticket;
            if piece.offset == 0 {
                self.bytes.clear();
                (self.segment, self.discarded, self.taken, self.tid) = (piece.segment, 0, 0, tid(piece.bytes));
            }
        }
        let before = self.bytes.len();
        self.last_ticket = piece.last_ticket;
        self.line_tables.pass_on(piece.offset == 0, piece.has_code, piece.bytes, &mut self.bytes);
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

    /// Notes that the waiting bytes are written. With `keep` they stay in memory, as a dictionary for later pieces.
    pub(crate) fn written(&mut self, keep: bool) {
        if !keep {
            self.discarded += self.bytes.len();
            self.bytes = Vec::new();
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
    use memtrack_format::record::Encoder;

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
                assert_eq!(group.add(&piece), len);
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
}
