//! The files of this process's control groups, in both versions of them.
//!
//! Recorded programs are in the same groups, so their limits hold for them and memtrack together. Invariant: a file
//! that is not there, or has no limit, is `None`.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The memory groups of a process, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryGroups(Vec<PathBuf>);

/// From this part of a limit on, in percent, the kernel may kill at any time.
const NEAR_PERCENT: u64 = 90;

impl MemoryGroups {
    /// Those of this process, and of the programs that it starts.
    #[must_use]
    pub fn of_self() -> Self {
        Self(groups("memory"))
    }

    /// Those of another process.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self(directories(Path::new(ROOT), &text, "memory"))
    }

    /// Those of another process that limit its memory.
    pub(crate) fn limiting(pid: i32) -> Self {
        let mut groups = Self::of(pid);
        groups.0.retain(|group| limit(group).is_some());
        groups
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.0.iter().filter_map(|group| limit(group)).min()
    }

    /// Number of processes of the innermost group that the OOM killer has killed; the counters of version 2 that end in
    /// `.local` are without those of groups below it.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let files = ["memory.events.local", "memory.events", "memory.oom_control"];
        self.0.iter().find_map(|group| files.iter().find_map(|file| event(group, file, "oom_kill")))
    }

    /// Bytes that can still be used until a group is near its limit; 0: one is. Of a group that has no more left than `least`,
    /// without pages of files that the kernel can drop.
    pub(crate) fn room(&self, least: u64) -> u64 {
        let rooms = self.0.iter().filter_map(|group| {
            let near = limit(group)? / 100 * NEAR_PERCENT;
            let used = used(group);
            let room = near.saturating_sub(used);
            let is_enough = room > least;
            Some(if is_enough { room } else { near.saturating_sub(used.saturating_sub(inactive_files(group))) })
        });
        rooms.min().unwrap_or(u64::MAX)
    }
}

/// The limit of one group; version 1 represents none by a very large number, version 2 by a word.
fn limit(group: &Path) -> Option<u64> {
    let limit = number(group, "memory.max").or(number(group, "memory.limit_in_bytes"));
    limit.filter(|limit| *limit < i64::MAX as u64 / 2)
}

/// What the processes of one group use.
fn used(group: &Path) -> u64 {
    number(group, "memory.current").or(number(group, "memory.usage_in_bytes")).unwrap_or(0)
}

fn inactive_files(group: &Path) -> u64 {
    file_pages(group, ["total_inactive_file", "inactive_file"])
}

fn active_files(group: &Path) -> u64 {
    file_pages(group, ["total_active_file", "active_file"])
}

/// Bytes of pages of files in one group, by the name of version 1, which has those of groups below it, or by that of version 2.
fn file_pages(group: &Path, names: [&str; 2]) -> u64 {
    names.iter().find_map(|name| event(group, "memory.stat", name)).unwrap_or(0)
}

/// The smallest memory limit, in bytes, of this process's control group and its ancestors.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    MemoryGroups::of_self().limit()
}

/// The memory that a program of this process's control group can have at most, in bytes: its limit, or what the machine has.
#[must_use]
pub fn memory_at_most() -> Option<u64> {
    memory_limit().into_iter().chain(machine_memory("MemTotal:")).min()
}

/// Bytes of memory that this process can still take until the machine has none left, or one of its control groups reaches its
/// limit. Pages of files that the kernel can drop count as left.
#[must_use]
pub fn memory_left() -> u64 {
    let in_group = |group: &PathBuf| {
        let files = inactive_files(group) + active_files(group);
        limit(group).map(|limit| limit.saturating_sub(used(group).saturating_sub(files)))
    };
    let in_groups = MemoryGroups::of_self().0.iter().filter_map(in_group).min();
    machine_memory("MemAvailable:").into_iter().chain(in_groups).min().unwrap_or(u64::MAX)
}

/// What the kernel says about the machine's memory, in bytes.
fn machine_memory(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse().ok());
    kibibytes.and_then(|kibibytes: u64| kibibytes.checked_mul(1024))
}

/// Number of processes of this process's control group that the OOM killer has killed.
#[must_use]
pub fn oom_kills() -> Option<u64> {
    MemoryGroups::of_self().oom_kills()
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
    directories(Path::new(ROOT), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), controller)
}

/// The directories of the group and its ancestors below `root`, innermost first, from the lines of `/proc/PID/cgroup`. In a
/// container the path may be that of the host, and only the root exists.
fn directories(root: &Path, groups: &str, controller: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounted = match controllers {
            "" => root.to_path_buf(),
            _ if controllers.split(',').any(|one| one == controller) => root.join(controller),
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
    use super::{MemoryGroups, ROOT, counter, directories};
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn groups_are_found_in_both_versions() {
        let paths = |groups, of| {
            directories(Path::new(ROOT), groups, of).into_iter().map(PathBuf::into_os_string).collect::<Vec<_>>()
        };
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

    /// A made-up tree of a group `a/b` with these files in each of its directories.
    fn tree(root: &Path, below: &str, files: [&[(&str, &str)]; 2]) {
        for (directory, files) in ["a", "a/b"].into_iter().zip(files) {
            let directory = root.join(below).join(directory);
            fs::create_dir_all(&directory).unwrap();
            files.iter().for_each(|(file, text)| fs::write(directory.join(file), text).unwrap());
        }
    }

    #[test]
    fn limits_and_kills_are_those_of_the_groups_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let of = |lines: &str| MemoryGroups(directories(root.path(), lines, "memory"));
        tree(
            root.path(),
            "",
            [
                &[("memory.max", "2000\n"), ("memory.current", "1700\n"), ("memory.stat", "anon 1\ninactive_file 0\n")],
                &[
                    ("memory.max", "max\n"),
                    ("memory.events", "oom 3\noom_kill 9\n"),
                    ("memory.events.local", "oom 1\noom_kill 2\noom_group_kill 0\n"),
                ],
            ],
        );
        let second = of("0::/a/b\n");
        assert_eq!((second.limit(), second.oom_kills(), second.room(0)), (Some(2000), Some(2), 100));
        fs::write(root.path().join("a/memory.current"), "1850\n").unwrap();
        assert_eq!(second.room(0), 0);
        fs::write(root.path().join("a/memory.stat"), "anon 1\ninactive_file 100\n").unwrap();
        assert_eq!(second.room(0), 50, "the kernel can drop pages of files");

        let none = "9223372036854771712\n";
        tree(
            root.path(),
            "memory",
            [
                &[("memory.limit_in_bytes", none), ("memory.usage_in_bytes", "5000\n")],
                &[
                    ("memory.limit_in_bytes", "1000\n"),
                    ("memory.usage_in_bytes", "990\n"),
                    ("memory.stat", "inactive_file 500\ntotal_inactive_file 50\n"),
                    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
                    ("memory.failcnt", "12\n"),
                ],
            ],
        );
        let first = of("4:memory:/a/b\n");
        assert_eq!((first.limit(), first.oom_kills(), first.room(0)), (Some(1000), Some(7), 0));
        assert!(MemoryGroups::default().room(0) == u64::MAX && of("4:cpu:/a\n").limit().is_none());
    }
}
