//! The sums of a run's short-lived blocks, which stand for their events.
//!
//! Invariant: each event of the run is in one of the stretches or one of the others.

use super::SizeHistogram;
use crate::event::Event;

/// The sums of a run. Its events are numbered from 0.
#[derive(Debug, Default)]
pub struct ShortLivedSums {
    /// By stack and allocator, in the order of their first blocks; two may have the same.
    pub(crate) groups: Vec<ShortLivedGroup>,
    /// The sequences of events of short-lived blocks, in order.
    pub(crate) stretches: Vec<Stretch>,
    /// The numbers of the events between them.
    pub(crate) others: Vec<u32>,
    pub(crate) sizes: SizeHistogram,
    /// How many blocks there are.
    pub(crate) blocks: u64,
}

/// Short-lived blocks of a run with the same stack and allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortLivedGroup {
    /// The number of the first one's allocation, whose stack and allocator are those of all.
    pub(crate) first: u32,
    /// Bytes and number.
    pub(crate) allocated: (u64, u64),
    /// The same of temporary ones.
    pub(crate) temporary: (u64, u64),
    /// The number of the first temporary one's allocation, if there is one.
    pub(crate) first_temporary: u32,
}

/// Events of short-lived blocks without another event between them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stretch {
    /// By how much they change what is live: bytes and number.
    pub(crate) change: (i64, i64),
    /// The allocations.
    pub(crate) allocations: u32,
    /// The first allocation after which most bytes were live; meaningless if there is none.
    pub(crate) top_at: u32,
    /// By how much it and those before it have changed what is live.
    pub(crate) top: (i64, i64),
}

/// A block of a round of a loop, whose rounds all do the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundBlock {
    pub(crate) allocation: Event,
    /// It ends so soon that it is temporary.
    pub(crate) temporary: bool,
}

impl ShortLivedGroup {
    /// Without a block yet.
    pub(crate) const fn new(first: u32) -> Self {
        Self { first, allocated: (0, 0), temporary: (0, 0), first_temporary: u32::MAX }
    }

    /// A temporary block ends that began at the event of this number.
    #[inline]
    pub(crate) fn count_temporary(&mut self, began: u32, bytes: u64) {
        self.temporary = (self.temporary.0 + bytes, self.temporary.1 + 1);
        self.first_temporary = self.first_temporary.min(began);
    }
}

impl Stretch {
    /// A block begins at the event of this number.
    #[inline]
    pub(crate) fn allocate(&mut self, number: u32, bytes: i64) {
        self.change = (self.change.0 + bytes, self.change.1 + 1);
        if self.allocations == 0 || self.change.0 > self.top.0 {
            (self.top, self.top_at) = (self.change, number);
        }
        self.allocations += 1;
    }

    /// A block ends.
    #[inline]
    pub(crate) fn free(&mut self, bytes: i64) {
        self.change = (self.change.0 - bytes, self.change.1 - 1);
    }
}
