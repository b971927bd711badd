//! Compression of large columns: a Zstandard frame for each, since the statistics and repetitions of one kind of field alone
//! make it smaller than all of them in one frame, in less time.
//!
//! Level 1 takes half of the time of level 3. Of programs in C, C++ and Rust its result is as small; of Python's, whose
//! calls recur, it is not. So both are tried on a payload now and then, and decide about those that follow.
//!
//! Invariant: the frames, one after the other, are of the parts that were given.

use std::io;

use zstd::bulk::Compressor;

/// The level that is tried in place of the chosen one, where that is higher and at most [`HIGHEST`].
const FAST: i32 = 1;
/// Who asks for a higher level wants few bytes.
const HIGHEST: i32 = 3;
/// Payloads until both are tried again.
const STRETCH: u32 = 32;
/// The fast level may take more by one in so many bytes.
const TOLERANCE: usize = 32;

/// Compresses the columns of payloads.
pub(crate) struct ColumnFrames {
    /// `None`: the fast level is never taken.
    fast: Option<Compressor<'static>>,
    /// Whether it is now.
    is_fast: bool,
    /// Payloads until that is decided again.
    left: u32,
}

impl ColumnFrames {
    /// For captures of this level.
    pub(crate) fn new(level: i32) -> io::Result<Self> {
        let fast = (FAST + 1..=HIGHEST).contains(&level).then(|| Compressor::new(FAST)).transpose()?;
        Ok(Self { fast, is_fast: false, left: 0 })
    }

    /// Compresses these parts into `out`, with `chosen` or fast; the length. `None`: there is no room for it.
    pub(crate) fn compress(
        &mut self,
        parts: &[&[u8]],
        chosen: &mut Compressor<'static>,
        out: &mut [u8],
    ) -> Option<usize> {
        let Some(fast) = &mut self.fast else { return frames(parts, chosen, out) };
        if self.left > 0 {
            self.left -= 1;
            return frames(parts, if self.is_fast { fast } else { chosen }, out);
        }
        self.left = STRETCH;
        let length = frames(parts, fast, out)?;
        let smaller = frames(parts, chosen, out)?;
        self.is_fast = length.saturating_sub(smaller) <= smaller / TOLERANCE;
        Some(smaller)
    }
}

fn frames(parts: &[&[u8]], compressor: &mut Compressor<'static>, out: &mut [u8]) -> Option<usize> {
    parts
        .iter()
        .try_fold(0, |length, part| Some(length + compressor.compress_to_buffer(part, out.get_mut(length..)?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::{ColumnFrames, STRETCH};
    use zstd::bulk::{Compressor, decompress};

    /// Noise, or words of noise that recur, which are shorter than those that the fast level finds.
    fn column(recurs: bool) -> Vec<u8> {
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..60_000).map(|_| byte()).collect();
        let words: Vec<&[u8]> = noise.chunks_exact(6).take(100).collect();
        if recurs { noise.iter().flat_map(|&at| words[usize::from(at) % 100]).copied().collect() } else { noise }
    }

    #[test]
    fn the_fast_level_is_taken_where_it_is_as_small() {
        let (mut chosen, mut out) = (Compressor::new(3).unwrap(), vec![0; 1 << 20]);
        for recurs in [false, true] {
            let column = column(recurs);
            let (parts, mut frames) = ([&column[..], b"tail"], ColumnFrames::new(3).unwrap());
            let lengths = [(); 3].map(|()| frames.compress(&parts, &mut chosen, &mut out).unwrap());
            assert_eq!(decompress(&out[..lengths[2]], 1 << 20).unwrap(), parts.concat());
            assert_eq!((frames.is_fast, frames.left), (!recurs, STRETCH - 2), "{lengths:?}");
            assert_eq!(lengths[1], if recurs { lengths[0] } else { lengths[2] });
        }
    }

    #[test]
    fn other_levels_are_as_they_were_chosen() {
        for level in [-1, 1, 4, 19] {
            assert!(ColumnFrames::new(level).unwrap().fast.is_none(), "{level}");
        }
    }

    #[test]
    fn without_room_there_is_no_result() {
        let mut frames = ColumnFrames::new(3).unwrap();
        assert_eq!(frames.compress(&[&column(false)], &mut Compressor::new(3).unwrap(), &mut [0; 100]), None);
    }
}
