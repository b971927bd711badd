//! One allocation from its creation to its end, as reading a whole capture gives it.
//!
//! Invariant: its times and orders are those of the capture, whatever filter selected it.

use memtrack_format::Allocator;

use crate::event::{StackId, ThreadId};

/// What is known of an allocation when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationStart {
    /// The call stack that allocates it.
    pub stack: StackId,
    /// The allocating function.
    pub allocator: Allocator,
    /// By which thread.
    pub thread: ThreadId,
    /// Bytes requested.
    pub size: u64,
    /// Its position in the total order.
    pub order: u64,
    /// When it was made, in nanoseconds since recording began.
    pub time_ns: u64,
}

/// An allocation from its making to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// The call stack that allocated it.
    pub stack: StackId,
    /// The allocating function.
    pub allocator: Allocator,
    /// By which thread.
    pub thread: ThreadId,
    /// Bytes requested; a mapping has all of them until nothing of it is left.
    pub size: u64,
    /// Its position in the total order.
    pub order: u64,
    /// When it was made, in nanoseconds since recording began.
    pub time_ns: u64,
    /// How long it lived, until the end of recording where it did.
    pub lifetime_ns: u64,
    /// How it ended.
    pub fate: AllocationOutcome,
    /// Live when finalization began, or at the end where that was not seen.
    pub leaked: bool,
    /// Freed by the allocating thread after few further allocations: see [`View::Temporary`](crate::View::Temporary).
    pub temporary: bool,
    /// Live at the high-water mark.
    pub peak: bool,
}

/// How an allocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationOutcome {
    /// It did not: it was live at the end of the recording.
    Live,
    /// It was freed.
    Freed {
        /// By which thread.
        thread: ThreadId,
        /// The free's place in the total order.
        order: u64,
    },
    /// Its free was not seen: its address was allocated again, or the process replaced its image.
    Lost {
        /// The position in the total order at which that was noticed.
        order: u64,
    },
}
