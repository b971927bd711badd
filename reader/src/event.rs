//! Events of a process in the total order, and the snapshots between them: the input of the replay.
//!
//! They are independent of the capture's encoding. Invariant: an event needs no other event to be understood, except
//! undo events, which refer to the last event of their kind in the thread.

use memtrack_format::{Allocator, MapClass};

/// A call stack: a node of the stack tree in [`Frames`](crate::Frames).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

impl StackId {
    /// The stack without any frame.
    pub const EMPTY: Self = Self(0);
}

/// A thread: an index into the capture's table of [`Thread`]s. Ids are dense, from 0 in order of appearance; the replay
/// keeps a small state for each id up to the largest seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// The operating system's number for it.
    pub tid: i32,
    /// Its last name; empty when it was never seen.
    pub name: String,
    /// All that it has allocated, but for mappings, where only samples of it are recorded.
    pub counted: Option<CountedAllocations>,
}

/// All that a thread has allocated, sampled or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedAllocations {
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
}

impl CountedAllocations {
    /// The later one of the same thread's.
    pub(crate) fn later(self, other: Self) -> Self {
        if other.count >= self.count { other } else { self }
    }

    pub(crate) fn less(self, part: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(part.bytes), count: self.count.saturating_sub(part.count) }
    }

    pub(crate) fn with(self, more: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(more.bytes), count: self.count.saturating_add(more.count) }
    }
}

/// One event of the total order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The block's or the range's address; 0 for kinds without one.
    pub address: u64,
    /// Bytes requested; 0 for kinds without a size.
    pub size: u64,
    /// The call stack.
    pub stack: StackId,
    /// The thread.
    pub thread: ThreadId,
    /// Its position in the total order, from 0, strictly increasing.
    pub order: u64,
    /// Nanoseconds since recording began: exact where the capture has timestamps, else those of the tick before.
    pub time_ns: u64,
}

/// An event among others of its run: they are of one thread, and no other has events in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEvent {
    /// What happened.
    pub event: Event,
    /// Both events of the block are in this run, this being one of them, its address had no block before, and the free is
    /// not undone.
    pub(crate) short_lived: bool,
}

impl From<Event> for RunEvent {
    #[inline(always)]
    fn from(event: Event) -> Self {
        Self { event, short_lived: false }
    }
}

/// The kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A block of `size` bytes begins at `address`.
    Alloc(Allocator),
    /// The block at `address` ends.
    Free,
    /// This thread's last [`Free`](Self::Free) did not happen (a `realloc` that failed).
    FreeUndo,
    /// A mapping of `size` bytes begins at `address`, in place of whatever it overlaps (`MAP_FIXED`). The class
    /// [`MapClass::Inherited`] stands for that of this thread's last [`RemapFrom`](Self::RemapFrom) range.
    Map(Allocator, MapClass),
    /// The range of `size` bytes at `address` is unmapped; it may cover parts of mappings, many, or none.
    Unmap,
    /// Like [`Unmap`](Self::Unmap), and the range's class is remembered for the mapping that takes its place (`mremap`).
    RemapFrom,
    /// This thread's last [`Unmap`](Self::Unmap) or [`RemapFrom`](Self::RemapFrom) did not happen.
    UnmapUndo,
    /// A call for `size` bytes failed, and has changed nothing.
    FailedAlloc(Allocator),
    /// From here on samples of this thread are `size` bytes apart on the average. Nothing has happened.
    SampleDistance,
    /// The Python interpreter begins to finalize: the moment of the leak report.
    Finalizing,
    /// The process is about to replace its image. Tracking ends here; should events follow, the exec failed.
    Exec,
}

/// The process's memory at one moment, between two events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number, from 0.
    pub index: u32,
    /// Nanoseconds since recording began; never less than those of the snapshot before.
    pub time_ns: u64,
    /// Resident memory, in bytes, without the recorder's own.
    pub rss_bytes: u64,
    /// Live heap bytes at this place in the total order.
    pub heap_bytes: u64,
    /// Events with a smaller order came before it, all others after it.
    pub order: u64,
}
