//! How a process ended for which this one cannot wait, since it is no child of this one.
//!
//! The system says it of a process that nobody has waited for yet, and from Linux 6.15 on of any that was watched before.
//! Elsewhere the OOM killer is known by its count, in groups with a limit: what was added to that while the process ended may be
//! due to it, unless it ended by itself. Invariant: no more processes are said to be killed than were counted, and a status is
//! given only where the system says it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

use crate::system::control_groups::MemoryGroups;
use crate::system::process_handle::ProcessHandle;

/// What was put down to a process already.
static KILLS: KillAccount = KillAccount(Mutex::new(BTreeMap::new()));

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEnd {
    /// As one who waited for it would have it; `None`: perhaps the OOM killer ended it.
    pub status: Option<ExitStatus>,
    /// Processes of its control group that the OOM killer has ended since it was watched.
    pub oom_kills: u64,
    /// The memory limit of its control groups, in bytes.
    pub group_memory: Option<u64>,
}

impl ProcessEnd {
    /// The exit status as a shell gives it: 128+N for signal N.
    pub(crate) fn shell_status(&self) -> Option<u8> {
        let status = self.status?;
        Some(match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, signal) => 128_u8.wrapping_add(signal.unwrap_or(0) as u8),
        })
    }
}

/// By control group, up to which count of the OOM killer's its kills were put down to processes.
#[derive(Debug, Default)]
struct KillAccount(Mutex<BTreeMap<MemoryGroups, u64>>);

impl KillAccount {
    /// Puts one of the kills between two counts down to a process, if one is left.
    fn take(&self, groups: &MemoryGroups, (before, now): (u64, u64)) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.get(groups).map_or(before, |told| before.max(*told));
        let is_left = told < now;
        if is_left {
            all.insert(groups.clone(), told + 1);
        }
        is_left
    }
}

/// Watches for the end of a process.
#[derive(Debug, Default)]
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
        let kills = self.groups.oom_kills();
        self.end_with(handle.wait_status(), kills, ends_itself, &KILLS)
    }

    fn end_with(
        &self,
        status: Option<i32>,
        kills: Option<u64>,
        ends_itself: bool,
        account: &KillAccount,
    ) -> Option<ProcessEnd> {
        let since = |before: Option<u64>| kills.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        let may_be_killed = self.limit.is_some() && status.map_or(!ends_itself, |status| status == libc::SIGKILL);
        // The look before the last one: the end is found a little later than it was.
        let counts = self.looks[0].zip(kills).filter(|_| may_be_killed);
        let by_count = counts.is_some_and(|counts| account.take(&self.groups, counts));
        let status = status.map(ExitStatus::from_raw);
        let oom_kills = since(self.first);
        (status.is_some() || by_count).then_some(ProcessEnd { status, oom_kills, group_memory: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{EndWatch, KillAccount, ProcessEnd};
    use crate::system::control_groups::MemoryGroups;
    use crate::system::process_handle::ProcessHandle;

    fn watch(first: u64, looks: [u64; 2]) -> EndWatch {
        EndWatch { groups: MemoryGroups::default(), limit: Some(7), first: Some(first), looks: looks.map(Some) }
    }

    fn end(watch: &EndWatch, status: Option<i32>, kills: Option<u64>, ends_itself: bool) -> Option<ProcessEnd> {
        watch.end_with(status, kills, ends_itself, &KillAccount::default())
    }

    #[test]
    fn a_kill_is_put_down_to_the_process_in_whose_last_moments_it_was_counted() {
        let perhaps = |oom_kills| Some(ProcessEnd { status: None, oom_kills, group_memory: Some(7) });
        assert_eq!(end(&watch(3, [4, 5]), None, Some(5), false), perhaps(2));
        assert_eq!(end(&watch(3, [4, 5]), None, Some(5), true), None);
        assert_eq!(end(&watch(3, [5, 5]), None, Some(5), false), None);
        assert_eq!(end(&watch(3, [4, 5]), None, None, false), None);
        assert_eq!(perhaps(0).unwrap().shell_status(), None);
        // What the system says is right.
        let killed = end(&watch(3, [4, 5]), Some(libc::SIGKILL), None, true).unwrap();
        assert_eq!((killed.shell_status(), killed.oom_kills), (Some(137), 0));
        let ended = end(&watch(3, [4, 5]), Some(7 << 8), Some(5), false).unwrap();
        assert_eq!((ended.status.and_then(|status| status.code()), ended.shell_status()), (Some(7), Some(7)));
    }

    #[test]
    fn no_more_processes_are_killed_than_were_counted() {
        let account = KillAccount::default();
        let end = |status, before, now| watch(3, [before; 2]).end_with(status, Some(now), false, &account);
        // One is killed, and their parent ends the others before anything else is counted.
        assert!(end(None, 3, 4).is_some());
        assert_eq!((end(None, 3, 4), end(None, 3, 4)), (None, None));
        // The next two, of one of which the system says it; a SIGTERM is none of them.
        assert_eq!(end(Some(libc::SIGTERM), 4, 6).unwrap().shell_status(), Some(143));
        assert_eq!(end(Some(libc::SIGKILL), 4, 6).unwrap().shell_status(), Some(137));
        assert!(end(None, 4, 6).is_some());
        assert_eq!(end(None, 4, 6), None);
    }

    #[test]
    fn without_a_limit_nothing_is_put_down_to_a_count() {
        // The group's counter is that of a kill by the system, long ago or just now.
        let watch = EndWatch { limit: None, ..watch(3, [3, 3]) };
        assert_eq!(end(&watch, None, Some(4), false), None);
        assert_eq!(end(&watch, Some(libc::SIGKILL), Some(4), false).unwrap().oom_kills, 1);
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
