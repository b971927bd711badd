//! What is known of a running recording: written by its draining thread, read by whoever asks.
//!
//! Invariant: the draining thread never waits for a reader longer than it takes to copy a process's metadata.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use memtrack_format::meta::Process;

use crate::system::process_handle::ProcessHandle;

/// The state of one recording.
#[derive(Debug, Default)]
pub(crate) struct RecordingProgress {
    /// Empty before the process has connected; gone when its recording has ended.
    handle: OnceLock<Weak<ProcessHandle>>,
    process: Mutex<Option<Process>>,
    record_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    ended: AtomicBool,
    /// It was sent SIGTERM.
    terminated: AtomicBool,
    /// It ends by itself: it has called `exit` or the like, or sends itself a signal.
    ends_itself: AtomicBool,
    /// The capture could not be written, and what comes later is not in it.
    cut_off: AtomicBool,
    /// Until this time on the monotonic clock somebody follows the capture while it is written.
    followed_until_ns: AtomicU64,
}

impl RecordingProgress {
    /// The process has connected.
    pub(crate) fn set_handle(&self, handle: &Arc<ProcessHandle>) {
        // After an exec it is the same process.
        let _ = self.handle.set(Arc::downgrade(handle));
    }

    /// Sends the process SIGTERM, unless it has ended or was sent one before; whether it did.
    pub(crate) fn terminate(&self) -> bool {
        let handle = self.handle.get().filter(|_| !self.has_ended()).and_then(Weak::upgrade);
        let Some(handle) = handle else { return false };
        !self.terminated.swap(true, Relaxed) && handle.terminate()
    }

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

    /// The process has begun to end by itself.
    pub(crate) fn set_ends_itself(&self) {
        self.ends_itself.store(true, Relaxed);
    }

    /// Whether the process has begun to end by itself.
    pub(crate) fn ends_itself(&self) -> bool {
        self.ends_itself.load(Relaxed)
    }

    /// The capture could not be written: what comes later is not in it.
    pub(crate) fn set_cut_off(&self) {
        self.cut_off.store(true, Relaxed);
    }

    /// Whether the capture ended because it could not be written.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Relaxed)
    }

    /// Somebody follows the capture, at least until this time on the monotonic clock.
    pub(crate) fn set_followed(&self, until_ns: u64) {
        self.followed_until_ns.fetch_max(until_ns, Relaxed);
    }

    /// Whether somebody follows the capture at this time.
    pub(crate) fn is_followed(&self, now_ns: u64) -> bool {
        now_ns < self.followed_until_ns.load(Relaxed)
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
