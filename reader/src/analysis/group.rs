//! The grouping key of every aggregate, and the sums kept for each group.
//!
//! Invariant: a sum with count 0 and bytes 0 has no contributor, and its "first" fields are `u64::MAX`.

use memtrack_format::Allocator;

use super::{Tally, View};
use crate::event::{StackId, ThreadId};

/// The sums of one (stack, allocator, thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The full call stack.
    pub stack: StackId,
    /// The allocating function.
    pub allocator: Allocator,
    /// The allocating thread.
    pub thread: ThreadId,
    /// Everything ever allocated.
    pub allocated: Sum,
    /// What was live at the peak.
    pub peak: Sum,
    /// What was live when finalization began, or at the end where that was not seen.
    pub leaked: Sum,
    /// What was live at the end.
    pub leaked_at_exit: Sum,
    /// What was temporary.
    pub temporary: Sum,
    /// Pages that only its stack's blocks kept, and these blocks.
    pub pinned: Sum,
    /// Objects at the moment of a picture, if its stack ends with their type.
    pub objects: Sum,
}

impl Group {
    /// A group without any allocation.
    #[must_use]
    pub fn new(stack: StackId, allocator: Allocator, thread: ThreadId) -> Self {
        let [allocated, peak, leaked, leaked_at_exit, temporary, pinned, objects] = [Sum::default(); 7];
        Self { stack, allocator, thread, allocated, peak, leaked, leaked_at_exit, temporary, pinned, objects }
    }

    /// Adds the sums of another group.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.allocated, &other.allocated),
            (&mut self.peak, &other.peak),
            (&mut self.leaked, &other.leaked),
            (&mut self.leaked_at_exit, &other.leaked_at_exit),
            (&mut self.temporary, &other.temporary),
            (&mut self.pinned, &other.pinned),
            (&mut self.objects, &other.objects),
        ] {
            sum.merge(more);
        }
    }

    /// The sum that answers `view`.
    #[must_use]
    pub fn sum(&self, view: View) -> &Sum {
        match view {
            View::HighWaterMark => &self.peak,
            View::Leaks => &self.leaked,
            View::LeaksAtExit => &self.leaked_at_exit,
            View::Temporary => &self.temporary,
            View::Allocated => &self.allocated,
            View::Pinned => &self.pinned,
            View::Objects => &self.objects,
        }
    }
}

/// Bytes and number of some allocations, and the earliest of them.
///
/// Sums must be subtractable: a free that was counted can be undone (its `realloc` failed), and then [`Sum::subtract`] takes
/// its part out of every sum that it entered. A maximum over allocations cannot be a field here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations. A mapping counts once, as long as a part of it is there.
    pub count: u64,
    /// The smallest order among them.
    pub first_order: u64,
    /// The smallest time among them, in nanoseconds since recording began.
    pub first_time_ns: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self { bytes: 0, count: 0, first_order: u64::MAX, first_time_ns: u64::MAX }
    }
}

impl Sum {
    /// Adds an allocation, or a part of one (`count` 0), made at this order and time. Sums stop at `u64::MAX`: only a
    /// forged capture gets there.
    #[inline]
    pub fn add(&mut self, bytes: u64, count: u64, order: u64, time_ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(count);
        self.first_order = self.first_order.min(order);
        self.first_time_ns = self.first_time_ns.min(time_ns);
    }

    /// Bytes and number.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { bytes: self.bytes, count: self.count, ..Tally::default() }
    }

    /// Adds another sum.
    pub(super) fn merge(&mut self, other: &Self) {
        self.add(other.bytes, other.count, other.first_order, other.first_time_ns);
    }

    /// Takes back bytes and count; what was earliest stays.
    pub(crate) fn subtract(&mut self, bytes: u64, count: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(count);
    }
}
