//! The end of a group's bytes: what the piece that follows in it may refer to.
//!
//! Invariant: after [`GroupEnd::trim`] it has no more than a piece can refer to.

use memtrack_format::block::{BlockHeader, Codec, prefix};

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
    /// Decodes a piece; `None`: it is damaged, or a piece before it, which it refers to, is lost.
    pub(super) fn read(&mut self, file: &OpenCaptureFile, piece: &StoredPiece) -> Result<Option<&[u8]>, Error> {
        let BlockHeader { segment, offset, raw_len, codec, .. } = piece.header;
        let follows = offset > 0 && (self.segment, self.len) == (segment, offset);
        if !follows {
            (self.segment, self.len) = (segment, offset);
            self.bytes.clear();
            if offset > 0 && codec == Codec::ZstdPrefix {
                return Ok(None);
            }
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
