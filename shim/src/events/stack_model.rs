//! The interface between the code that reads a call stack and the code that records it.
//!
//! With it the Python walker needs neither rings nor records, and can be tested against a plain list of frames.
//! Invariant: applied in order to an empty list, the calls of [`StackWriter`] give the thread's stack, root first;
//! every code id is defined before the push that uses it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use memtrack_format::lines::LineTableFormat;
use memtrack_format::record::{CallSite, MAX_TOP, RawFrame};

/// Most frames on the written stack; of a deeper one the oldest `MAX_DEPTH - 1` and the newest are written.
pub(crate) const MAX_DEPTH: u32 = 8000;

/// The next id, in all slots; 0 is never given.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// A new id, of a code object, a module or a page of code.
pub(crate) fn new_id() -> u32 {
    NEXT_ID.fetch_add(1, Relaxed)
}

/// What is recorded once about a code object. The strings are UTF-8; they borrow memory that is valid during the call
/// only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeObject<'a> {
    /// `co_name`.
    pub(crate) name: &'a [u8],
    /// `co_qualname` from 3.11 on; empty before.
    pub(crate) qualname: &'a [u8],
    /// `co_filename`.
    pub(crate) filename: &'a [u8],
    /// `co_firstlineno`, where the line table starts to count.
    pub(crate) first_line: i32,
    /// The form of `line_table`.
    pub(crate) line_table_format: LineTableFormat,
    /// The line table's bytes, to be decoded by the reader.
    pub(crate) line_table: &'a [u8],
}

/// The instruction offset of a frame that has not executed an instruction: it stands at its code object's first line.
pub(crate) const NOT_STARTED: u32 = u32::MAX;

/// Most frames of a stack top that is kept.
pub(crate) const TOP_FRAMES: usize = 6;
const _: () = assert!(TOP_FRAMES <= MAX_TOP);

/// The newest frames of a stack, at most `N`, which were there before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackTop<const N: usize = TOP_FRAMES> {
    /// Frames of the stack below them.
    pub(crate) below: u32,
    /// The segment in whose records the top has its number; 0 for none.
    pub(crate) defined: u32,
    /// How many frames there are, at least one.
    pub(crate) length: usize,
    /// The frames, the oldest first.
    pub(crate) frames: [RawFrame; N],
    /// Of the newest of them.
    pub(crate) newest: CallSite,
}

/// A stack top, behind the number by which records name it.
pub(crate) type WritableTop<'a> = (u32, &'a StackTop);

impl<const N: usize> Default for StackTop<N> {
    fn default() -> Self {
        Self { below: 0, defined: 0, length: 0, frames: [RawFrame::NONE; N], newest: CallSite::default() }
    }
}

impl<const N: usize> StackTop<N> {
    /// The frames, the oldest first.
    pub(crate) fn frames(&self) -> &[RawFrame] {
        self.frames.get(..self.length).unwrap_or_default()
    }
}

/// Receives the changes of one thread's stack, in order.
pub(crate) trait StackWriter {
    /// All but the oldest `count` frames, with those that were left out of a stack that is cut, are others from here on.
    fn keeps(&mut self, _count: u32) {}
    /// `count` frames leave, newest first.
    fn pop(&mut self, count: u32);
    /// A frame enters: a code id and an instruction offset in bytes from the start of the bytecode, or [`NOT_STARTED`].
    fn push(&mut self, code: u32, instruction: u32);
    /// The newest frame stands at another instruction.
    fn move_top(&mut self, instruction: u32);
    /// All but the oldest `top.below` frames leave, and the frames of the top enter. The number is the top's as long as
    /// `top` is the same.
    fn replace_top<const N: usize>(&mut self, number: u32, top: &mut StackTop<N>);
    /// From here on the stacks are cut (`true`) or whole (`false`).
    fn set_truncated(&mut self, truncated: bool);
    /// The fast comparison was inconclusive, and the stack was looked at closer; `changed`: more than the newest frame's instruction had changed.
    fn compared_full(&mut self, changed: bool);
    /// The time, in ticks.
    fn now(&self) -> u64;
    /// The full comparison that began at `begun` is over.
    fn compared_full_since(&mut self, begun: u64);
    /// Describes a code object, before the first push of its id by this slot.
    fn define_code(&mut self, id: u32, code: &CodeObject<'_>);
}
