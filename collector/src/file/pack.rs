//! Compression of payloads: tries the codecs of the chosen compression in turn.
//!
//! Invariant: the result is smaller than the payload, within `memtrack_format::block::MAX_RATIO`, or else the payload itself.

use std::{fmt, io};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use memtrack_format::block::{BlockKind, Codec, MAX_RATIO, prefix};
use memtrack_format::record_columns::{ColumnSplitter, MAX_HEAD, SplitPieces, is_timed};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

use crate::file::column_frames::ColumnFrames;

/// Payloads up to this size are compressed in each way: a record's bytes may repeat those of the records before it.
const SMALL: usize = 64 << 10;
/// The bytes of a payload that tell how it repeats itself.
const SAMPLE: usize = 16 << 10;
/// Columns of a large payload that are this long get a frame each.
const LEAST_FRAME: usize = 2 << 10;
/// A sample that LZ4 makes smaller by this factor is not split into columns.
const REPETITIVE: usize = 100;

/// How payloads are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4: the least processor time.
    Lz4,
    /// Zstandard at this level.
    Zstd(i32),
}

impl Default for Compression {
    /// Clearly smaller than level 1, and hardly slower.
    fn default() -> Self {
        Self::Zstd(3)
    }
}

/// Compressors with their memory.
pub struct Packer {
    compression: Compression,
    /// Only the fastest codec is used.
    hurry: bool,
    zstd: Compressor<'static>,
    column_frames: ColumnFrames,
    lz4: CompressTable,
    splitter: ColumnSplitter,
    /// The smallest so far, and what is tried next.
    packed: Vec<u8>,
    attempt: Vec<u8>,
}

impl Packer {
    /// A packer with this compression.
    ///
    /// # Errors
    /// When there is no memory for a compressor.
    pub fn new(compression: Compression) -> io::Result<Self> {
        let zstd = Compressor::new(level(compression))?;
        let column_frames = ColumnFrames::new(level(compression))?;
        let (lz4, splitter) = (CompressTable::large(), ColumnSplitter::default());
        Ok(Self {
            compression,
            hurry: false,
            zstd,
            column_frames,
            lz4,
            splitter,
            packed: Vec::new(),
            attempt: Vec::new(),
        })
    }

    /// Whether to use only the fastest codec, until further notice.
    pub fn hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    /// The payload as it is to be stored; `before`: the earlier bytes of its group.
    pub fn pack<'a>(&'a mut self, kind: BlockKind, payload: &'a [u8], before: &[u8]) -> (Codec, &'a [u8]) {
        self.pack_split(kind, payload, before, None)
    }

    /// Gives its splitter to others, as long as it packs nothing.
    pub(crate) fn splitter(&mut self) -> &mut ColumnSplitter {
        &mut self.splitter
    }

    /// As [`pack`](Self::pack), of records whose columns are known, if they are.
    pub(crate) fn pack_split<'a>(
        &'a mut self,
        kind: BlockKind,
        payload: &'a [u8],
        before: &[u8],
        split: Option<&SplitPieces>,
    ) -> (Codec, &'a [u8]) {
        let longest = payload.len() + MAX_HEAD;
        let room = compress_bound(longest).max(get_maximum_output_size(longest));
        [&mut self.packed, &mut self.attempt].into_iter().for_each(|out| out.resize(out.len().max(room), 0));
        let mut best = (Codec::Stored, payload.len());
        for &codec in self.codecs(kind, payload) {
            let Some(len) = self.with(codec, payload, before, split) else { continue };
            if len < best.1 && payload.len() <= len.saturating_mul(MAX_RATIO as usize) {
                best = (codec, len);
                std::mem::swap(&mut self.packed, &mut self.attempt);
                if payload.len() > SMALL {
                    break;
                }
            }
        }
        match best {
            (Codec::Stored, _) => (Codec::Stored, payload),
            (codec, len) => (codec, self.packed.get(..len).unwrap_or_default()),
        }
    }

    /// The codecs to try. Of a large payload the first whose result is smaller and within the ratio is taken.
    fn codecs(&mut self, kind: BlockKind, payload: &[u8]) -> &'static [Codec] {
        if self.hurry && self.compression != Compression::None {
            return &[Codec::Lz4];
        }
        let with_columns = kind == BlockKind::Records && !self.is_repetitive(payload);
        match (self.compression, with_columns) {
            (Compression::None, _) => &[],
            (Compression::Lz4, false) => &[Codec::Lz4],
            (Compression::Lz4, true) => &[Codec::Lz4Columns, Codec::Lz4],
            (Compression::Zstd(_), true) => &[Codec::ZstdColumns, Codec::ZstdPrefix, Codec::Zstd, Codec::Lz4],
            (Compression::Zstd(_), false) => &[Codec::ZstdPrefix, Codec::Zstd, Codec::Lz4],
        }
    }

    /// Whether the beginning of a large payload shows that columns gain nothing: it costs less to see than to split.
    fn is_repetitive(&mut self, payload: &[u8]) -> bool {
        let Some(sample) = payload.get(..SAMPLE) else { return false };
        compress_into_with_table(sample, &mut self.attempt, &mut self.lz4)
            .is_ok_and(|len| len.saturating_mul(REPETITIVE) < SAMPLE)
    }

    /// Compresses into `attempt`; the length.
    fn with(&mut self, codec: Codec, payload: &[u8], before: &[u8], split: Option<&SplitPieces>) -> Option<usize> {
        let Self { zstd, column_frames, lz4, splitter, attempt, .. } = self;
        let begin = if before.is_empty() { payload } else { before };
        match codec {
            Codec::ZstdPrefix if before.is_empty() => None,
            Codec::ZstdPrefix => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(level(self.compression))).ok()?;
                context.ref_prefix(prefix(before)).ok()?;
                context.compress2(attempt.as_mut_slice(), payload).ok()
            }
            Codec::Zstd => zstd.compress_to_buffer(payload, attempt.as_mut_slice()).ok(),
            Codec::ZstdColumns if payload.len() <= SMALL => {
                zstd.compress_to_buffer(columns(splitter, payload, begin, split)?, attempt.as_mut_slice()).ok()
            }
            Codec::ZstdColumns => {
                columns(splitter, payload, begin, split)?;
                column_frames.compress(&splitter.parts(LEAST_FRAME), zstd, attempt)
            }
            Codec::Lz4 => compress_into_with_table(payload, attempt, lz4).ok(),
            Codec::Lz4Columns => compress_into_with_table(columns(splitter, payload, begin, split)?, attempt, lz4).ok(),
            Codec::Stored => None,
        }
    }
}

/// The columns of a payload, which has the beginning of its group before it or is it.
fn columns<'a>(
    splitter: &'a mut ColumnSplitter,
    payload: &[u8],
    begin: &[u8],
    split: Option<&SplitPieces>,
) -> Option<&'a [u8]> {
    match split {
        Some(split) => splitter.gather(split),
        None => splitter.split(payload, is_timed(begin)),
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").field("compression", &self.compression).finish_non_exhaustive()
    }
}

const fn level(compression: Compression) -> i32 {
    match compression {
        Compression::Zstd(level) => level,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::record_columns::join;

    use super::{BlockKind, Codec, Compression, Packer};

    #[test]
    fn each_payload_gets_the_codec_that_suits_it() {
        let mut packer = Packer::new(Compression::default()).unwrap();
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4000).map(|_| byte()).collect();
        let twice = [noise.clone(), noise.clone()].concat();
        assert!(packer.pack(BlockKind::Process, &noise, &[]) == (Codec::Stored, noise.as_slice()));
        assert_eq!(packer.pack(BlockKind::Process, &twice, &[]).0, Codec::Zstd);
        // A copy, because data inside the prefix cannot refer to it.
        let part = noise[..1000].to_vec();
        let (codec, packed) = packer.pack(BlockKind::Process, &part, &noise);
        assert_eq!((codec, packed.len() < 100), (Codec::ZstdPrefix, true));
        // Zstandard would exceed the ratio that readers accept.
        assert_eq!(packer.pack(BlockKind::Process, &[7; 1 << 20], &[]).0, Codec::Lz4);
        assert_eq!(packer.pack(BlockKind::Process, &[], &[]), (Codec::Stored, [].as_slice()));
    }

    #[test]
    fn records_are_sorted_by_field_unless_they_repeat() {
        let (mut state, mut records) = (1_u64, Vec::new());
        for _ in 0..40_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // An allocation with size and address, and a free of the last block.
            records.extend([0x40, (state >> 40) as u8 | 1, (state >> 61) as u8 | 1, 0x80]);
        }
        for (compression, expected) in [
            (Compression::default(), Codec::ZstdColumns),
            (Compression::Lz4, Codec::Lz4Columns),
            (Compression::None, Codec::Stored),
        ] {
            let mut packer = Packer::new(compression).unwrap();
            assert_eq!(packer.pack(BlockKind::Records, &records, &[]).0, expected);
            let same = [0x70, 0x80].repeat(100_000);
            let (codec, _) = packer.pack(BlockKind::Records, &same, &[]);
            assert!(codec != Codec::ZstdColumns && codec != Codec::Lz4Columns);
        }
        let mut packer = Packer::new(Compression::default()).unwrap();
        // As a reader does.
        let columns =
            zstd::bulk::decompress(packer.pack(BlockKind::Records, &records, &[]).1, 2 * records.len()).unwrap();
        let mut joined = vec![0; records.len()];
        join(&columns, &mut joined).unwrap();
        assert!(joined == records);
        let with = packer.pack(BlockKind::Records, &records, &[]).1.len();
        let without = packer.pack(BlockKind::Process, &records, &[]).1.len();
        assert!(with * 10 < without * 9, "{with} {without}");
    }

    #[test]
    fn in_a_hurry_only_the_fastest_codec_is_used() {
        let text = b"a payload that repeats itself; ".repeat(100);
        let mut packer = Packer::new(Compression::default()).unwrap();
        packer.hurry(true);
        assert_eq!(packer.pack(BlockKind::Records, &text, &[]).0, Codec::Lz4);
        packer.hurry(false);
        assert!(packer.pack(BlockKind::Records, &text, &[]).0 != Codec::Lz4);
        let mut none = Packer::new(Compression::None).unwrap();
        none.hurry(true);
        assert_eq!(none.pack(BlockKind::Records, &text, &[]).0, Codec::Stored);
    }

    #[test]
    fn only_what_is_wanted_is_used() {
        let line = |number: u32| format!("frame {} of {}\n", number.wrapping_mul(number) % 997, number % 13);
        let text = (0..4000).map(line).collect::<String>().into_bytes();
        let with = |compression| {
            let mut packer = Packer::new(compression).unwrap();
            let (codec, packed) = packer.pack(BlockKind::Process, &text, &[]);
            (codec, packed.len())
        };
        let [none, lz4, fast, small] =
            [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)].map(with);
        assert_eq!((none, lz4.0, fast.0, small.0), ((Codec::Stored, text.len()), Codec::Lz4, Codec::Zstd, Codec::Zstd));
        assert!(lz4.1 < text.len() && small.1 < fast.1, "{lz4:?} {fast:?} {small:?}");
    }
}
