//! Prefix varints: the length is known from the first byte.
//!
//! The number of trailing zero bits of the first byte, plus one, is the length in bytes (1 to 9); the bits above that
//! marker are the value, little-endian, 7 to a byte. Nine bytes (a first byte of 0) carry 64 bits. Against LEB128 this
//! has no data-dependent loop, neither for the shim, which writes one in an unaligned store, nor for the reader.
//!
//! Invariant: every `u64` has exactly one encoding that [`read`] accepts as produced by [`encode`]; longer forms decode too.

use crate::WritableBytes;

/// The longest encoding, in bytes. A writer needs this much room whatever the value.
pub const MAX_LEN: usize = 9;

/// Maps signed to unsigned so that small magnitudes stay small: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
#[must_use]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// The inverse of [`zigzag`].
#[inline]
#[must_use]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// The encoding of `value` as a little-endian word and its length, for values under 2^56; `None` above.
#[inline]
#[must_use]
pub const fn encode(value: u64) -> Option<(u64, usize)> {
    let bits = 64 - (value | 1).leading_zeros();
    if bits > 56 {
        return None;
    }
    // bits.div_ceil(7) for 1 to 56 bits, without the division: the test below knows every length.
    let len = ((bits + 6) * 37) >> 8;
    Some(((value << len) | (1 << (len - 1)), len as usize))
}

/// Values below this one are short.
pub(crate) const SHORT: u64 = 1 << 28;

/// As [`encode`], of a short value. By comparisons: some processors take eight operations for the place of a leading bit.
#[inline(always)]
#[must_use]
pub(crate) const fn encode_short(value: u64) -> (u64, usize) {
    let more = (value >= 1 << 7) as u32 + (value >= 1 << 14) as u32 + (value >= 1 << 21) as u32;
    (((value << 1) | 1) << more, more as usize + 1)
}

/// Writes `value` at `at`; returns the position after it, or `None` when fewer than [`MAX_LEN`] bytes are left there.
#[inline(always)]
#[must_use]
pub fn write(buffer: &mut (impl WritableBytes + ?Sized), at: usize, value: u64) -> Option<usize> {
    if at > buffer.length().checked_sub(MAX_LEN)? {
        return None;
    }
    if let Some((word, len)) = encode(value) {
        buffer.put(at, word.to_le_bytes())?;
        return Some(at + len);
    }
    buffer.put(at, [0])?;
    buffer.put(at + 1, value.to_le_bytes())?;
    Some(at + MAX_LEN)
}

/// The length of the encoding with this first byte, in bytes.
#[inline]
#[must_use]
pub const fn length(first: u8) -> usize {
    first.trailing_zeros() as usize + 1
}

/// The value with this first byte; `word` has the bytes behind it, and perhaps others behind those.
#[inline(always)]
#[must_use]
pub const fn of_parts(first: u8, word: u64) -> u64 {
    let len = length(first);
    if len > 8 {
        return word;
    }
    ((word << 8 | first as u64) << (64 - 8 * len)) >> (64 - 7 * len)
}

/// Reads a value at `at`; returns it with the position after it, or `None` at the end of the bytes.
#[inline]
#[must_use]
pub fn read(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    if let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let len = word.trailing_zeros() as usize + 1;
        if len <= 8 {
            let value = (word << (64 - 8 * len)) >> (64 - 7 * len);
            return Some((value, at + len));
        }
    }
    read_slow(bytes, at)
}

/// Near the end of the bytes, and for nine-byte values.
#[cold]
fn read_slow(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    let len = first.trailing_zeros() as usize + 1;
    let mut word = [0; 8];
    if len > 8 {
        word.copy_from_slice(bytes.get(at + 1..at + MAX_LEN)?);
        return Some((u64::from_le_bytes(word), at + MAX_LEN));
    }
    let source = bytes.get(at..at + len)?;
    word[..len].copy_from_slice(source);
    Some((u64::from_le_bytes(word) >> len, at + len))
}

#[cfg(test)]
mod tests {
    use super::{MAX_LEN, SHORT, encode, encode_short, of_parts, read, unzigzag, write, zigzag};
    use proptest::prelude::*;

    #[test]
    fn lengths_are_minimal() {
        for bits in 0..64 {
            let value = 1u64 << bits;
            let mut buffer = [0; MAX_LEN];
            let expected = if bits >= 56 { 9 } else { bits as usize / 7 + 1 };
            assert_eq!(write(&mut buffer, 0, value), Some(expected), "1 << {bits}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut buffer = [0xff; 20];
            let end = write(&mut buffer, 3, value).unwrap();
            prop_assert_eq!(read(&buffer, 3), Some((value, end)));
            prop_assert_eq!(read(&buffer[..end], 3), Some((value, end)));
            prop_assert_eq!(read(&buffer[..end - 1], 3), None);
            let word = u64::from_le_bytes(*buffer[4..].first_chunk().unwrap());
            prop_assert_eq!(of_parts(buffer[3], word), value);
        }

        #[test]
        fn a_short_value_has_the_same_encoding(value in 0..SHORT, shift in 0u32..28) {
            prop_assert_eq!(Some(encode_short(value >> shift)), encode(value >> shift));
        }

        #[test]
        fn zigzag_round_trip(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
