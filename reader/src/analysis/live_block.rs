//! A live allocation as the replay stores it, and what is needed to undo its release.
//!
//! Invariant: a block stays 32 bytes, since there is one for each live allocation; it lies in one cache line, so that
//! to wait for one of its fields is to wait for all.

use super::groups::OptionalSum;
use super::{Groups, Sum};
use crate::event::Event;

/// A live allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct LiveBlock {
    /// Bytes requested.
    pub(crate) size: u64,
    /// The order of its allocation.
    pub(crate) order: u64,
    /// The time of its allocation, in nanoseconds since recording began.
    pub(crate) time_ns: u64,
    /// Its group; [`LiveBlock::NO_GROUP`] for mappings that are not heap.
    pub(crate) group: u32,
    /// Which allocation of its thread it was, modulo 2^32; of a mapping that is not heap, the number of its group of mappings.
    pub(crate) nth: u32,
}

const _: () = assert!(size_of::<LiveBlock>() == 32, "a block is stored for each live allocation");

impl LiveBlock {
    pub(crate) const NO_GROUP: u32 = u32::MAX;

    /// A block that belongs to no group: for mappings that are not heap.
    pub(crate) fn outside(event: &Event) -> Self {
        Self { size: event.size, order: event.order, time_ns: event.time_ns, group: Self::NO_GROUP, nth: 0 }
    }
}

/// A part of a live allocation: all of a block, or a piece of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LivePart {
    pub(crate) block: LiveBlock,
    /// Its bytes that are live.
    pub(crate) bytes: u64,
    /// It is the first part, which counts as the allocation.
    pub(crate) first: bool,
}

/// What the undo of a release needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReleasedBlock {
    /// The order of the event that ended it.
    pub(super) order: u64,
    /// It was counted in its group's temporary sum, with its bytes and its count.
    pub(super) temporary: bool,
    /// It became the earliest allocation of that sum, by order or by time; the previous values follow.
    earliest: bool,
    first_order: u64,
    first_time_ns: u64,
}

impl ReleasedBlock {
    /// The block is ended by the event of this order, and nothing is told of it but that.
    #[inline]
    pub(crate) fn end_untold(&mut self, order: u64) {
        (self.order, self.temporary) = (order, false);
    }

    #[inline]
    pub(super) fn count(&mut self, block: &LiveBlock, (bytes, count): (u64, u64), sum: &mut Sum) {
        self.temporary = true;
        self.earliest = block.order < sum.first_order || block.time_ns < sum.first_time_ns;
        (self.first_order, self.first_time_ns) = (sum.first_order, sum.first_time_ns);
        sum.add(bytes, count, block.order, block.time_ns);
    }

    pub(super) fn take_back(&self, block: &LiveBlock, (bytes, count): (u64, u64), groups: &mut Groups) {
        if self.temporary {
            let sum = groups.part_mut(block.group, OptionalSum::Temporary);
            sum.subtract(bytes, count);
            if self.earliest {
                (sum.first_order, sum.first_time_ns) = (self.first_order, self.first_time_ns);
            }
        }
    }
}
