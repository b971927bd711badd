//! What has ended of a group, while a replay goes on.
//!
//! There is one for each group, and each free changes one: four lie in one cache line. Variances of samples are kept apart.
//!
//! Invariant: it is not more than what the group has allocated.

use crate::analysis::Tally;

/// The bytes and blocks of a group that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndedSum {
    bytes: u64,
    count: u64,
}

impl EndedSum {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64, count: u64) {
        (self.bytes, self.count) = (self.bytes.saturating_add(bytes), self.count.saturating_add(count));
    }

    pub(super) fn subtract(&mut self, bytes: u64, count: u64) {
        (self.bytes, self.count) = (self.bytes.saturating_sub(bytes), self.count.saturating_sub(count));
    }

    pub(super) fn tally(self) -> Tally {
        Tally { bytes: self.bytes, count: self.count, ..Tally::default() }
    }

    #[inline]
    pub(super) fn amount(self) -> (u64, u64) {
        (self.bytes, self.count)
    }
}
