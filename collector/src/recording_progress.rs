//! What is known of a running recording: written by its draining thread, read by whoever asks.
//!
//! Invariant: the draining thread never waits for a reader longer than it takes to copy a process's metadata.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

use memtrack_format::meta::Process;

/// The state of one recording.
#[derive(Debug, Default)]
pub(crate) struct RecordingProgress {
    process: Mutex<Option<Process>>,
    record_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    ended: AtomicBool,
}

impl RecordingProgress {
    /// The metadata of the process has changed.
    pub(crate) fn set_process(&self, process: &Process) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process.clone());
    }

    /// After a round of draining.
    pub(crate) fn set_counts(&self, record_bytes: u64, resident_bytes: u64) {
        self.record_bytes.store(record_bytes, Relaxed);
        self.resident_bytes.store(resident_bytes, Relaxed);
    }

    /// The process has ended, or replaced its image and is recorded again.
    pub(crate) fn set_ended(&self, ended: bool) {
        self.ended.store(ended, Relaxed);
    }

    /// The metadata of the process; `None` before it has connected.
    pub(crate) fn process(&self) -> Option<Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes of records so far.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Relaxed)
    }

    /// Resident memory at the last sample; `None` if there is none.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        Some(self.resident_bytes.load(Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}
