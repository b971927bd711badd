//! The file header: the first sixteen bytes of a capture, with the format version.
//!
//! ```text
//! 0   8  magic: 89 'M' 'E' 'M' 'T' 'R' 'K' 0a   (not text, damaged by a text-mode transfer)
//! 8   4  format version, little-endian
//! 12  4  CRC-32 of bytes 0..12
//! ```
//!
//! | version | new in it |
//! |---|---|
//! | 2 | line tables stay with the collector; groups of segments, with Zstandard |
//! | 3 | arenas of Python's allocators ([`crate::Allocator::PymallocArena`]); the [`Clock`](crate::record::Record::Clock) and [`FailedAlloc`](crate::record::Record::FailedAlloc) records |
//! | 4 | stack tops with numbers: the [`DefineTop`](crate::record::Record::DefineTop) and [`ReplaceTop`](crate::record::Record::ReplaceTop) records; blocks of records sorted by field ([`crate::record_columns`]) |
//! | 5 | sampled captures: the [`Counted`](crate::record::Record::Counted) record and observation, and the record [`SampleDistance`](crate::record::Record::SampleDistance) |
//!
//! Invariant: [`VERSION`] is raised by every change that an older reader would misread, and this reader reads every
//! version up to it.

use crc32fast::hash as crc32;

/// The first bytes of every capture.
pub const MAGIC: [u8; 8] = [0x89, b'M', b'E', b'M', b'T', b'R', b'K', 0x0a];
/// The version that this build writes.
pub const VERSION: u32 = 5;
/// Bytes of the file header.
pub const LEN: usize = 16;

/// Why bytes are not the header of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    Short,
    /// Not a capture.
    Foreign,
    /// The version field contradicts its checksum.
    Damaged,
    /// A version that this build does not know.
    Newer(u32),
}

/// The header of a capture of this version.
#[must_use]
pub fn encode() -> [u8; LEN] {
    let mut header = [0; LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = crc32(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The version of the capture that begins with these bytes.
///
/// # Errors
/// A [`HeaderError`] when they are not the beginning of a capture this build can read.
pub fn decode(bytes: &[u8]) -> Result<u32, HeaderError> {
    let Some(header) = bytes.first_chunk::<LEN>() else {
        return Err(if MAGIC.starts_with(&bytes[..bytes.len().min(8)]) {
            HeaderError::Short
        } else {
            HeaderError::Foreign
        });
    };
    if header[..8] != MAGIC {
        return Err(HeaderError::Foreign);
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if word(12) != crc32(&header[..12]) {
        return Err(HeaderError::Damaged);
    }
    if word(8) == 0 || word(8) > VERSION { Err(HeaderError::Newer(word(8))) } else { Ok(word(8)) }
}

#[cfg(test)]
mod tests {
    use super::{HeaderError, LEN, VERSION, decode, encode};

    #[test]
    fn round_trip_and_refusals() {
        let header = encode();
        assert_eq!(decode(&header), Ok(VERSION));
        assert_eq!(decode(&header[..LEN - 1]), Err(HeaderError::Short));
        assert_eq!(decode(b""), Err(HeaderError::Short));
        assert_eq!(decode(b"\x7fELF and more of it"), Err(HeaderError::Foreign));
        let mut damaged = header;
        damaged[8] ^= 4;
        assert_eq!(decode(&damaged), Err(HeaderError::Damaged));
    }
}
