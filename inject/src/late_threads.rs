//! Threads that were asked to stop and have not done so in time: they wait in the kernel, or for a processor.
//!
//! The request cannot be taken back while they run. They stop at any place, and may hold a lock for which a call in
//! another thread waits. Invariant: one that has stopped goes on, as if it had not, when [`LateThreads::release_stopped`]
//! returns; the others do so when the tracing thread ends.

use crate::stopped_thread::StoppedThread;
use crate::tracee::{StopReason, Tracee, is_alive, is_untraced, release_ended};
use crate::waiting::resumable;

/// The late threads of a process.
#[derive(Debug)]
pub(crate) struct LateThreads {
    pid: i32,
    tracees: Vec<Tracee>,
}

impl LateThreads {
    /// None of this process yet.
    pub(crate) fn of(pid: i32) -> Self {
        Self { pid, tracees: Vec::new() }
    }

    pub(crate) fn add(&mut self, tracee: Tracee) {
        self.tracees.push(tracee);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tracees.is_empty()
    }

    pub(crate) fn contains(&self, tid: i32) -> bool {
        self.tracees.iter().any(|tracee| tracee.tid() == tid)
    }

    /// Lets those go on that have stopped meanwhile.
    pub(crate) fn release_stopped(&mut self) {
        let mut waiting = Vec::with_capacity(self.tracees.len());
        for tracee in self.tracees.drain(..) {
            match tracee.stop_reason() {
                Some(reason) => release(tracee, reason),
                // Another thread has executed a program, which has the id of the first one.
                None if is_untraced(tracee.tid()) => {}
                None if is_alive(self.pid, tracee.tid()) => waiting.push(tracee),
                // It would be waited for, by a thread that executes another program. The first one is not, and its end is its
                // parent's to see.
                None if tracee.tid() != self.pid => release_ended(tracee.tid()),
                None => {}
            }
        }
        self.tracees = waiting;
    }
}

impl Drop for LateThreads {
    fn drop(&mut self) {
        self.release_stopped();
    }
}

/// Lets a stopped thread go on: with the signal that it was about to get.
fn release(tracee: Tracee, reason: StopReason) {
    match (reason, tracee.registers()) {
        (StopReason::Signal { number, .. }, Ok(registers)) => {
            // Nothing is handled where the signal is ignored, which it is only now: then the system call goes on.
            let _ = tracee.set_registers(&resumable(&registers));
            let _ = tracee.detach(number);
        }
        (StopReason::Signal { number, .. }, Err(_)) => drop(tracee.detach(number)),
        (_, Ok(registers)) => StoppedThread { tracee, registers }.release(),
        (_, Err(_)) => drop(tracee),
    }
}
