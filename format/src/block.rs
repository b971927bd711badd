//! Block headers. A block is the unit of writing, of checksums and of recovery after damage.
//!
//! After the file header a capture is a sequence of blocks, each a header and its stored payload:
//!
//! ```text
//! 0   8  sync marker: 0d 'm' 't' 'B' 'L' 'K' 8a 1a
//! 8   1  kind (BlockKind)
//! 9   1  codec of the payload (Codec)
//! 10  2  0
//! 12  4  stream: for records, the slot of the writing thread
//! 16  4  segment: for records, number in the stream of the first segment of the group; for accounts of resident memory,
//!        number of the group's first payload
//! 20  4  offset: for both, where in the group these bytes stand
//! 24  8  first ticket that the payload may hold
//! 32  8  last ticket that the payload may hold
//! 40  4  payload bytes once decoded
//! 44  4  payload bytes stored
//! 48  4  CRC-32 of the stored payload
//! 52  4  CRC-32 of bytes 0..52
//! ```
//!
//! A *segment* of records is the unit of delta coding: the state is reset at its start. Consecutive segments of one thread
//! form a *group*, which is identified by the number of its first segment. The collector writes a group as one block, or
//! as several pieces (at rising `offset`s) if it had to save an unfinished segment; a piece can be decoded only after the
//! pieces before it.
//!
//! Invariant: the lengths in a header that passes its checksum are bounded by [`MAX_RAW`], so a reader can skip any such
//! block or allocate memory for it. After damage a reader resumes at the next sync marker.

use crc32fast::hash as crc32;

/// Bytes of a block's header.
pub const HEADER_LEN: usize = 56;
/// The sync marker: the first bytes of each block, for which a reader searches after damage.
pub const SYNC: [u8; 8] = [0x0d, b'm', b't', b'B', b'L', b'K', 0x8a, 0x1a];
/// The largest payload, decoded, in bytes.
pub const MAX_RAW: u32 = 16 << 20;
/// The largest accepted compression ratio of any codec, so that a hostile file cannot make a reader run out of memory. It
/// is the limit of LZ4; a writer uses LZ4 for a payload that Zstandard would compress further.
pub const MAX_RATIO: u32 = 255;
/// The largest stored payload: LZ4's worst case for an incompressible payload.
pub const MAX_STORED: u32 = MAX_RAW + MAX_RAW / 255 + 64;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockKind {
    /// Records of a group of segments: see [`crate::record`].
    Records = 1,
    /// Metadata of the process: see [`crate::meta`]. A later block overrides an earlier one, field by field.
    Process = 2,
    /// Ticks, memory snapshots and thread names that the collector took: see [`crate::observe`].
    Observations = 3,
    /// Sums in place of records: see [`crate::aggregate`]. A later checkpoint replaces all earlier ones.
    Aggregate = 4,
    /// The capture is complete; empty.
    End = 5,
    /// Names of native code: see [`crate::symbols`].
    Symbols = 6,
    /// Files that the collector found for code outside loaded objects: see [`crate::mapped`].
    Mapped = 7,
    /// The file holds several captures, which follow: see [`crate::members`].
    Members = 8,
    /// Source lines of frames: see [`crate::sources`].
    Sources = 9,
    /// How far a capture that is being written can be put in order: see [`crate::watermark`].
    Watermark = 10,
    /// Moments that were named: see [`crate::marks`].
    Marks = 11,
    /// Which pages of the process were in memory at one moment: see [`crate::resident`].
    Resident = 12,
    /// The Python objects of the process at one moment: see [`crate::objects`].
    Objects = 13,
}

/// How a payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    Stored = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One Zstandard frame, since format version 2.
    Zstd = 2,
    /// A Zstandard frame with the [`prefix`] of the group's earlier bytes as its dictionary; since version 2.
    ZstdPrefix = 3,
    /// The [columns](crate::record_columns) of records as Zstandard frames, one after the other; since version 4.
    ZstdColumns = 4,
    /// The columns of records as one LZ4 block; since version 4.
    Lz4Columns = 5,
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// What it holds.
    pub kind: BlockKind,
    /// How it is stored.
    pub codec: Codec,
    /// See the module's table.
    pub stream: u32,
    /// See the module's table.
    pub segment: u32,
    /// See the module's table.
    pub offset: u32,
    /// See the module's table.
    pub first_ticket: u64,
    /// See the module's table.
    pub last_ticket: u64,
    /// Payload bytes once decoded.
    pub raw_len: u32,
    /// Payload bytes as stored.
    pub stored_len: u32,
    /// CRC-32 of the stored payload.
    pub payload_crc: u32,
}

/// Why bytes are not a block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// Fewer bytes than a header has.
    Short,
    /// No sync marker, or a checksum that does not match: damage, or not the start of a block.
    Damaged,
    /// Intact, but of a kind or codec that this version does not know.
    Unknown {
        /// Payload bytes to skip.
        stored_len: u32,
    },
}

impl BlockHeader {
    /// A header for a payload that belongs to no stream.
    #[must_use]
    pub fn plain(kind: BlockKind) -> Self {
        Self {
            kind,
            codec: Codec::Stored,
            stream: 0,
            segment: 0,
            offset: 0,
            first_ticket: 0,
            last_ticket: 0,
            raw_len: 0,
            stored_len: 0,
            payload_crc: 0,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&SYNC);
        bytes[8] = self.kind as u8;
        bytes[9] = self.codec as u8;
        bytes[12..16].copy_from_slice(&self.stream.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.segment.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_ticket.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.last_ticket.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.payload_crc.to_le_bytes());
        let checksum = crc32(&bytes[..52]);
        bytes[52..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that these bytes begin with.
    ///
    /// # Errors
    /// A [`BlockError`] when they do not begin with an intact header of a known kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let bytes = bytes.first_chunk::<HEADER_LEN>().ok_or(BlockError::Short)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (raw_len, stored_len) = (word(40), word(44));
        if bytes[..8] != SYNC || word(52) != crc32(&bytes[..52]) || raw_len > MAX_RAW || stored_len > MAX_STORED {
            return Err(BlockError::Damaged);
        }
        let unknown = BlockError::Unknown { stored_len };
        Ok(Self {
            kind: BlockKind::from_number(bytes[8]).ok_or(unknown)?,
            codec: Codec::from_number(bytes[9]).ok_or(unknown)?,
            stream: word(12),
            segment: word(16),
            offset: word(20),
            first_ticket: long(24),
            last_ticket: long(32),
            raw_len,
            stored_len,
            payload_crc: word(48),
        })
    }

    /// Whether the ratio of the lengths is within [`MAX_RATIO`].
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        u64::from(self.raw_len) <= u64::from(self.stored_len) * u64::from(MAX_RATIO)
    }

    /// Whether these stored bytes have this header's length and checksum.
    #[must_use]
    pub fn fits(&self, stored: &[u8]) -> bool {
        stored.len() == self.stored_len as usize && crc32(stored) == self.payload_crc
    }
}

/// Bytes that [`prefix`] has at most.
pub const PREFIX: usize = 256 << 10;

/// The part of a group's earlier bytes that [`Codec::ZstdPrefix`] uses as its dictionary: the last [`PREFIX`] at most.
#[must_use]
pub fn prefix(before: &[u8]) -> &[u8] {
    before.get(before.len().saturating_sub(PREFIX)..).unwrap_or_default()
}

impl BlockKind {
    fn from_number(number: u8) -> Option<Self> {
        let all = [
            Self::Records,
            Self::Process,
            Self::Observations,
            Self::Aggregate,
            Self::End,
            Self::Symbols,
            Self::Mapped,
            Self::Members,
            Self::Sources,
            Self::Watermark,
            Self::Marks,
            Self::Resident,
            Self::Objects,
        ];
        all.into_iter().find(|&kind| kind as u8 == number)
    }
}

impl Codec {
    /// The first version of the format that has it.
    #[must_use]
    pub const fn since(self) -> u32 {
        match self {
            Self::Stored | Self::Lz4 => 1,
            Self::Zstd | Self::ZstdPrefix => 2,
            Self::ZstdColumns | Self::Lz4Columns => 4,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Stored, Self::Lz4, Self::Zstd, Self::ZstdPrefix, Self::ZstdColumns, Self::Lz4Columns];
        all.into_iter().find(|&codec| codec as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockError, BlockHeader, BlockKind, HEADER_LEN};
    use proptest::prelude::*;

    fn example() -> BlockHeader {
        BlockHeader {
            stream: 3,
            segment: 9,
            offset: 77,
            first_ticket: 1 << 40,
            last_ticket: (1 << 40) + 5,
            raw_len: 100,
            stored_len: 60,
            payload_crc: 0xdead_beef,
            ..BlockHeader::plain(BlockKind::Records)
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(BlockHeader::decode(&example().encode()), Ok(example()));
        assert_eq!(BlockHeader::decode(&example().encode()[..HEADER_LEN - 1]), Err(BlockError::Short));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_seen(bit in 0..HEADER_LEN * 8) {
            let mut bytes = example().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(BlockHeader::decode(&bytes), Err(BlockError::Damaged));
        }
    }
}
