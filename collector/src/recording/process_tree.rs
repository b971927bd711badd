//! The tree of recorded processes: how many were announced, were admitted and have ended.
//!
//! Invariant: a process counts as living from before its admission is sent until all its records were handed over.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of the tree, which all threads of the collector share.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    /// The first process to serve; 0: the first that connects.
    first: AtomicI32,
    refused: AtomicU32,
    /// Children that recorded processes have announced.
    announced: AtomicU32,
    /// Children that have connected, and processes that are living.
    met: AtomicU32,
    living: AtomicU32,
    /// Messages for the user about children that could not be recorded.
    notes: Mutex<Vec<String>>,
}

impl ProcessTree {
    /// Sets the process that must be the first.
    pub(crate) fn expect_first(&self, pid: i32) {
        self.first.store(pid, SeqCst);
    }

    pub(crate) fn may_be_first(&self, pid: i32) -> bool {
        let first = self.first.load(Acquire);
        first == 0 || first == pid
    }

    pub(crate) fn add_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    /// Adds the first process.
    pub(crate) fn add_first(&self) {
        self.living.fetch_add(1, SeqCst);
    }

    /// Adds a child.
    pub(crate) fn add_child(&self) {
        self.living.fetch_add(1, SeqCst);
        self.met.fetch_add(1, SeqCst);
    }

    /// Notes that a child that was announced has connected, and is not to be recorded.
    pub(crate) fn skip_child(&self) {
        self.met.fetch_add(1, SeqCst);
    }

    /// Adds the number of children that an ended image of a process had announced.
    pub(crate) fn add_announced(&self, children: u32) {
        self.announced.fetch_add(children, SeqCst);
    }

    /// Notes that a process has ended and all its records were handed over.
    pub(crate) fn process_ended(&self) {
        self.living.fetch_sub(1, SeqCst);
    }

    /// Notes that a process that had counted as ended has connected.
    pub(crate) fn process_returned(&self) {
        self.living.fetch_add(1, SeqCst);
    }

    /// Number of living processes.
    pub(crate) fn living(&self) -> u32 {
        self.living.load(SeqCst)
    }

    /// Number of announced children that have not connected.
    pub(crate) fn missing(&self) -> u32 {
        self.announced.load(SeqCst).saturating_sub(self.met.load(SeqCst))
    }

    /// Adds a message about a child that could not be recorded.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Takes the messages out.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes())
    }

    fn notes(&self) -> MutexGuard<'_, Vec<String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
