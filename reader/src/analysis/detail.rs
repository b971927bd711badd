//! Optional statistics of each group: ended allocations, lifetimes, the group's own maximum, sizes.
//!
//! They cost time for every event and memory for every group, and most reports do not need them, so
//! [`Options::details`](super::Options) turns them on. Invariant: entry `i` belongs to group `i`.

use super::{SizeHistogram, Tally};

/// The statistics of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Allocations that ended.
    pub freed: u64,
    /// Sum of the lifetimes of all its allocations, in nanoseconds; those live at the end count until then.
    pub lifetime_ns: u64,
    /// Its live blocks at the group's own maximum of live bytes; the first of equal maxima.
    pub most: Tally,
    /// Its allocations by size.
    pub sizes: SizeHistogram,
    /// Its live blocks at the end.
    pub live: Tally,
}

impl Detail {
    /// Adds the statistics of another group. The maxima are added, which is an upper bound of the common maximum.
    pub fn add(&mut self, other: &Self) {
        self.freed = self.freed.saturating_add(other.freed);
        self.lifetime_ns = self.lifetime_ns.saturating_add(other.lifetime_ns);
        self.most += other.most;
        self.sizes.merge(&other.sizes);
        self.live += other.live;
    }

    /// An allocation of this size, which stands for so many bytes and allocations.
    pub(crate) fn allocate(&mut self, size: u64, (bytes, count): (u64, u64)) {
        self.sizes.add(size, count);
        self.grow(bytes, count);
    }

    /// Bytes of an allocation went away by an end that was not seen or is not counted.
    pub(crate) fn shrink(&mut self, bytes: u64, count: u64) {
        self.live.bytes = self.live.bytes.saturating_sub(bytes);
        self.live.count = self.live.count.saturating_sub(count);
    }

    /// Allocations ended after this time.
    pub(crate) fn end(&mut self, count: u64, lived_ns: u64) {
        self.freed = self.freed.saturating_add(count);
        self.live_on(count, lived_ns);
    }

    /// Undoes an end. The lifetime is subtracted as of the undo event, so it is as exact as that event's time.
    pub(crate) fn restore(&mut self, bytes: u64, count: u64, lived_ns: u64) {
        self.freed = self.freed.saturating_sub(count);
        self.lifetime_ns = self.lifetime_ns.saturating_sub(lived_ns.saturating_mul(count));
        self.grow(bytes, count);
    }

    /// Allocations lived for this time.
    pub(crate) fn live_on(&mut self, count: u64, lived_ns: u64) {
        self.lifetime_ns = self.lifetime_ns.saturating_add(lived_ns.saturating_mul(count));
    }

    fn grow(&mut self, bytes: u64, count: u64) {
        self.live.add(bytes, count);
        if self.live.bytes > self.most.bytes {
            self.most = self.live;
        }
    }
}
