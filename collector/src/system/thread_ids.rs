//! Which thread a process means by a thread id: one in a pid namespace of its own has other ids for its threads than the
//! collector's proc file system.
//!
//! Invariant: a thread of another namespace never counts as ended: it may only be one that is not found, and its slot is in use.

use std::collections::{HashMap, HashSet};

use super::process_handle::ProcessHandle;
use super::procfs::{self, ThreadStatus};

/// The thread ids of one process.
#[derive(Debug)]
pub(crate) struct ThreadIds {
    pid: i32,
    /// Its process id in its own namespace, which is the id of its first thread there.
    own_pid: i32,
    /// From its thread ids to those of this side, where they are others.
    outer: HashMap<i32, i32>,
    /// The ids of this side that were looked up and are in use.
    known: HashSet<i32>,
}

impl ThreadIds {
    /// Those of a process that says that it has this process id.
    pub(crate) fn new(pid: i32, own_pid: i32) -> Self {
        Self { pid, own_pid, outer: HashMap::new(), known: HashSet::new() }
    }

    /// The id of its first thread.
    pub(crate) fn first(&self) -> i32 {
        self.own_pid
    }

    /// The state of a thread.
    pub(crate) fn status(&self, handle: &ProcessHandle, tid: i32) -> ThreadStatus {
        if self.are_same() {
            return handle.thread(tid);
        }
        let Some(&outer) = self.outer.get(&tid) else { return ThreadStatus::Unknown };
        match handle.thread(outer) {
            // Unless another thread has got the number.
            ThreadStatus::Named(name) if procfs::own_id(outer) == Some(tid) => ThreadStatus::Named(name),
            _ => ThreadStatus::Unknown,
        }
    }

    /// New threads have begun to record, if there are any: looks for those that have come to the process.
    pub(crate) fn find(&mut self, mut new: impl Iterator<Item = i32>) {
        if self.are_same() || new.next().is_none() {
            return;
        }
        let threads: HashSet<i32> = procfs::threads(self.pid).into_iter().collect();
        self.known.retain(|outer| threads.contains(outer));
        for outer in threads {
            if !self.known.contains(&outer)
                && let Some(own) = procfs::own_id(outer)
            {
                self.known.insert(outer);
                self.outer.insert(own, outer);
            }
        }
    }

    fn are_same(&self) -> bool {
        self.pid == self.own_pid
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessHandle, ThreadIds, ThreadStatus, procfs};

    #[test]
    fn threads_are_found_by_their_own_ids_and_others_are_unknown() {
        let pid = std::process::id().cast_signed();
        let handle = ProcessHandle::of(pid);
        let same = ThreadIds::new(pid, pid);
        assert!(matches!(same.status(&handle, pid), ThreadStatus::Named(_)));
        assert_eq!(same.status(&handle, i32::MAX), ThreadStatus::Gone);

        // As of another namespace, though the ids are the same here.
        let mut other = ThreadIds::new(pid, 1);
        assert_eq!((other.first(), other.status(&handle, pid)), (1, ThreadStatus::Unknown));
        other.find([pid].into_iter());
        let name = procfs::thread(pid, pid);
        assert_eq!(other.status(&handle, pid), name);
        assert_eq!(other.status(&handle, i32::MAX), ThreadStatus::Unknown);
        // The number stands for another thread, and for none: what uses the slot may be a later thread of the same id.
        other.outer.extend([(7, pid), (8, i32::MAX), (pid, i32::MAX)]);
        assert_eq!([7, 8, pid].map(|tid| other.status(&handle, tid)), [const { ThreadStatus::Unknown }; 3]);
        other.known.clear();
        other.find([pid].into_iter());
        assert_eq!(other.status(&handle, pid), name);
    }
}
