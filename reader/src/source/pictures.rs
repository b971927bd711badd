//! Pictures of objects that a capture has: which, and each as a whole.
//!
//! Invariant: a picture of which a part is missing is none.

use memtrack_format::objects::{PictureExtent, PictureHead, PicturePart, StoredPicture};

use super::CaptureReader;
use super::file::StoredPiece;
use crate::error::Error;

/// A picture that a capture has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureMoment {
    /// When and why it was taken.
    pub head: PictureHead,
    ticket: u64,
}

impl CaptureReader {
    /// The pictures of objects in the capture, by time.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn pictures(&self) -> Result<Vec<PictureMoment>, Error> {
        let mut found = Vec::new();
        for piece in self.picture_pieces() {
            let payload = self.file.whole_payload(piece)?.unwrap_or_default();
            let first = PicturePart::decode(&payload).filter(|part| part.number == 0);
            let head = first.and_then(|part| PictureHead::decode(part.bytes));
            found.extend(head.map(|head| PictureMoment { head, ticket: piece.header.first_ticket }));
        }
        found.sort_by_key(|moment| moment.head.time_ns);
        Ok(found)
    }

    /// One of them; `None`: a part of it is damaged or missing.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn picture(&self, moment: &PictureMoment, extent: PictureExtent) -> Result<Option<StoredPicture>, Error> {
        let (mut whole, mut next) = (Vec::new(), 0);
        for piece in self.picture_pieces().filter(|piece| piece.header.first_ticket == moment.ticket) {
            let payload = self.file.whole_payload(piece)?.unwrap_or_default();
            let Some(part) = PicturePart::decode(&payload) else { continue };
            if part.time_ns == moment.head.time_ns && part.number == next {
                whole.extend_from_slice(part.bytes);
                next += 1;
                if next == part.count {
                    return Ok(StoredPicture::decode(&whole, extent));
                }
            }
        }
        Ok(None)
    }

    /// The time of a picture in nanoseconds since this recording began.
    #[must_use]
    pub fn picture_ns(&self, moment: &PictureHead) -> u64 {
        moment.time_ns.saturating_sub(self.process().start.monotonic_ns.unwrap_or(moment.time_ns))
    }

    fn picture_pieces(&self) -> impl Iterator<Item = &StoredPiece> {
        let tickets = self.index.tickets();
        self.index.pictures.iter().filter(move |piece| tickets.contains(&piece.header.first_ticket))
    }
}
