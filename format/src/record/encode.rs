//! The encoder: from records to the bytes of a segment.
//!
//! It runs inside the tracked program's malloc. Each call writes one record at a position and returns the position
//! after it, or `None` if fewer than [`MAX_RECORD`](super::MAX_RECORD) bytes are left; what was written then does not
//! count, and the caller begins a new segment.
//!
//! Invariant: no allocation, no panic, and no byte is written beyond the given bytes.

mod definitions;
mod varied;

use std::hint::cold_path;

use super::byte_writer::{AllocHead, ByteWriter, address_delta, open};
use super::delta_state::{AgeByAddress, CallSite, DeltaState, SMALL, bin};
use super::{RawFrame, extra, tag};
use crate::varint::zigzag;
use crate::{Allocator, MapClass, WritableBytes};

/// The result of [`Encoder::expected_alloc`].
#[must_use = "the record may still have to be written, by Encoder::finish_alloc"]
#[derive(Debug)]
pub enum AllocStep {
    /// The record is written, up to here.
    Written(usize),
    /// There is no room for it.
    NoRoom,
    /// The size is not the expected one.
    SizeDiffers(PendingAlloc<false>),
    /// The size is the expected one, and the address is not.
    AddressDiffers(PendingAlloc<true>),
}

/// An allocation whose first step is done, and whose record [`Encoder::finish_alloc`] writes: as long as this is there, the
/// stream lacks it. `SIZE_EXPECTED`: its size was the expected one.
#[must_use = "Encoder::finish_alloc has to write the record"]
#[derive(Debug)]
pub struct PendingAlloc<const SIZE_EXPECTED: bool>(());

/// The beginning of a record of a rarer kind: see [`open`].
#[inline]
fn begin_extra<B: WritableBytes + ?Sized>(
    bytes: &mut B,
    at: usize,
    which: u8,
    texts: usize,
) -> Option<ByteWriter<'_, B>> {
    let mut out = open(bytes, at, texts)?;
    out.byte(tag::EXTRA)?;
    out.byte(which)?;
    Some(out)
}

/// Encodes the records of one stream.
#[derive(Debug)]
pub struct Encoder {
    state: DeltaState,
    ages: AgeByAddress,
    timed: bool,
    /// Bytes of the blocks of this segment that are not small, and of its mappings; of some twice.
    large_bytes: u64,
}

impl Encoder {
    /// An encoder whose first record must be [`Encoder::begin`].
    #[must_use]
    pub const fn new(timed: bool) -> Self {
        Self { state: DeltaState::new(), ages: AgeByAddress::new(), timed, large_bytes: 0 }
    }

    /// Whether records carry times, from the next segment on.
    pub const fn set_timed(&mut self, timed: bool) {
        self.timed = timed;
    }

    /// No less than the bytes of all blocks and mappings of the segment so far.
    #[must_use]
    pub const fn most_bytes(&self) -> u64 {
        (self.ages.count() as u64).saturating_mul(SMALL).saturating_add(self.large_bytes)
    }

    /// The size class of a block that is allocated. Small ones are counted by their ages.
    #[inline(always)]
    fn bin_of_new(&mut self, size: u64) -> usize {
        if size > SMALL {
            cold_path();
            self.large_bytes = self.large_bytes.saturating_add(size);
        }
        bin(size)
    }

    /// A segment begins.
    pub fn begin(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        ticket: u64,
        ticks: u64,
        tid: i32,
    ) -> Option<usize> {
        self.state.reset(ticket, ticks);
        self.ages.reset();
        self.large_bytes = 0;
        let mut out = begin_extra(bytes, at, if self.timed { extra::BEGIN_TIMED } else { extra::BEGIN }, 0)?;
        out.number(ticket)?;
        out.number(ticks)?;
        out.number(u64::from(tid.cast_unsigned()))?;
        Some(out.at())
    }

    /// See [`super::Record::Switch`].
    #[inline(always)]
    pub fn switch(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize, ticket: u64) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        out.byte(tag::SWITCH)?;
        out.number(ticket.wrapping_sub(self.state.ticket))?;
        self.state.ticket = ticket;
        Some(out.at())
    }

    /// See [`super::Record::Clock`].
    pub fn clock(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize, monotonic_us: u64) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::CLOCK, 0)?;
        out.number(monotonic_us.wrapping_sub(self.state.last_clock_us))?;
        self.state.last_clock_us = monotonic_us;
        Some(out.at())
    }

    /// See [`super::Record::Alloc`].
    #[inline(always)]
    pub fn alloc(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        head: impl Into<AllocHead>,
        address: u64,
        size: u64,
        time: u64,
    ) -> Option<usize> {
        let time = self.timed.then_some(time);
        self.alloc_as(bytes, at, head.into(), (address, size), time)
    }

    /// As [`Encoder::alloc`], where it is known whether the stream has times.
    #[inline(always)]
    pub fn alloc_as(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        head: AllocHead,
        block: (u64, u64),
        time: Option<u64>,
    ) -> Option<usize> {
        open(bytes, at, 0)?;
        match self.expected_alloc(|| &mut *bytes, at, head, block, time) {
            AllocStep::Written(at) => Some(at),
            AllocStep::NoRoom => None,
            AllocStep::SizeDiffers(pending) => {
                cold_path();
                self.finish_alloc(pending, bytes, at, head, block, time)
            }
            AllocStep::AddressDiffers(pending) => {
                cold_path();
                self.finish_alloc(pending, bytes, at, head, block, time)
            }
        }
    }

    /// The first step of [`Encoder::alloc_as`]: writes the record if size and address are as expected. There must be room
    /// for a record at this position. The bytes are asked for as late as they are needed: what is known early takes a
    /// register of the hook's for all the time.
    #[inline(always)]
    pub fn expected_alloc<'a, B: WritableBytes + ?Sized + 'a>(
        &mut self,
        bytes: impl FnOnce() -> &'a mut B,
        at: usize,
        head: AllocHead,
        (address, size): (u64, u64),
        time: Option<u64>,
    ) -> AllocStep {
        if !self.state.size_at(self.state.size_place(), size) {
            return AllocStep::SizeDiffers(PendingAlloc(()));
        }
        let bin = self.bin_of_new(size);
        if self.state.take_expected_address(bin) != address {
            return AllocStep::AddressDiffers(PendingAlloc(()));
        }
        self.state.replace_last(bin, address);
        self.ages.allocated(address, bin);
        let write = |mut out: ByteWriter<'_, B>| {
            out.head(head, tag::ALLOC_SIZE_EXPECTED | tag::ALLOC_ADDRESS_EXPECTED)?;
            self.stamp(&mut out, time)?;
            Some(out.at())
        };
        open(bytes(), at, 0).and_then(write).map_or(AllocStep::NoRoom, AllocStep::Written)
    }

    /// The second step, for the same position, head, block and time.
    #[inline(always)]
    pub fn finish_alloc<const SIZE_EXPECTED: bool>(
        &mut self,
        _pending: PendingAlloc<SIZE_EXPECTED>,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        head: AllocHead,
        (address, size): (u64, u64),
        time: Option<u64>,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        let bin = self.bin_of_new(size);
        let address_expected = !SIZE_EXPECTED && self.state.take_expected_address(bin) == address;
        let last = self.state.replace_last(bin, address);
        self.ages.allocated(address, bin);
        let size_bit = u8::from(SIZE_EXPECTED) * tag::ALLOC_SIZE_EXPECTED;
        let address_bit = u8::from(address_expected) * tag::ALLOC_ADDRESS_EXPECTED;
        out.head(head, size_bit | address_bit)?;
        if !SIZE_EXPECTED {
            out.short_number(size)?;
        }
        if !address_expected {
            out.short_number(address_delta(address, last))?;
        }
        self.stamp(&mut out, time)?;
        Some(out.at())
    }

    /// See [`super::Record::Free`].
    pub fn free(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        address: u64,
        time: u64,
    ) -> Option<usize> {
        let time = self.timed.then_some(time);
        self.free_as(bytes, at, address, time)
    }

    /// As [`Encoder::free`], where it is known whether the stream has times.
    #[inline(always)]
    pub fn free_as(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        address: u64,
        time: Option<u64>,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        if let Some((age, bin)) = self.ages.take(address) {
            self.state.freed(bin, address);
            if age < 128 {
                out.byte(tag::FREE_YOUNG | age as u8)?;
            } else {
                cold_path();
                out.byte(tag::FREE_OLDER)?;
                out.number(u64::from(age))?;
            }
        } else {
            cold_path();
            out.byte(tag::FREE)?;
            out.short_number(address_delta(address, self.state.last_freed))?;
            self.state.last_freed = address;
        }
        self.stamp(&mut out, time)?;
        Some(out.at())
    }

    /// See [`super::Record::Map`].
    pub fn map(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        (allocator, class): (Allocator, MapClass),
        (address, length): (u64, u64),
        time: u64,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::MAP, 0)?;
        out.byte(allocator as u8)?;
        out.byte(class as u8)?;
        self.large_bytes = self.large_bytes.saturating_add(length);
        self.range(&mut out, address, length, time)?;
        Some(out.at())
    }

    /// See [`super::Record::Unmap`].
    pub fn unmap(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        address: u64,
        length: u64,
        time: u64,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::UNMAP, 0)?;
        self.range(&mut out, address, length, time)?;
        Some(out.at())
    }

    /// See [`super::Record::RemapFrom`].
    pub fn remap_from(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        address: u64,
        length: u64,
        time: u64,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::REMAP_FROM, 0)?;
        self.range(&mut out, address, length, time)?;
        Some(out.at())
    }

    /// See [`super::Record::FailedAlloc`].
    pub fn failed_alloc(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        allocator: Allocator,
        size: u64,
        time: u64,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::FAILED_ALLOC, 0)?;
        out.byte(allocator as u8)?;
        out.number(size)?;
        self.time(&mut out, time)?;
        Some(out.at())
    }

    /// See [`super::Record::Pop`]; `newest` is the frame that is the newest then.
    #[inline(always)]
    pub fn pop(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        count: u32,
        newest: RawFrame,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        match count {
            0 => return Some(at),
            1..=16 => out.byte(tag::POP | (count.wrapping_sub(1) as u8 & 15))?,
            _ => {
                out.byte(tag::POP_MANY)?;
                out.number(u64::from(count))?;
            }
        }
        self.state.set_top(newest);
        Some(out.at())
    }

    /// See [`super::Record::Push`].
    #[inline(always)]
    pub fn push(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize, frame: RawFrame) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        let expected = self.state.expected_callee();
        if frame == expected {
            out.byte(tag::PUSH_EXPECTED)?;
        } else {
            if frame.code == expected.code {
                out.byte(tag::PUSH_EXPECTED_CODE)?;
            } else {
                out.byte(tag::PUSH)?;
                out.number(zigzag(i64::from(frame.code) - i64::from(self.state.last_code)))?;
            }
            out.number(u64::from(frame.instruction.wrapping_add(1)))?;
        }
        self.state.pushed(frame);
        Some(out.at())
    }

    /// See [`super::Record::DefineTop`].
    pub fn define_top(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        number: u32,
        frames: u32,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        out.byte(tag::DEFINE_TOP)?;
        out.number(u64::from(number))?;
        out.number(u64::from(frames))?;
        Some(out.at())
    }

    /// See [`super::Record::ReplaceTop`]; `newest` is of the frame that is the newest then. The number is below
    /// [`STACK_TOPS`](super::STACK_TOPS).
    #[inline(always)]
    pub fn replace_top(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        popped: u32,
        number: u32,
        newest: CallSite,
    ) -> Option<usize> {
        let mut out = open(bytes, at, 0)?;
        self.state.top = newest;
        if popped < 4 {
            // One store of four bytes; the next record begins at the last of them.
            out.three(u32::from(tag::REPLACE_TOP_AFTER) | popped | number << 8)?;
        } else {
            cold_path();
            out.byte(tag::REPLACE_TOP)?;
            out.number(u64::from(number))?;
            out.number(u64::from(popped))?;
        }
        Some(out.at())
    }

    /// See [`super::Record::FreeUndo`].
    pub fn free_undo(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize) -> Option<usize> {
        Self::bare(bytes, at, extra::FREE_UNDO)
    }

    /// See [`super::Record::UnmapUndo`].
    pub fn unmap_undo(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize) -> Option<usize> {
        Self::bare(bytes, at, extra::UNMAP_UNDO)
    }

    /// See [`super::Record::Truncated`].
    pub fn truncated(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        truncated: bool,
    ) -> Option<usize> {
        Self::bare(bytes, at, if truncated { extra::TRUNCATED } else { extra::NOT_TRUNCATED })
    }

    /// See [`super::Record::Finalizing`].
    pub fn finalizing(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize) -> Option<usize> {
        Self::bare(bytes, at, extra::FINALIZING)
    }

    /// See [`super::Record::ExecBegins`] and [`super::Record::ExecFailed`].
    pub fn exec(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize, failed: bool) -> Option<usize> {
        Self::bare(bytes, at, if failed { extra::EXEC_FAILED } else { extra::EXEC_BEGINS })
    }

    fn bare(bytes: &mut (impl WritableBytes + ?Sized), at: usize, which: u8) -> Option<usize> {
        let out = begin_extra(bytes, at, which, 0)?;
        Some(out.at())
    }

    fn range(
        &mut self,
        out: &mut ByteWriter<'_, impl WritableBytes + ?Sized>,
        address: u64,
        length: u64,
        time: u64,
    ) -> Option<()> {
        out.number(address_delta(address, self.state.last_mapped))?;
        out.number(length)?;
        self.state.last_mapped = address;
        self.time(out, time)
    }

    fn time(&mut self, out: &mut ByteWriter<'_, impl WritableBytes + ?Sized>, time: u64) -> Option<()> {
        let time = self.timed.then_some(time);
        self.stamp(out, time)
    }

    /// The time at the end of a record, where the stream has times.
    #[inline(always)]
    fn stamp(&mut self, out: &mut ByteWriter<'_, impl WritableBytes + ?Sized>, time: Option<u64>) -> Option<()> {
        let Some(time) = time else { return Some(()) };
        out.short_number(zigzag(time.wrapping_sub(self.state.last_time).cast_signed()))?;
        self.state.last_time = time;
        Some(())
    }
}
