//! The decoder: from the bytes of a segment, or columns of them, to records.
//!
//! Invariant: any bytes give records and then an end or an error. The decoder allocates nothing but the stack of frames,
//! which grows by at most [`MAX_TOP`](super::MAX_TOP) frames per two bytes, and [`STACK_TOPS`](super::STACK_TOPS) stack tops.

use std::hint::cold_path;

use super::delta_state::{BlockByAge, DeltaState, address, bin};
use super::group_model::GroupModel;
use super::location::LastLocation;
use super::stack_tops::{PlacedTop, StackTops};
use super::{
    AllocationCount, BlockRecord, CodeHead, FieldSource, LineTableFormat, ModuleRecord, RawFrame, Record, RecordBytes,
    column, extra, tag,
};
use crate::varint::unzigzag;
use crate::{Allocator, MapClass};

/// Where and why decoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Byte offset of the record in the segment.
    pub offset: usize,
    /// A description of the bytes there.
    pub found: &'static str,
}

/// Decodes the records of one segment, given whole or in pieces.
#[derive(Debug)]
pub struct Decoder {
    pub(super) state: DeltaState,
    pub(super) recent: BlockByAge,
    /// In a group whose addresses are written by it.
    pub(super) group: Option<Box<GroupModel>>,
    pub(super) timed: bool,
    /// A segment of version 3 or earlier: sizes are predicted by the call site alone.
    sizes_by_site: bool,
    pub(super) stack: Vec<RawFrame>,
    tops: StackTops,
    /// The top that the newest frames are, if they are one.
    placed: Option<PlacedTop>,
    /// How many of its oldest frames have not changed since the last call of `take_unchanged_frames`.
    pub(super) unchanged_frames: usize,
    located: LastLocation,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The first bytes of Alloc and Free records.
macro_rules! block_tags {
    () => {
        tag::ALLOC..=u8::MAX | tag::FREE | tag::FREE_OLDER
    };
}

/// ReplaceTop after three frames have left.
const REPLACE_TOP_LAST: u8 = tag::REPLACE_TOP_AFTER | 3;

/// The first bytes of the records that change the stack, or name a part of it.
macro_rules! stack_tags {
    () => {
        tag::POP..tag::ALLOC | tag::PUSH_EXPECTED..=tag::POP_MANY | tag::DEFINE_TOP..=REPLACE_TOP_LAST
    };
}

impl Decoder {
    /// A decoder at the start of a segment.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: DeltaState::new(),
            recent: BlockByAge::new(),
            group: None,
            timed: false,
            sizes_by_site: false,
            stack: Vec::new(),
            tops: StackTops::new(),
            placed: None,
            unchanged_frames: 0,
            located: LastLocation::new(),
        }
    }

    /// Whether the records that come next carry times.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        self.timed
    }

    /// The record at `at` and the position after it; `Ok(None)` at the end of the bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn next<'a>(&mut self, bytes: &'a [u8], at: usize) -> Result<Option<(Record<'a>, usize)>, DecodeError> {
        let mut fields = RecordBytes::at(bytes, at);
        Ok(self.read(&mut fields)?.map(|record| (record, fields.offset())))
    }

    /// The next record; `Ok(None)` at the end.
    ///
    /// # Errors
    /// A [`DecodeError`] where there is no record or an incomplete one; nothing after it can be decoded.
    #[inline]
    pub fn read<'a>(&mut self, fields: &mut impl FieldSource<'a>) -> Result<Option<Record<'a>>, DecodeError> {
        let offset = fields.offset();
        match fields.first() {
            Some(first) => match self.record(fields, first) {
                Some(record) => Ok(Some(record)),
                None => Err(damaged(offset, first)),
            },
            None if fields.is_at_end() => Ok(None),
            None => Err(DecodeError { offset, found: "fields of no record" }),
        }
    }

    /// Fast path: decodes stack changes up to the next Alloc or Free record, and passes it. `Ok(None)` if another record or
    /// the end comes first, which [`read`](Self::read) then returns.
    ///
    /// Nearly all records are of these kinds. Inlined, their fields stay in registers; a [`Record`] is stored field by field
    /// and loaded as a whole, which fails store forwarding and took 40 % of the time of decoding.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline(always)]
    pub fn read_block<'a>(&mut self, fields: &mut impl FieldSource<'a>) -> Result<Option<BlockRecord>, DecodeError> {
        Ok(self.read_block_after(fields)?.map(|(_, block)| block))
    }

    /// The same, and where that record begins.
    #[inline(always)]
    pub(super) fn read_block_after<'a>(
        &mut self,
        fields: &mut impl FieldSource<'a>,
    ) -> Result<Option<(usize, BlockRecord)>, DecodeError> {
        while let Some(first) = fields.first() {
            let offset = fields.offset();
            match first {
                block_tags!() => match self.block_record(fields, first) {
                    Some(block) => return Ok(Some((offset, block))),
                    None => return Err(damaged(offset, first)),
                },
                stack_tags!() => self.read_stack_change(fields, first)?,
                _ => break,
            }
        }
        Ok(None)
    }

    /// Whether a record with this first byte changes the stack, or names a part of it.
    #[inline(always)]
    pub(crate) const fn is_of_stack(first: u8) -> bool {
        matches!(first, stack_tags!())
    }

    /// Reads a record of the stack, whose first byte is `first`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline(always)]
    pub(crate) fn read_stack_change<'a>(
        &mut self,
        fields: &mut impl FieldSource<'a>,
        first: u8,
    ) -> Result<(), DecodeError> {
        let offset = fields.offset();
        if self.stack_record(fields, first).is_none() {
            return Err(damaged(offset, first));
        }
        Ok(())
    }

    /// How many of the oldest frames of the stack have not changed since the last call.
    #[inline]
    pub fn take_unchanged_frames(&mut self) -> usize {
        std::mem::replace(&mut self.unchanged_frames, self.stack.len())
    }

    /// The current stack, oldest frame first.
    #[must_use]
    pub fn stack(&self) -> &[RawFrame] {
        &self.stack
    }

    /// The stack top that the newest frames are, where the last change of the stack has put it there.
    #[inline]
    #[must_use]
    pub const fn placed_top(&self) -> Option<PlacedTop> {
        self.placed
    }

    #[inline]
    fn record<'a>(&mut self, input: &mut impl FieldSource<'a>, first: u8) -> Option<Record<'a>> {
        match first {
            block_tags!() => Some(match self.block_record(input, first)? {
                BlockRecord { allocator: Some(allocator), address, size, time } => {
                    Record::Alloc { allocator, address, size, time }
                }
                BlockRecord { allocator: None, address, time, .. } => Record::Free { address, time },
            }),
            stack_tags!() => self.stack_record(input, first),
            tag::SWITCH => {
                input.pass_first();
                self.state.ticket = self.state.ticket.wrapping_add(input.number(column::TICKET)?);
                Some(Record::Switch { ticket: self.state.ticket })
            }
            tag::EXTRA => {
                input.pass_first();
                self.extra(input)
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn block_record<'a>(&mut self, input: &mut impl FieldSource<'a>, first: u8) -> Option<BlockRecord> {
        input.pass_first();
        if first & tag::FREE_YOUNG != 0 {
            return self.free(input, usize::from(first & 0x7f));
        }
        if first & tag::ALLOC != 0 {
            return self.alloc(input, first);
        }
        if first == tag::FREE_OLDER {
            let age = usize::try_from(input.number(column::AGE)?).ok()?;
            return self.free(input, age);
        }
        if let Some(group) = &mut self.group {
            let address = group.decode_other(input.number(column::FREED)?);
            return Some(BlockRecord { allocator: None, address, size: 0, time: self.time(input, true)? });
        }
        let address = address(input.number(column::FREED)?, self.state.last_freed);
        // The encoder did not find its age.
        self.state.last_freed = address;
        Some(BlockRecord { allocator: None, address, size: 0, time: self.time(input, true)? })
    }

    #[inline(always)]
    fn stack_record<'a>(&mut self, input: &mut impl FieldSource<'a>, first: u8) -> Option<Record<'a>> {
        input.pass_first();
        input.note_stack_change();
        if first & tag::MOVE != 0 {
            return self.moved(unzigzag(u64::from(first & 31)) * 2);
        }
        if first & tag::POP != 0 {
            return self.pop(u32::from(first & 15) + 1);
        }
        match first {
            tag::PUSH_EXPECTED => self.push(self.state.expected_callee()),
            tag::PUSH_EXPECTED_CODE => {
                let frame = RawFrame {
                    instruction: input.small(column::INSTRUCTION)?.wrapping_sub(1),
                    ..self.state.expected_callee()
                };
                self.push(frame)
            }
            tag::PUSH => {
                let difference = unzigzag(input.number(column::CODE)?);
                let code = u32::try_from(i64::from(self.state.last_code).checked_add(difference)?).ok()?;
                let frame = RawFrame { code, instruction: input.small(column::INSTRUCTION)?.wrapping_sub(1) };
                self.push(frame)
            }
            tag::MOVE_FAR => self.moved(unzigzag(input.number(column::MOVE)?)),
            tag::POP_MANY => self.pop(input.small(column::COUNT)?),
            tag::DEFINE_TOP => self.define_top(input.small(column::STACK_TOP)?, input.small(column::COUNT)?),
            tag::REPLACE_TOP => {
                let (number, popped) = (input.small(column::STACK_TOP)?, input.small(column::COUNT)?);
                self.replace_top(number, popped)
            }
            _ => {
                let [low, high] = [input.byte(column::STACK_TOP)?, input.byte(column::STACK_TOP + 1)?];
                self.replace_top(u32::from(low) | u32::from(high) << 8, u32::from(first & 3))
            }
        }
    }

    #[inline(always)]
    fn alloc<'a>(&mut self, input: &mut impl FieldSource<'a>, first: u8) -> Option<BlockRecord> {
        let allocator = match first & 15 {
            Allocator::SHORT => {
                Allocator::from_number(input.byte(column::BYTE)?).filter(|one| *one as u8 > Allocator::SHORT)?
            }
            short => Allocator::from_number(short)?,
        };
        let place = if self.sizes_by_site {
            cold_path();
            self.state.size_place_by_site()
        } else {
            self.state.size_place()
        };
        let size = if first & tag::ALLOC_SIZE_EXPECTED != 0 {
            self.state.expected_size(place)
        } else {
            input.number(column::SIZE)?
        };
        let bin = bin(size);
        if let Some(group) = &mut self.group {
            let number =
                if first & tag::ALLOC_ADDRESS_EXPECTED != 0 { None } else { Some(input.number(column::ADDRESS)?) };
            let address = group.decode(bin, number)?;
            self.state.size_at(place, size);
            return Some(BlockRecord { allocator: Some(allocator), address, size, time: self.time(input, false)? });
        }
        let expected = self.state.take_expected_address(bin);
        let expected = (first & tag::ALLOC_ADDRESS_EXPECTED != 0).then_some(expected);
        let address = match expected {
            Some(address) => address,
            None => address(input.number(column::ADDRESS)?, self.state.last_of(bin)),
        };
        self.state.size_at(place, size);
        self.state.replace_last(bin, address);
        self.recent.allocated(address, bin);
        Some(BlockRecord { allocator: Some(allocator), address, size, time: self.time(input, false)? })
    }

    #[inline(always)]
    fn free<'a>(&mut self, input: &mut impl FieldSource<'a>, age: usize) -> Option<BlockRecord> {
        let address = match &mut self.group {
            Some(group) => group.free(age)?,
            None => {
                let (address, bin) = self.recent.at(age)?;
                self.state.freed(bin, address);
                address
            }
        };
        Some(BlockRecord { allocator: None, address, size: 0, time: self.time(input, true)? })
    }

    #[inline]
    fn push<'a>(&mut self, frame: RawFrame) -> Option<Record<'a>> {
        self.state.pushed(frame);
        self.stack.push(frame);
        self.placed = None;
        Some(Record::Push(frame))
    }

    #[inline]
    fn pop<'a>(&mut self, count: u32) -> Option<Record<'a>> {
        let depth = self.stack.len().checked_sub(count as usize)?;
        self.stack.truncate(depth);
        self.unchanged_frames = self.unchanged_frames.min(depth);
        self.placed = None;
        self.state.set_top(self.stack.last().copied().unwrap_or(RawFrame::NONE));
        Some(Record::Pop { count })
    }

    #[inline]
    fn moved<'a>(&mut self, delta: i64) -> Option<Record<'a>> {
        let top = self.stack.last_mut()?;
        top.instruction = u32::try_from(i64::from(top.instruction).checked_add(delta)?).ok()?;
        let top = *top;
        self.unchanged_frames = self.unchanged_frames.min(self.stack.len() - 1);
        self.placed = None;
        self.state.set_top(top);
        Some(Record::Move { instruction: top.instruction })
    }

    #[cold]
    fn define_top<'a>(&mut self, number: u32, frames: u32) -> Option<Record<'a>> {
        let first = self.stack.len().checked_sub(frames as usize)?;
        self.tops.define(number, self.stack.get(first..)?)?;
        Some(Record::DefineTop { number, frames })
    }

    #[inline]
    fn replace_top<'a>(&mut self, number: u32, popped: u32) -> Option<Record<'a>> {
        let top = self.tops.get(number)?;
        let depth = self.stack.len().checked_sub(popped as usize)?;
        self.stack.truncate(depth);
        // As many as a top can have: a few moves, where a copy of the few that it has would be a call.
        self.stack.extend_from_slice(&top.frames);
        self.stack.truncate(depth + top.length);
        self.unchanged_frames = self.unchanged_frames.min(depth);
        self.placed = Some(top.placed(number, depth));
        self.state.top = top.newest;
        Some(Record::ReplaceTop { number, popped })
    }

    fn extra<'a>(&mut self, input: &mut impl FieldSource<'a>) -> Option<Record<'a>> {
        Some(match input.byte(column::BYTE)? {
            which @ (extra::BEGIN_3 | extra::BEGIN) => self.begin(input, which, false)?,
            which @ (extra::BEGIN_3_TIMED | extra::BEGIN_TIMED) => self.begin(input, which, true)?,
            // Once, since a model is large.
            extra::GROUP_BEGINS if self.group.is_none() => {
                self.group = Some(Box::default());
                Record::GroupBegins
            }
            extra::FREE_UNDO => Record::FreeUndo,
            extra::MAP => {
                let (allocator, class) = (
                    Allocator::from_number(input.byte(column::BYTE)?)?,
                    MapClass::from_number(input.byte(column::BYTE)?)?,
                );
                let (address, length, time) = self.range(input)?;
                Record::Map { allocator, class, address, length, time }
            }
            extra::UNMAP => {
                let (address, length, time) = self.range(input)?;
                Record::Unmap { address, length, time }
            }
            extra::REMAP_FROM => {
                let (address, length, time) = self.range(input)?;
                Record::RemapFrom { address, length, time }
            }
            extra::UNMAP_UNDO => Record::UnmapUndo,
            extra::FAILED_ALLOC => Record::FailedAlloc {
                allocator: Allocator::from_number(input.byte(column::BYTE)?)?,
                size: input.other()?,
                time: self.time(input, false)?,
            },
            extra::COUNTED => Record::Counted(AllocationCount {
                stretch: input.other()?,
                allocations: input.other()?,
                bytes: input.other()?,
            }),
            extra::SAMPLE_DISTANCE => Record::SampleDistance(input.other()?),
            extra::TRUNCATED => Record::Truncated(true),
            extra::NOT_TRUNCATED => Record::Truncated(false),
            extra::FINALIZING => Record::Finalizing,
            extra::EXEC_BEGINS => Record::ExecBegins,
            extra::EXEC_FAILED => Record::ExecFailed,
            extra::THREAD_NAME => Record::ThreadName { tid: input.other_small()?.cast_signed(), name: input.text()? },
            extra::PYTHON_NAME => Record::PythonName { tid: input.other_small()?.cast_signed(), name: input.text()? },
            extra::CODE => Record::Code(CodeHead {
                id: input.other_small()?,
                first_line: input.other_small()?,
                lines: LineTableFormat::from_number(input.byte(column::BYTE)?)?,
                lines_len: input.other_small()?,
                name: input.text()?,
                file: input.text()?,
            }),
            extra::CODE_LINES => Record::CodeLines { id: input.other_small()?, bytes: input.text()? },
            extra::CLOCK => {
                self.state.last_clock_us = self.state.last_clock_us.wrapping_add(input.other()?);
                Record::Clock { monotonic_us: self.state.last_clock_us }
            }
            extra::LOCATED => {
                let (frame, position) = self.located.read(input)?;
                Record::Located { frame, position }
            }
            extra::MODULE => Record::Module(ModuleRecord {
                id: input.other_small()?,
                bias: input.other()?,
                start: input.other()?,
                end: input.other()?,
                path: input.text()?,
                build_id: input.text()?,
            }),
            _ => return None,
        })
    }

    fn begin<'a>(&mut self, input: &mut impl FieldSource<'a>, which: u8, timed: bool) -> Option<Record<'a>> {
        let (ticket, ticks) = (input.number(column::TICKET)?, input.other()?);
        let tid = input.other_small()?.cast_signed();
        self.stack.clear();
        self.tops.clear();
        self.placed = None;
        self.unchanged_frames = 0;
        self.located = LastLocation::new();
        self.timed = timed;
        self.sizes_by_site = matches!(which, extra::BEGIN_3 | extra::BEGIN_3_TIMED);
        self.state.reset(ticket, ticks);
        self.recent = BlockByAge::new();
        Some(Record::Begin { ticket, ticks, tid, timed })
    }

    fn range<'a>(&mut self, input: &mut impl FieldSource<'a>) -> Option<(u64, u64, Option<u64>)> {
        let address = address(input.other()?, self.state.last_mapped);
        self.state.last_mapped = address;
        Some((address, input.other()?, self.time(input, false)?))
    }

    /// `None` when the bytes end, `Some(None)` in a segment that is not timed.
    #[inline(always)]
    #[expect(clippy::option_option, reason = "the outer one is the end of the bytes, as everywhere here")]
    fn time<'a>(&mut self, input: &mut impl FieldSource<'a>, free: bool) -> Option<Option<u64>> {
        if !self.timed {
            return Some(None);
        }
        self.state.last_time = self.state.last_time.wrapping_add(unzigzag(input.time(free)?).cast_unsigned());
        Some(Some(self.state.last_time))
    }
}

/// The error at a record that cannot be decoded.
#[cold]
const fn damaged(offset: usize, first: u8) -> DecodeError {
    DecodeError { offset, found: if first == 0 { "no record" } else { "a damaged record" } }
}
