//! What is known of the tree of processes: how many were expected, met and have ended, and the recordings of the children.
//!
//! Invariant: a process counts as living from before its answer until all it recorded was handed over.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process_recording::ProcessRecording;

/// The tree, as its threads share it.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    /// The first process to serve; 0: the first that connects.
    first: AtomicI32,
    refused: AtomicU32,
    /// Processes that recorded ones said they would start.
    announced: AtomicU32,
    /// Children that were met, and processes that live.
    met: AtomicU32,
    living: AtomicU32,
    children: Mutex<RecordedChildren>,
}

/// The children that were met.
#[derive(Debug, Default)]
pub(crate) struct RecordedChildren {
    pub(crate) recordings: Vec<RecordedChild>,
    /// What a person should know of those that could not be recorded.
    pub(crate) notes: Vec<String>,
}

/// A child that is or was recorded.
#[derive(Debug)]
pub(crate) struct RecordedChild {
    pub(crate) pid: i32,
    /// Its number in the tree; the first process has 0.
    pub(crate) number: u32,
    pub(crate) recording: ProcessRecording,
}

impl ProcessTree {
    /// Only this process may be the first.
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

    /// The first process was met.
    pub(crate) fn add_first(&self) {
        self.living.fetch_add(1, SeqCst);
    }

    /// A child was met.
    pub(crate) fn add_child(&self, child: RecordedChild) {
        self.living.fetch_add(1, SeqCst);
        self.met.fetch_add(1, SeqCst);
        self.children().recordings.push(child);
    }

    /// An image of a process has ended, which had announced so many children.
    pub(crate) fn add_announced(&self, children: u32) {
        self.announced.fetch_add(children, SeqCst);
    }

    /// A process has ended, and everything it recorded was handed over.
    pub(crate) fn process_ended(&self) {
        self.living.fetch_sub(1, SeqCst);
    }

    /// Processes that live.
    pub(crate) fn living(&self) -> u32 {
        self.living.load(SeqCst)
    }

    /// Children that ended processes had announced and that were not met: because they could not connect, or not yet.
    pub(crate) fn missing(&self) -> u32 {
        self.announced.load(SeqCst).saturating_sub(self.met.load(SeqCst))
    }

    /// A child could not be recorded, for this reason.
    pub(crate) fn note(&self, note: String) {
        let mut children = self.children();
        if !children.notes.contains(&note) {
            children.notes.push(note);
        }
    }

    /// Takes the children out.
    pub(crate) fn take_children(&self) -> RecordedChildren {
        std::mem::take(&mut self.children())
    }

    fn children(&self) -> MutexGuard<'_, RecordedChildren> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
