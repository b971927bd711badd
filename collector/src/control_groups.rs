//! The files of this process's control groups, in both versions of them.
//!
//! Recorded programs are in the same groups, so their limits hold for them and memtrack together. Invariant: a file
//! that is not there, or has no limit, is `None`.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The smallest memory limit, in bytes, of this process's control group and its ancestors.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let groups = groups("memory");
    let limits =
        groups.iter().filter_map(|group| number(group, "memory.max").or(number(group, "memory.limit_in_bytes")));
    // Version 1 represents no limit by a very large number.
    limits.min().filter(|limit| *limit < i64::MAX as u64 / 2)
}

/// Number of processes of this process's control group that the OOM killer has killed.
#[must_use]
pub fn oom_kills() -> Option<u64> {
    let event =
        |group: &PathBuf| event(group, "memory.events", "oom_kill").or(event(group, "memory.oom_control", "oom_kill"));
    groups("memory").iter().find_map(event)
}

/// Number of processes and threads that the limit (`pids.max`) of this process's control group or of an ancestor has
/// refused.
#[must_use]
pub fn refused_tasks() -> Option<u64> {
    groups("pids").iter().filter_map(|group| event(group, "pids.events", "max")).max()
}

/// How many processes and threads may still be started in this process's control groups.
pub(crate) fn tasks_left() -> Option<u64> {
    let left = |group: &PathBuf| Some(number(group, "pids.max")?.saturating_sub(number(group, "pids.current")?));
    groups("pids").iter().filter_map(left).min()
}

fn groups(controller: &str) -> Vec<PathBuf> {
    directories(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), controller)
}

/// The directories of the group and its ancestors, innermost first, from the lines of `/proc/self/cgroup`. In a
/// container the path may be that of the host, and only the root exists.
fn directories(groups: &str, controller: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounted = match controllers {
            "" => PathBuf::from(ROOT),
            _ if controllers.split(',').any(|one| one == controller) => Path::new(ROOT).join(controller),
            _ => continue,
        };
        let group = mounted.join(path.trim_start_matches('/'));
        found.extend(group.ancestors().take_while(|path| path.starts_with(&mounted)).map(Path::to_path_buf));
    }
    found
}

fn number(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

fn event(group: &Path, file: &str, name: &str) -> Option<u64> {
    counter(&fs::read_to_string(group.join(file)).ok()?, name)
}

fn counter(events: &str, name: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{counter, directories};
    use std::path::PathBuf;

    #[test]
    fn groups_are_found_in_both_versions() {
        let paths = |groups, of| directories(groups, of).into_iter().map(PathBuf::into_os_string).collect::<Vec<_>>();
        let unified = ["/sys/fs/cgroup/user/a", "/sys/fs/cgroup/user", "/sys/fs/cgroup"];
        assert_eq!(paths("0::/user/a\n", "memory"), unified);
        let first = "5:cpu,cpuacct:/b\n4:memory:/b\n3:pids:/\n";
        assert_eq!(paths(first, "memory"), ["/sys/fs/cgroup/memory/b", "/sys/fs/cgroup/memory"]);
        assert_eq!(paths(first, "pids"), ["/sys/fs/cgroup/pids/"]);
        assert_eq!(paths(first, "io"), Vec::<PathBuf>::new());
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let events = "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!((counter(events, "oom_kill"), counter(events, "oom")), (Some(2), Some(3)));
        assert_eq!(counter("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", "oom_kill"), Some(7));
        assert_eq!(counter("low 0\n", "oom_kill"), None);
    }
}
