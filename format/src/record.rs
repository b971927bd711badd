//! Records: the events of one thread, its stack changes and its definitions, as bytes of a segment.
//!
//! The first byte of a record:
//!
//! ```text
//! 1aaaaaaa  Free of the block of age a                                      [time]
//! 01psaaaa  Alloc by allocator a                       [allocator if a is 15] [size unless s] [address unless p] [time]
//! 001mmmmm  Move: the newest frame's instruction changed by unzigzag(m) * 2
//! 0001nnnn  Pop of n+1 frames
//! 00000001  Free                                       address [time]
//! 00000010  Push of the frame expected from this call site
//! 00000011  Push of the expected code                  instruction+1
//! 00000100  Push                                       zigzag(code - last code), instruction+1
//! 00000101  Move                                       zigzag(instruction - last)
//! 00000110  Pop                                        number of frames
//! 00000111  Switch: a new run begins                   ticket - last ticket
//! 00001000  an Extra follows: a byte that says which, then its fields
//! 00001001  Free of an older block                     age [time]
//! 00001010  DefineTop: the newest frames get a number  number, frames
//! 00001011  ReplaceTop: frames leave, and those with a number enter          number, frames that leave
//! 000011nn  ReplaceTop after n frames have left        number, in two bytes
//! ```
//!
//! Numbers are prefix varints but where it says otherwise. The age of a block is the number of allocations since its own, in the same segment. An
//! address of an allocation is a difference to the last one of its size class (a free: to the last freed that was
//! written so), in units of 16 with a 0 bit below, or in bytes with a 1 bit below. `[time]` is there in timed segments:
//! zigzag difference in ticks. A zero byte is no record, so unwritten memory is never decoded as one.
//!
//! Every segment begins with a Begin record (which says whether it is timed) and an empty stack of frames.
//!
//! Invariant: `decode(encode(r)) = r` for every sequence of records; the writing half neither allocates nor panics.

mod byte_writer;
pub(crate) mod column;
mod decode;
mod delta_state;
mod encode;
mod field_source;
mod group_encoder;
mod group_model;
mod location;
mod repeat;
mod stack_tops;

pub use byte_writer::{AllocHead, MAX_RECORD, MAX_TEXT};
pub use decode::{DecodeError, Decoder};
pub use delta_state::CallSite;
pub use encode::{AllocStep, Encoder, PendingAlloc};
pub use field_source::{FieldSource, RecordBytes};
pub use group_encoder::GroupEncoder;
pub use location::LocationEncoder;
pub use repeat::DecoderImage;
pub use stack_tops::PlacedTop;

pub use crate::lines::LineTableFormat;
use crate::lines::SourcePosition;
use crate::{Allocator, MapClass};

/// A frame as it was recorded: a code object by its id, and an instruction in it. Its name and line are looked up later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawFrame {
    /// Id from a [`CodeHead`].
    pub code: u32,
    /// Offset of the instruction in bytes; [`RawFrame::NOT_STARTED`] before the first.
    pub instruction: u32,
}

impl RawFrame {
    /// No frame.
    pub const NONE: Self = Self { code: 0, instruction: 0 };
    /// The instruction offset of a frame that has not executed an instruction.
    pub const NOT_STARTED: u32 = u32::MAX;
}

/// A code object without its line table, which follows in [`Record::CodeLines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeHead<'a> {
    /// Unique in the process.
    pub id: u32,
    /// First line of the function, from 1; 0 when not known.
    pub first_line: u32,
    /// How to read the line table.
    pub lines: LineTableFormat,
    /// Bytes of the line table, all parts together.
    pub lines_len: u32,
    /// Name; the qualified one where the interpreter knows it.
    pub name: &'a [u8],
    /// Source file.
    pub file: &'a [u8],
}

/// A loaded object. Its frames have its id in [`RawFrame::code`], and in [`RawFrame::instruction`] the offset of the
/// call's last byte from `bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleRecord<'a> {
    /// Unique in the process, among modules and code objects.
    pub id: u32,
    /// The load bias: runtime address minus the address in the file.
    pub bias: u64,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Path of its file; empty for code that is in no loaded object.
    pub path: &'a [u8],
    /// Its GNU build-id, or the [`crate::file_stamp`] of its file where it has none; empty where neither is known.
    pub build_id: &'a [u8],
}

/// An Alloc or Free record, in the form that decoding in bulk gives: see [`Decoder::read_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The allocating function; `None` for a Free.
    pub allocator: Option<Allocator>,
    /// Its address.
    pub address: u64,
    /// Bytes requested; 0 for a Free.
    pub size: u64,
    /// When, in ticks of the stamping clock; `None` in segments that are not timed.
    pub time: Option<u64>,
}

/// How much a thread has allocated so far, sampled or not, without mappings. Of several of one stretch, that with the
/// most allocations counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCount {
    /// A number of the time for which the thread has its slot, unique in the capture; its low half is the thread's id.
    pub stretch: u64,
    /// Allocations in this stretch.
    pub allocations: u64,
    /// Bytes requested in this stretch.
    pub bytes: u64,
}

impl AllocationCount {
    /// The operating system's id of the thread.
    #[must_use]
    pub const fn tid(&self) -> i32 {
        (self.stretch as u32).cast_signed()
    }
}

/// One record. Times are in ticks of the stamping clock, `None` in segments that are not timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A segment begins, with an empty stack; the run with this ticket continues.
    Begin {
        /// Ticket of the run that the next records belong to.
        ticket: u64,
        /// The stamping clock now.
        ticks: u64,
        /// The thread that writes, by the operating system's id.
        tid: i32,
        /// Whether the records of this segment carry times.
        timed: bool,
    },
    /// A new run begins: the records up to the next Switch come after all records of earlier tickets, in any thread.
    Switch {
        /// Its ticket.
        ticket: u64,
    },
    /// The records that follow, and every run of a later ticket, were recorded after this time. Written in segments without
    /// times, in a run of this thread alone, when the last known time is too long ago.
    Clock {
        /// CLOCK_MONOTONIC, in microseconds.
        monotonic_us: u64,
    },
    /// From here on addresses are written by a model of all blocks of the group of segments: an age counts the allocations of
    /// the group, and the number for an address is a rank among the freed addresses of its size class (1 bit below), or a
    /// difference (0 bit below). The collector writes it behind the first Begin of a group.
    GroupBegins,
    /// A block was allocated, with the current stack.
    Alloc {
        /// By which function.
        allocator: Allocator,
        /// Its address.
        address: u64,
        /// Bytes requested.
        size: u64,
        /// When.
        time: Option<u64>,
    },
    /// A block is about to be freed.
    Free {
        /// Its address.
        address: u64,
        /// When.
        time: Option<u64>,
    },
    /// The last Free of this thread is undone: its realloc failed.
    FreeUndo,
    /// A range was mapped, with the current stack.
    Map {
        /// `Mmap` or `Mremap`.
        allocator: Allocator,
        /// What the mapping is.
        class: MapClass,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// When.
        time: Option<u64>,
    },
    /// A range is about to be unmapped.
    Unmap {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// When.
        time: Option<u64>,
    },
    /// A range is about to be moved or resized by mremap; a Map of class Inherited follows, or an UnmapUndo.
    RemapFrom {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// When.
        time: Option<u64>,
    },
    /// The last Unmap or RemapFrom of this thread is undone: the call failed.
    UnmapUndo,
    /// A call that allocates failed, with the current stack: there was no memory for it. It has changed nothing.
    FailedAlloc {
        /// Which function.
        allocator: Allocator,
        /// Bytes requested.
        size: u64,
        /// When.
        time: Option<u64>,
    },
    /// What a thread of a sampled recording has allocated so far; see [`AllocationCount`].
    Counted(AllocationCount),
    /// Frames leave the stack, newest first.
    Pop {
        /// How many, at least 1.
        count: u32,
    },
    /// A frame enters the stack.
    Push(RawFrame),
    /// The newest frame is at another instruction.
    Move {
        /// See [`RawFrame::instruction`].
        instruction: u32,
    },
    /// The newest frames of the stack get a number, in this segment: they are a stack top that can be put back.
    DefineTop {
        /// Below [`STACK_TOPS`]; a number may be given anew.
        number: u32,
        /// Frames, 1 to [`MAX_TOP`].
        frames: u32,
    },
    /// Frames leave the stack, and the frames with a number enter it.
    ReplaceTop {
        /// From a DefineTop of this segment.
        number: u32,
        /// How many leave.
        popped: u32,
    },
    /// From here on stacks are (not) truncated; a truncated one has its oldest frames and its newest.
    Truncated(bool),
    /// From here on samples of this thread are so many bytes apart on the average; until there is one, as the metadata says.
    SampleDistance(u64),
    /// Python's finalization begins.
    Finalizing,
    /// The process is about to replace itself by exec.
    ExecBegins,
    /// Exec failed; the process runs on.
    ExecFailed,
    /// A thread got a name.
    ThreadName {
        /// The operating system's id of the thread.
        tid: i32,
        /// The name.
        name: &'a [u8],
    },
    /// A thread's name in Python's `threading` module, of which the operating system does not know.
    PythonName {
        /// Which, by the operating system's id.
        tid: i32,
        /// The name.
        name: &'a [u8],
    },
    /// A code object, before the first frame that runs it in this stream.
    Code(CodeHead<'a>),
    /// A loaded object, before the first native frame in it in this stream.
    Module(ModuleRecord<'a>),
    /// The source position of a frame, before the first record of this stream with this frame.
    Located {
        /// The code object and the instruction.
        frame: RawFrame,
        /// Its source position.
        position: SourcePosition,
    },
    /// The next bytes of a code object's line table.
    CodeLines {
        /// Which.
        id: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// Numbers of stack tops.
pub const STACK_TOPS: usize = 4096;
/// Most frames of a stack top.
pub const MAX_TOP: usize = 16;

/// First bytes of records and their bits: see the table at the head of this module.
pub(crate) mod tag {
    pub(crate) const FREE_YOUNG: u8 = 0x80;
    pub(crate) const ALLOC: u8 = 0x40;
    pub(crate) const ALLOC_ADDRESS_EXPECTED: u8 = 0x20;
    pub(crate) const ALLOC_SIZE_EXPECTED: u8 = 0x10;
    pub(crate) const MOVE: u8 = 0x20;
    pub(crate) const POP: u8 = 0x10;
    pub(crate) const FREE: u8 = 1;
    pub(crate) const PUSH_EXPECTED: u8 = 2;
    pub(crate) const PUSH_EXPECTED_CODE: u8 = 3;
    pub(crate) const PUSH: u8 = 4;
    pub(crate) const MOVE_FAR: u8 = 5;
    pub(crate) const POP_MANY: u8 = 6;
    pub(crate) const SWITCH: u8 = 7;
    pub(crate) const EXTRA: u8 = 8;
    pub(crate) const FREE_OLDER: u8 = 9;
    pub(crate) const DEFINE_TOP: u8 = 10;
    pub(crate) const REPLACE_TOP: u8 = 11;
    pub(crate) const REPLACE_TOP_AFTER: u8 = 12;
}

/// The byte after an EXTRA tag.
pub(crate) mod extra {
    /// Of format versions up to 3, whose sizes are predicted by the call site alone.
    pub(crate) const BEGIN_3: u8 = 1;
    pub(crate) const BEGIN_3_TIMED: u8 = 2;
    pub(crate) const FREE_UNDO: u8 = 3;
    pub(crate) const MAP: u8 = 4;
    pub(crate) const UNMAP: u8 = 5;
    pub(crate) const REMAP_FROM: u8 = 6;
    pub(crate) const UNMAP_UNDO: u8 = 7;
    pub(crate) const TRUNCATED: u8 = 8;
    pub(crate) const NOT_TRUNCATED: u8 = 9;
    pub(crate) const FINALIZING: u8 = 10;
    pub(crate) const EXEC_BEGINS: u8 = 11;
    pub(crate) const EXEC_FAILED: u8 = 12;
    pub(crate) const THREAD_NAME: u8 = 13;
    pub(crate) const CODE: u8 = 14;
    pub(crate) const CODE_LINES: u8 = 15;
    pub(crate) const PYTHON_NAME: u8 = 16;
    pub(crate) const LOCATED: u8 = 17;
    pub(crate) const MODULE: u8 = 18;
    pub(crate) const CLOCK: u8 = 19;
    pub(crate) const FAILED_ALLOC: u8 = 20;
    pub(crate) const BEGIN: u8 = 21;
    pub(crate) const BEGIN_TIMED: u8 = 22;
    pub(crate) const GROUP_BEGINS: u8 = 23;
    pub(crate) const COUNTED: u8 = 24;
    pub(crate) const SAMPLE_DISTANCE: u8 = 25;
}

#[cfg(test)]
pub(crate) mod tests;
