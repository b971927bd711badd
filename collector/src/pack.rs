//! Payloads made small: the codec that suits each.
//!
//! Invariant: what is packed is plausible (see `memtrack_format::block::MAX_RATIO`), and smaller than the payload or the
//! payload itself.

use std::io;

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use memtrack_format::block::{Codec, MAX_RATIO, prefix};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

/// What Zstandard is asked for: clearly smaller than 1, and hardly slower.
const LEVEL: i32 = 3;

/// Compressors with their memory.
pub(crate) struct Packer {
    zstd: Compressor<'static>,
    lz4: CompressTable,
    packed: Vec<u8>,
}

impl Packer {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { zstd: Compressor::new(LEVEL)?, lz4: CompressTable::large(), packed: Vec::new() })
    }

    /// The payload as it is to be stored, behind `before` in its group.
    pub(crate) fn pack<'a>(&'a mut self, payload: &'a [u8], before: &[u8]) -> (Codec, &'a [u8]) {
        let room = compress_bound(payload.len()).max(get_maximum_output_size(payload.len()));
        self.packed.resize(self.packed.len().max(room), 0);
        for codec in [Codec::ZstdPrefix, Codec::Zstd, Codec::Lz4] {
            let Some(len) = self.with(codec, payload, before) else { continue };
            if len < payload.len() && payload.len() <= len.saturating_mul(MAX_RATIO as usize) {
                return (codec, self.packed.get(..len).unwrap_or_default());
            }
        }
        (Codec::Stored, payload)
    }

    /// Into `packed`.
    fn with(&mut self, codec: Codec, payload: &[u8], before: &[u8]) -> Option<usize> {
        match codec {
            Codec::ZstdPrefix if before.is_empty() => None,
            Codec::ZstdPrefix => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
                context.ref_prefix(prefix(before)).ok()?;
                context.compress2(self.packed.as_mut_slice(), payload).ok()
            }
            Codec::Zstd => self.zstd.compress_to_buffer(payload, self.packed.as_mut_slice()).ok(),
            Codec::Lz4 => compress_into_with_table(payload, &mut self.packed, &mut self.lz4).ok(),
            Codec::Stored => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Codec, Packer};

    #[test]
    fn each_payload_gets_the_codec_that_suits_it() {
        let mut packer = Packer::new().unwrap();
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4000).map(|_| byte()).collect();
        let twice = [noise.clone(), noise.clone()].concat();
        assert!(packer.pack(&noise, &[]) == (Codec::Stored, noise.as_slice()));
        assert_eq!(packer.pack(&twice, &[]).0, Codec::Zstd);
        // A copy: what lies in the prefix itself cannot refer to it.
        let part = noise[..1000].to_vec();
        let (codec, packed) = packer.pack(&part, &noise);
        assert_eq!((codec, packed.len() < 100), (Codec::ZstdPrefix, true));
        // Zstandard would make more of less than a reader may believe.
        assert_eq!(packer.pack(&[7; 1 << 20], &[]).0, Codec::Lz4);
        assert_eq!(packer.pack(&[], &[]), (Codec::Stored, [].as_slice()));
    }
}
