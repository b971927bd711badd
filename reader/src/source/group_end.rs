//! The end of a group's bytes: what the piece that follows in it may refer to.
//!
//! Invariant: after [`GroupEnd::trim`] it has no more than a piece can refer to.

use memtrack_format::block::{BlockHeader, prefix};

use super::file::{OpenCaptureFile, StoredPiece};
use crate::error::Error;

/// The bytes of a group that its next piece may refer to.
#[derive(Debug, Default)]
pub(super) struct GroupEnd {
    segment: u32,
    /// Bytes of the group so far.
    len: u32,
    bytes: Vec<u8>,
}

impl GroupEnd {
    /// Decodes a piece; `None`: it is damaged.
    pub(super) fn read(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<Option<&[u8]>, Error> {
        let BlockHeader { segment, offset, raw_len, .. } = piece.header;
        let follows = offset > 0 && (self.segment, self.len) == (segment, offset);
        if !follows {
            // Where a piece before it is lost, a dictionary is missing: the checksum of what it holds says so.
            (self.segment, self.len) = (segment, offset);
            self.bytes.clear();
        }
        let before = self.bytes.len();
        if !file.payload(piece, &mut self.bytes)? {
            return Ok(None);
        }
        self.len = self.len.saturating_add(raw_len);
        Ok(self.bytes.get(before..))
    }

    /// Forgets what no piece can refer to.
    pub(super) fn trim(&mut self) {
        let needed = prefix(&self.bytes).len();
        self.bytes.drain(..self.bytes.len() - needed);
    }
}
