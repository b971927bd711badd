//! Writes the bytes of a record: numbers, texts, the head of an allocation and differences of addresses.
//!
//! Invariant: no allocation, no panic, and no byte is written beyond the given bytes.

use std::hint::cold_path;

use super::tag;
use crate::Allocator;
use crate::WritableBytes;
use crate::varint::{self, zigzag};

/// Maximum size of a record without its texts, in bytes.
pub const MAX_RECORD: usize = 64;
/// Maximum size of a text, or of a part of a line table, in one record; longer texts are truncated, tables continue.
pub const MAX_TEXT: usize = 4096;

/// The first byte (or two) of an allocation's record, by allocator.
#[derive(Clone, Copy, Debug)]
pub struct AllocHead(u32);

impl AllocHead {
    /// Of this allocator.
    #[must_use]
    pub const fn of(allocator: Allocator) -> Self {
        let number = allocator as u8;
        let head = if number < Allocator::SHORT { [number, 0] } else { [Allocator::SHORT, number] };
        Self(u32::from_le_bytes([tag::ALLOC | head[0], head[1], 0, 0]))
    }
}

impl From<Allocator> for AllocHead {
    fn from(allocator: Allocator) -> Self {
        Self::of(allocator)
    }
}

/// Writes at a position in the bytes of a segment.
pub(super) struct ByteWriter<'a, B: ?Sized> {
    bytes: &'a mut B,
    at: usize,
}

impl<B: WritableBytes + ?Sized> ByteWriter<'_, B> {
    #[inline]
    pub(super) fn byte(&mut self, value: u8) -> Option<()> {
        self.bytes.put(self.at, [value])?;
        self.at += 1;
        Some(())
    }

    /// Writes the lower three bytes.
    #[inline(always)]
    pub(super) fn three(&mut self, value: u32) -> Option<()> {
        self.bytes.put(self.at, value.to_le_bytes())?;
        self.at += 3;
        Some(())
    }

    /// Writes eight bytes, of which the first `length` count.
    #[inline(always)]
    pub(super) fn put_word(&mut self, word: u64, length: usize) -> Option<()> {
        self.bytes.put(self.at, word.to_le_bytes())?;
        self.at += length;
        Some(())
    }

    /// Writes the beginning of an allocation's record with these bits in its first byte.
    #[inline(always)]
    pub(super) fn head(&mut self, AllocHead(head): AllocHead, bits: u8) -> Option<()> {
        let [first, second, ..] = head.to_le_bytes();
        self.byte(first | bits)?;
        if head > 0xff {
            cold_path();
            self.byte(second)?;
        }
        Some(())
    }

    #[inline(always)]
    pub(super) fn number(&mut self, value: u64) -> Option<()> {
        self.at = varint::write(self.bytes, self.at, value)?;
        Some(())
    }

    /// As [`number`](Self::number), where nearly all are short.
    #[inline(always)]
    pub(super) fn short_number(&mut self, value: u64) -> Option<()> {
        if value >= varint::SHORT {
            cold_path();
            return self.number(value);
        }
        let (word, length) = varint::encode_short(value);
        self.put_word(word, length)
    }

    /// The position after what was written.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn text(&mut self, text: &[u8]) -> Option<()> {
        let text = text.get(..text.len().min(MAX_TEXT))?;
        self.number(text.len() as u64)?;
        self.bytes.put_text(self.at, text)?;
        self.at += text.len();
        Some(())
    }
}

/// A writer at this position, if there is room for a record whose texts have `texts` bytes together. Written in this form,
/// the comparison lets the compiler drop the bounds checks of the writes that follow where the length of `bytes` is constant.
#[inline]
pub(super) fn open<B: WritableBytes + ?Sized>(bytes: &mut B, at: usize, texts: usize) -> Option<ByteWriter<'_, B>> {
    let last = bytes.length().checked_sub(MAX_RECORD)?.checked_sub(texts)?;
    (at <= last).then_some(ByteWriter { bytes, at })
}

/// The difference of two addresses: see the module table of [`super`].
#[inline]
pub(super) fn address_delta(address: u64, last: u64) -> u64 {
    if (address | last) & 15 == 0 {
        // `zigzag(difference >> 4) << 1`, of a multiple of 16.
        let difference = address.wrapping_sub(last).cast_signed();
        ((difference >> 2) ^ (difference >> 63 << 1)).cast_unsigned()
    } else {
        // 63 bits hold every difference of two user-space addresses.
        (zigzag(address.wrapping_sub(last).cast_signed()) << 1) | 1
    }
}
