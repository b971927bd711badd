//! Which thread a process means by a thread id: one in a pid namespace of its own has other ids for its threads than the
//! collector's proc file system.
//!
//! Invariant: a thread counts as ended only if its id here is known and stands for it no more.

use std::collections::HashMap;

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
}

impl ThreadIds {
    /// Those of a process that says that it has this process id.
    pub(crate) fn new(pid: i32, own_pid: i32) -> Self {
        Self { pid, own_pid, outer: HashMap::new() }
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
            // Another thread may have got the number.
            ThreadStatus::Named(_) if procfs::own_id(outer).is_some_and(|id| id != tid) => ThreadStatus::Gone,
            status => status,
        }
    }

    /// Looks for these threads, if they are not known yet.
    pub(crate) fn find(&mut self, mut tids: impl Iterator<Item = i32>) {
        if !self.are_same() && tids.any(|tid| !self.outer.contains_key(&tid)) {
            let threads = procfs::threads(self.pid).into_iter();
            // What has ended stays known, as such.
            self.outer.extend(threads.filter_map(|outer| Some((procfs::own_id(outer)?, outer))));
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
        // The number stands for another thread, and for none.
        other.outer.extend([(7, pid), (8, i32::MAX)]);
        assert_eq!([7, 8].map(|tid| other.status(&handle, tid)), [ThreadStatus::Gone, ThreadStatus::Gone]);
    }
}
