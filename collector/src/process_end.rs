//! How a process ended for which this one cannot wait, since it is no child of this one.
//!
//! The system says it of a process that nobody has waited for yet, and from Linux 6.15 on of any that was watched before.
//! Elsewhere the OOM killer is known by its count: what was added to that while the process ended is put down to it, unless the
//! process ended by itself. Invariant: without any of these nothing is said.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::control_groups::MemoryGroups;
use crate::procfs::ProcessHandle;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEnd {
    /// As one who waited for it would have it.
    pub status: ExitStatus,
    /// Processes of its control group that the OOM killer has ended since it was watched.
    pub oom_kills: u64,
    /// The memory limit of its control groups, in bytes.
    pub group_memory: Option<u64>,
}

impl ProcessEnd {
    /// The exit status as a shell gives it: 128+N for signal N.
    pub(crate) fn shell_status(&self) -> u8 {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code as u8,
            (None, signal) => 128_u8.wrapping_add(signal.unwrap_or(0) as u8),
        }
    }
}

/// Watches for the end of a process.
#[derive(Debug)]
pub(crate) struct EndWatch {
    groups: MemoryGroups,
    limit: Option<u64>,
    first: Option<u64>,
    /// What the counter said at the last two looks.
    looks: [Option<u64>; 2],
}

impl EndWatch {
    /// Of a running process.
    pub(crate) fn of(pid: i32) -> Self {
        let groups = MemoryGroups::of(pid);
        let kills = groups.oom_kills();
        Self { limit: groups.limit(), first: kills, looks: [kills; 2], groups }
    }

    /// Looks again, while the process runs.
    pub(crate) fn look(&mut self) {
        // Nothing is killed in a group without a limit, but by the system, which says so by the signal.
        if self.limit.is_some() {
            self.looks = [self.looks[1], self.groups.oom_kills()];
        }
    }

    /// How the process ended, which has just been found to have.
    pub(crate) fn end(&self, handle: &ProcessHandle, ends_itself: bool) -> Option<ProcessEnd> {
        self.end_with(handle.wait_status(), self.groups.oom_kills(), ends_itself)
    }

    fn end_with(&self, status: Option<i32>, kills: Option<u64>, ends_itself: bool) -> Option<ProcessEnd> {
        let since = |before: Option<u64>| kills.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        // The look before the last one: the end is found a little later than it was.
        let by_count = || (!ends_itself && since(self.looks[0]) > 0).then_some(libc::SIGKILL);
        let status = ExitStatus::from_raw(status.or_else(by_count)?);
        Some(ProcessEnd { status, oom_kills: since(self.first), group_memory: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::{EndWatch, ProcessEnd};
    use crate::control_groups::MemoryGroups;
    use crate::procfs::ProcessHandle;

    fn watch(first: u64, looks: [u64; 2]) -> EndWatch {
        EndWatch { groups: MemoryGroups::default(), limit: Some(7), first: Some(first), looks: looks.map(Some) }
    }

    #[test]
    fn a_kill_is_put_down_to_the_process_in_whose_last_moments_it_was_counted() {
        let killed = |oom_kills| {
            Some(ProcessEnd { status: ExitStatus::from_raw(libc::SIGKILL), oom_kills, group_memory: Some(7) })
        };
        assert_eq!(watch(3, [4, 5]).end_with(None, Some(5), false), killed(2));
        assert_eq!(watch(3, [4, 5]).end_with(None, Some(5), true), None);
        assert_eq!(watch(3, [5, 5]).end_with(None, Some(5), false), None);
        assert_eq!(watch(3, [4, 5]).end_with(None, None, false), None);
        // What the system says is right.
        assert_eq!(watch(3, [4, 5]).end_with(Some(libc::SIGKILL), None, true), killed(0));
        let ended = watch(3, [4, 5]).end_with(Some(7 << 8), Some(5), false).unwrap();
        assert_eq!((ended.status.code(), ended.shell_status()), (Some(7), 7));
        assert_eq!(killed(0).unwrap().shell_status(), 137);
    }

    #[test]
    fn a_process_that_was_not_waited_for_says_how_it_ended() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let handle = ProcessHandle::of(child.id().cast_signed());
        assert_eq!(handle.wait_status(), None);
        child.kill().unwrap();
        while !handle.has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(handle.wait_status(), Some(libc::SIGKILL));
        child.wait().unwrap();
        // Before Linux 6.15 nobody says it any more.
        assert!(matches!(handle.wait_status(), None | Some(libc::SIGKILL)));
    }
}
