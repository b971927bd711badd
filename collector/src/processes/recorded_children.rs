//! The recordings of children, which the server's thread starts and the collector ends.
//!
//! Invariant: a child stays in the list until the collector takes it out, whether its process has ended or not.

use std::sync::{Arc, Mutex, PoisonError};

use crate::processes::process_recording::ProcessRecording;
use crate::processes::recording_access::RecordingAccess;

/// A child that is recorded, or was.
#[derive(Debug)]
pub(crate) struct RecordedChild {
    pub(crate) pid: i32,
    /// Its number in the tree; the first process has 0.
    pub(crate) number: u32,
    pub(crate) recording: ProcessRecording,
}

/// The children that were admitted; clones share one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedChildren(Arc<Mutex<Vec<RecordedChild>>>);

impl RecordedChildren {
    /// Adds one.
    pub(crate) fn add(&self, child: RecordedChild) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }

    /// Access to each of them, with their numbers.
    pub(crate) fn access(&self) -> Vec<(u32, RecordingAccess)> {
        let children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let access = |child: &RecordedChild| RecordingAccess { admitted: Some(child.pid), ..child.recording.access() };
        children.iter().map(|child| (child.number, access(child))).collect()
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> Vec<RecordedChild> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
