//! One allocation with all that is known of it after a capture was read: where it was made, and how it ended.
//!
//! Invariant: its times and orders are those of the capture, whatever filter found it.

use memtrack_format::Allocator;

use crate::event::{StackId, ThreadId};

/// An allocation from its making to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRecord {
    /// Where it was made.
    pub stack: StackId,
    /// By which function.
    pub allocator: Allocator,
    /// By which thread.
    pub thread: ThreadId,
    /// Bytes requested; a mapping has all of them until nothing of it is left.
    pub size: u64,
    /// Its place in the total order.
    pub order: u64,
    /// When it was made, in nanoseconds since recording began.
    pub time_ns: u64,
    /// How long it lived, until the end of recording where it did.
    pub lifetime_ns: u64,
    /// What became of it.
    pub fate: Fate,
    /// Live when finalization began, or at the end where that was not seen.
    pub leaked: bool,
    /// Freed by its own thread after few further allocations.
    pub temporary: bool,
    /// Live at the high-water mark.
    pub peak: bool,
}

/// What became of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was live at the end of recording.
    Live,
    /// It was freed.
    Freed {
        /// By which thread.
        thread: ThreadId,
        /// The free's place in the total order.
        order: u64,
    },
    /// It ended without its end having been seen: its address was given out anew, or the process replaced its image.
    Lost {
        /// The place in the total order by which it had.
        order: u64,
    },
}
