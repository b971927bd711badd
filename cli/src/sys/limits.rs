//! The limits that a process runs under, and how often the system has killed for want of memory.
//!
//! It exists because a program that a limit has ended rarely says so. Invariant: what cannot be told is `None`, and nothing
//! is changed.

use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;

/// What a process may have at most, as it was set last; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    /// Bytes of address space.
    pub(crate) address_space: Option<u64>,
    /// Bytes of data.
    pub(crate) data: Option<u64>,
    /// Bytes of a file.
    pub(crate) file_size: Option<u64>,
    /// Seconds of processor time after which it is told.
    pub(crate) cpu_seconds: Option<u64>,
    /// Seconds of processor time after which it is killed.
    pub(crate) most_cpu_seconds: Option<u64>,
}

impl ResourceLimits {
    /// Those of a process that was not reaped yet.
    pub(crate) fn of(pid: i32) -> Self {
        let limit = |resource| {
            let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
            // SAFETY: no new limits are given; the old ones are written to a live local.
            let got = unsafe { libc::prlimit(pid, resource, std::ptr::null(), limit.as_mut_ptr()) };
            // SAFETY: all zeroes is a valid value.
            let limit = unsafe { limit.assume_init() };
            let finite = |value| (got == 0 && value != libc::RLIM_INFINITY).then_some(value);
            [finite(limit.rlim_cur), finite(limit.rlim_max)]
        };
        let ([address_space, _], [data, _]) = (limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA));
        let ([file_size, _], [cpu_seconds, most_cpu_seconds]) = (limit(libc::RLIMIT_FSIZE), limit(libc::RLIMIT_CPU));
        Self { address_space, data, file_size, cpu_seconds, most_cpu_seconds }
    }
}

/// How many processes of memtrack's control group, which is that of the program, the system has killed for want of memory.
pub(crate) fn oom_kills() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    counters(&groups).into_iter().find_map(|path| oom_kill(&fs::read_to_string(path).ok()?))
}

/// The files that may have the counter, by the lines of `/proc/self/cgroup`. In a container a path may be that of the host,
/// and the group be the root of what is mounted.
fn counters(groups: &str) -> Vec<PathBuf> {
    const ROOT: &str = "/sys/fs/cgroup";
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mounted, file) = match controllers {
            "" => (ROOT.to_owned(), "memory.events"),
            _ if controllers.split(',').any(|one| one == "memory") => (format!("{ROOT}/memory"), "memory.oom_control"),
            _ => continue,
        };
        found.extend([format!("{mounted}{path}/{file}"), format!("{mounted}/{file}")].map(PathBuf::from));
    }
    found
}

/// The counter in such a file.
fn oom_kill(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{ResourceLimits, counters, oom_kill};
    use std::path::PathBuf;

    #[test]
    fn counters_are_found_in_both_versions_of_control_groups() {
        let paths = |groups| counters(groups).into_iter().map(PathBuf::into_os_string).collect::<Vec<_>>();
        let unified = ["/sys/fs/cgroup/user/a/memory.events", "/sys/fs/cgroup/memory.events"];
        assert_eq!(paths("0::/user/a\n"), unified);
        let first = ["/sys/fs/cgroup/memory/b/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"];
        assert_eq!(paths("5:cpu,cpuacct:/b\n4:memory:/b\n"), first);
        assert_eq!(oom_kill("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(oom_kill("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(oom_kill("low 0\n"), None);
    }

    #[test]
    fn limits_of_a_process_that_is_not_reaped() {
        let script = "ulimit -v 500000; ulimit -t 7; exit 3";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: waitid writes to a live local.
        unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
        let limits = ResourceLimits::of(pid);
        assert_eq!((limits.address_space, limits.cpu_seconds), (Some(500_000 * 1024), Some(7)));
        child.wait().unwrap();
    }
}
