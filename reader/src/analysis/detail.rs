//! What is kept of each group beside its sums, where a report asks for it: how many of its allocations ended, how long
//! they lived, how much of the group was live at most, and the sizes.
//!
//! It stands apart because it costs time for every event and memory for every group, and most reports need none of it.
//! Invariant: entry `i` is about group `i`.

use super::{SizeHistogram, Tally};

/// What is kept of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Allocations that ended.
    pub freed: u64,
    /// The time that all its allocations lived, added up, in nanoseconds; those live at the end lived until then.
    pub lifetime_ns: u64,
    /// What was live of it at its own maximum, by bytes; the first of several.
    pub most: Tally,
    /// Its allocations by size.
    pub sizes: SizeHistogram,
    /// What of it is live at the end.
    pub live: Tally,
}

impl Detail {
    /// Adds those of another group. The maxima are added too: together they were at most that large.
    pub fn add(&mut self, other: &Self) {
        self.freed = self.freed.saturating_add(other.freed);
        self.lifetime_ns = self.lifetime_ns.saturating_add(other.lifetime_ns);
        self.most.add(other.most.bytes, other.most.count);
        self.sizes.merge(&other.sizes);
        self.live.add(other.live.bytes, other.live.count);
    }

    pub(crate) fn allocate(&mut self, bytes: u64) {
        self.sizes.add(bytes);
        self.grow(bytes, 1);
    }

    /// Bytes of an allocation are gone, by an end that was not seen or not counted.
    pub(crate) fn shrink(&mut self, bytes: u64, count: u64) {
        self.live.bytes = self.live.bytes.saturating_sub(bytes);
        self.live.count = self.live.count.saturating_sub(count);
    }

    /// Allocations ended after this time.
    pub(crate) fn end(&mut self, count: u64, lived_ns: u64) {
        self.freed = self.freed.saturating_add(count);
        self.live_on(count, lived_ns);
    }

    /// An end did not happen; the lifetime is as exact as the time of the event that says so.
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
