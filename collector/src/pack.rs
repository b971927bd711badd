//! Compression of payloads: tries the codecs of the chosen compression in turn.
//!
//! Invariant: the result is smaller than the payload, within `memtrack_format::block::MAX_RATIO`, or else the payload itself.

use std::{fmt, io};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use memtrack_format::block::{Codec, MAX_RATIO, prefix};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

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
    zstd: Compressor<'static>,
    lz4: CompressTable,
    packed: Vec<u8>,
}

impl Packer {
    /// A packer with this compression.
    ///
    /// # Errors
    /// When there is no memory for a compressor.
    pub fn new(compression: Compression) -> io::Result<Self> {
        let zstd = Compressor::new(level(compression))?;
        Ok(Self { compression, zstd, lz4: CompressTable::large(), packed: Vec::new() })
    }

    /// The payload as it is to be stored; `before`: the earlier bytes of its group.
    pub fn pack<'a>(&'a mut self, payload: &'a [u8], before: &[u8]) -> (Codec, &'a [u8]) {
        let room = compress_bound(payload.len()).max(get_maximum_output_size(payload.len()));
        self.packed.resize(self.packed.len().max(room), 0);
        for &codec in codecs(self.compression) {
            let Some(len) = self.with(codec, payload, before) else { continue };
            if len < payload.len() && payload.len() <= len.saturating_mul(MAX_RATIO as usize) {
                return (codec, self.packed.get(..len).unwrap_or_default());
            }
        }
        (Codec::Stored, payload)
    }

    /// Compresses into `packed`; the length.
    fn with(&mut self, codec: Codec, payload: &[u8], before: &[u8]) -> Option<usize> {
        match codec {
            Codec::ZstdPrefix if before.is_empty() => None,
            Codec::ZstdPrefix => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(level(self.compression))).ok()?;
                context.ref_prefix(prefix(before)).ok()?;
                context.compress2(self.packed.as_mut_slice(), payload).ok()
            }
            Codec::Zstd => self.zstd.compress_to_buffer(payload, self.packed.as_mut_slice()).ok(),
            Codec::Lz4 => compress_into_with_table(payload, &mut self.packed, &mut self.lz4).ok(),
            Codec::Stored => None,
        }
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").field("compression", &self.compression).finish_non_exhaustive()
    }
}

/// The codecs to try, until a result is smaller and within the ratio.
const fn codecs(compression: Compression) -> &'static [Codec] {
    match compression {
        Compression::None => &[],
        Compression::Lz4 => &[Codec::Lz4],
        Compression::Zstd(_) => &[Codec::ZstdPrefix, Codec::Zstd, Codec::Lz4],
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
    use super::{Codec, Compression, Packer};

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
        assert!(packer.pack(&noise, &[]) == (Codec::Stored, noise.as_slice()));
        assert_eq!(packer.pack(&twice, &[]).0, Codec::Zstd);
        // A copy, because data inside the prefix cannot refer to it.
        let part = noise[..1000].to_vec();
        let (codec, packed) = packer.pack(&part, &noise);
        assert_eq!((codec, packed.len() < 100), (Codec::ZstdPrefix, true));
        // Zstandard would exceed the ratio that readers accept.
        assert_eq!(packer.pack(&[7; 1 << 20], &[]).0, Codec::Lz4);
        assert_eq!(packer.pack(&[], &[]), (Codec::Stored, [].as_slice()));
    }

    #[test]
    fn only_what_is_wanted_is_used() {
        let line = |number: u32| format!("frame {} of {}\n", number.wrapping_mul(number) % 997, number % 13);
        let text = (0..4000).map(line).collect::<String>().into_bytes();
        let with = |compression| {
            let mut packer = Packer::new(compression).unwrap();
            let (codec, packed) = packer.pack(&text, &[]);
            (codec, packed.len())
        };
        let [none, lz4, fast, small] =
            [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)].map(with);
        assert_eq!((none, lz4.0, fast.0, small.0), ((Codec::Stored, text.len()), Codec::Lz4, Codec::Zstd, Codec::Zstd));
        assert!(lz4.1 < text.len() && small.1 < fast.1, "{lz4:?} {fast:?} {small:?}");
    }
}
