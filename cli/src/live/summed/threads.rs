//! The threads of all processes, with numbers of their own.
//!
//! Invariant: a number is that of one thread in all windows up to the one in which its process has ended; then it is another's. So
//! there are no more of them than threads that ran at once.

use std::collections::HashMap;

use memtrack_reader::{Thread, ThreadId};

/// Threads by number.
#[derive(Default)]
pub(super) struct SummedThreads {
    threads: Vec<Thread>,
    /// The numbers of the threads of each process, by their ids.
    known: HashMap<u32, HashMap<i32, ThreadId>>,
    /// Processes that have ended, but may be in the next window.
    ended: Vec<u32>,
    /// Numbers that nobody has.
    free: Vec<ThreadId>,
}

impl SummedThreads {
    /// The number of a thread of a process.
    pub(super) fn id_of(&mut self, process: u32, thread: Thread) -> ThreadId {
        let next = ThreadId(u32::try_from(self.threads.len()).unwrap_or(u32::MAX));
        let of_process = self.known.entry(process).or_default();
        let id = *of_process.entry(thread.tid).or_insert_with(|| self.free.pop().unwrap_or(next));
        match self.threads.get_mut(id.0 as usize) {
            Some(known) => *known = thread,
            None => self.threads.push(thread),
        }
        id
    }

    /// A process has ended.
    pub(super) fn end(&mut self, process: u32) {
        self.ended.push(process);
    }

    /// Those of a window.
    pub(super) fn take(&mut self) -> Vec<Thread> {
        let threads = self.threads.clone();
        for process in self.ended.drain(..) {
            self.free.extend(self.known.remove(&process).into_iter().flat_map(HashMap::into_values));
        }
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::{SummedThreads, Thread, ThreadId};

    fn thread(tid: i32) -> Thread {
        Thread { tid, ..Thread::default() }
    }

    #[test]
    fn numbers_of_ended_processes_are_used_again_after_their_last_window() {
        let mut threads = SummedThreads::default();
        assert_eq!([threads.id_of(0, thread(1)), threads.id_of(1, thread(2))], [ThreadId(0), ThreadId(1)]);
        threads.end(1);
        // Its last flows are in the next window.
        assert_eq!([threads.id_of(1, thread(2)), threads.id_of(2, thread(3))], [ThreadId(1), ThreadId(2)]);
        assert_eq!(threads.take().len(), 3);
        assert_eq!([threads.id_of(3, thread(2)), threads.id_of(0, thread(1))], [ThreadId(1), ThreadId(0)]);
        for process in 4..1000 {
            threads.id_of(process, thread(5));
            threads.end(process);
            assert_eq!(threads.take().len(), 4);
        }
    }
}
