//! Watches whether a process is near the memory limit of its control groups, where the kernel may kill it, and the
//! collector with it: then what was drained is written at once.
//!
//! Invariant: without a limit nothing is read.

use crate::control_groups::MemoryGroups;

/// Time between two looks, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;

/// The memory limits of one process.
#[derive(Debug)]
pub(crate) struct MemoryLimitWatch {
    groups: MemoryGroups,
    next_ns: u64,
    is_near: bool,
}

impl MemoryLimitWatch {
    pub(crate) fn of(pid: i32) -> Self {
        Self { groups: MemoryGroups::limiting(pid), next_ns: 0, is_near: false }
    }

    /// Whether it is near a limit, as of the last look.
    pub(crate) fn is_near(&mut self, now: u64) -> bool {
        if now >= self.next_ns && !self.groups.is_empty() {
            self.is_near = self.groups.is_near_limit();
            self.next_ns = now.saturating_add(LOOK_NS);
        }
        self.is_near
    }
}
