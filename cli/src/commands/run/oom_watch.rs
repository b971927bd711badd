//! Whether the OOM killer ended a process for whose end memtrack cannot wait, since it is no child of memtrack's.
//!
//! The kernel counts by control group. What was counted in the moment in which the process ended is put down to it, unless
//! the process ended by itself.
//!
//! Invariant: of a process without memory control groups, or whose groups are gone with it, nothing is said.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use memtrack_collector::control_groups::MemoryGroups;

use super::termination::Termination;

/// The counter of one process's group, and what it said at the last two looks.
#[derive(Debug)]
pub(super) struct OomWatch {
    groups: MemoryGroups,
    limit: Option<u64>,
    looks: [Option<u64>; 2],
}

impl OomWatch {
    /// Looks for the first time.
    pub(super) fn of(pid: i32) -> Self {
        Self::new(MemoryGroups::of(pid))
    }

    fn new(groups: MemoryGroups) -> Self {
        let kills = groups.oom_kills();
        Self { limit: groups.limit(), looks: [kills; 2], groups }
    }

    /// Looks again, while the process runs.
    pub(super) fn look(&mut self) {
        self.looks = [self.looks[1], self.groups.oom_kills()];
    }

    /// How the process ended, which has just been found to have, and not by itself: `None` if not by the OOM killer.
    pub(super) fn end(&self) -> Option<Termination> {
        // The look before the last one: the end is found a little later than it was.
        let oom_kills = self.groups.oom_kills()?.checked_sub(self.looks[0]?).filter(|kills| *kills > 0)?;
        let status = ExitStatus::from_raw(libc::SIGKILL);
        Some(Termination { status, oom_kills, group_memory: self.limit, ..Termination::unknown() })
    }
}
