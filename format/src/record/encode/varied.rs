//! Encodes without branches what is different at nearly every event: the size and the address of a block, and the instruction
//! of the newest frame.
//!
//! Where the stack has changed, size and address are rarely the expected ones, and a processor that predicts so and so
//! often wrongly loses more time than it takes to encode both.
//!
//! Invariant: the bytes are those of [`Encoder::alloc_as`] and [`Encoder::move_top`].

use std::hint::{cold_path, select_unpredictable};

use super::Encoder;
use crate::record::byte_writer::{AllocHead, ByteWriter, address_delta, open};
use crate::record::tag;
use crate::varint::{self, zigzag};
use crate::{WritableBytes, record::RawFrame};

impl Encoder {
    /// As [`Encoder::alloc_as`], at the same price whether size and address are the expected ones or not.
    #[inline(always)]
    pub fn alloc_varied(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        head: AllocHead,
        (address, size): (u64, u64),
        time: Option<u64>,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        let bin = self.bin_of_new(size);
        let size_expected = self.state.size_at(self.state.size_place(), size);
        let address_expected = self.state.take_expected_address(bin) == address;
        let last = self.state.replace_last(bin, address);
        self.ages.allocated(address, bin);
        let size_bit = u8::from(size_expected) * tag::ALLOC_SIZE_EXPECTED;
        let address_bit = u8::from(address_expected) * tag::ALLOC_ADDRESS_EXPECTED;
        out.head(head, size_bit | address_bit)?;
        if !(size_expected & address_expected) {
            out.number_unless(size_expected, size)?;
            out.number_unless(address_expected, address_delta(address, last))?;
        }
        self.stamp(&mut out, time)?;
        Some(out.at())
    }

    /// See [`Record::Move`](crate::record::Record::Move).
    #[inline(always)]
    pub fn move_top(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        instruction: u32,
    ) -> Option<usize> {
        if let Some(at) = self.move_top_near(bytes, at, instruction) {
            return Some(at);
        }
        cold_path();
        let mut out = open(bytes, at, 0)?;
        let top = self.state.top.frame;
        out.byte(tag::MOVE_FAR)?;
        out.number(zigzag(i64::from(instruction) - i64::from(top.instruction)))?;
        self.state.set_top(RawFrame { instruction, ..top });
        Some(out.at())
    }

    /// As [`Encoder::move_top`], if the new instruction is as close to the old one as in nearly every function. `None`:
    /// nothing has been done.
    #[inline(always)]
    pub fn move_top_near(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        instruction: u32,
    ) -> Option<usize> {
        open(bytes, at, 0)?;
        let top = self.state.top.frame;
        let delta = i64::from(instruction) - i64::from(top.instruction);
        let units = zigzag(delta >> 1);
        let far = zigzag(delta);
        if far >= varint::SHORT {
            return None;
        }
        let (far, far_length) = varint::encode_short(far);
        let is_near = (delta & 1 == 0) & (units < 32);
        let near = u64::from(tag::MOVE) | units;
        let word = select_unpredictable(is_near, near, u64::from(tag::MOVE_FAR) | far << 8);
        bytes.put(at, word.to_le_bytes())?;
        self.state.set_top(RawFrame { instruction, ..top });
        Some(at + select_unpredictable(is_near, 1, 1 + far_length))
    }
}

impl<B: WritableBytes + ?Sized> ByteWriter<'_, B> {
    /// Writes a number, or nothing where it is expected.
    #[inline(always)]
    fn number_unless(&mut self, is_expected: bool, value: u64) -> Option<()> {
        if value >= varint::SHORT {
            cold_path();
            return if is_expected { Some(()) } else { self.number(value) };
        }
        let (word, length) = varint::encode_short(value);
        self.put_word(word, select_unpredictable(is_expected, 0, length))
    }
}
