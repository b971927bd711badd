//! What is known of a running recording: written by its draining thread, read by whoever asks.
//!
//! Invariant: the draining thread never waits for a reader longer than it takes to copy a process's metadata.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use memtrack_format::meta::Process;
use memtrack_transport::clock::monotonic_ns;

use crate::system::process_handle::ProcessHandle;

/// A reading that is older is not that of a process whose thread drains: it waits for the disk, as it may for long.
const STALE_NS: u64 = 250_000_000;

/// Resident memory of a process at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidentReading {
    /// On the monotonic clock.
    pub(crate) time_ns: u64,
    /// Without memtrack's own.
    pub(crate) rss: u64,
    /// What is neither shared nor a file's.
    pub(crate) private: u64,
}

/// The state of one recording.
#[derive(Debug, Default)]
pub(crate) struct RecordingProgress {
    /// Empty before the process has connected; gone when its recording has ended.
    handle: OnceLock<Weak<ProcessHandle>>,
    process: Mutex<Option<Process>>,
    record_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    reading: Mutex<ResidentReading>,
    ended: AtomicBool,
    /// It was sent SIGTERM.
    terminated: AtomicBool,
    /// It ends by itself: it has called `exit` or the like, or sends itself a signal.
    ends_itself: AtomicBool,
    /// Why the capture could not be written: what comes later is not in it.
    write_error: OnceLock<String>,
    /// What it has become by exec, if that cannot be recorded.
    unrecorded_program: Mutex<Option<String>>,
    /// Why its library records no more.
    stop_reason: Mutex<Option<&'static str>>,
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

    /// The capture could not be written, for this reason: what comes later is not in it. Whether that is new.
    pub(crate) fn set_cut_off(&self, reason: &str) -> bool {
        self.write_error.set(reason.to_owned()).is_ok()
    }

    /// Why the capture ended, if it could not be written.
    pub(crate) fn write_error(&self) -> Option<&str> {
        self.write_error.get().map(String::as_str)
    }

    /// It goes on as this program, which cannot be recorded; `None`: it does not, or has ended.
    pub(crate) fn set_unrecorded_program(&self, program: Option<String>) {
        *self.unrecorded_program.lock().unwrap_or_else(PoisonError::into_inner) = program;
    }

    /// The program as which it goes on unrecorded.
    pub(crate) fn unrecorded_program(&self) -> Option<String> {
        self.unrecorded_program.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its library has stopped recording, for this reason; `None`: it records, perhaps again, after an exec.
    pub(crate) fn set_stop_reason(&self, reason: Option<&'static str>) {
        *self.stop_reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Why its library records no more.
    pub(crate) fn stop_reason(&self) -> Option<&'static str> {
        *self.stop_reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process has ended, and as which program it goes on if it counts as ended for that. One that connects again is told
    /// to live before it has no such program, so that it is at no time one that has ended without one.
    pub(crate) fn end_state(&self) -> (bool, Option<String>) {
        let had_ended = self.has_ended();
        let program = self.unrecorded_program();
        (had_ended && self.has_ended(), program)
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

    /// The resident memory of the process was read.
    pub(crate) fn set_reading(&self, reading: ResidentReading) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }

    /// Resident memory without memtrack's own; `None` if it is not known.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        self.late_resident_bytes().or_else(|| Some(self.resident_bytes.load(Relaxed)).filter(|bytes| *bytes > 0))
    }

    /// Where the draining thread has not come to read it for long, by how much its private part has changed since.
    fn late_resident_bytes(&self) -> Option<u64> {
        let reading = *self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.rss == 0 || monotonic_ns().saturating_sub(reading.time_ns) < STALE_NS {
            return None;
        }
        let private = self.handle.get()?.upgrade()?.private_bytes()?;
        Some(reading.rss.saturating_add(private).saturating_sub(reading.private))
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memtrack_transport::clock::monotonic_ns;

    use super::{RecordingProgress, ResidentReading};
    use crate::system::process_handle::ProcessHandle;

    #[test]
    fn memory_is_known_while_the_thread_that_drains_waits() {
        const RSS: u64 = 1 << 40;
        let handle = Arc::new(ProcessHandle::of(std::process::id().cast_signed()));
        let progress = RecordingProgress::default();
        progress.set_handle(&handle);
        assert_eq!(progress.resident_bytes(), None);
        progress.set_counts(0, RSS);
        let at = |time_ns| progress.set_reading(ResidentReading { time_ns, rss: RSS, private: 0 });
        at(monotonic_ns() + 3_600_000_000_000);
        assert_eq!(progress.resident_bytes(), Some(RSS));
        at(0);
        // Nothing of this process was private then.
        assert!(progress.resident_bytes() > Some(RSS));
        drop(handle);
        assert_eq!(progress.resident_bytes(), Some(RSS), "it has ended");
    }
}
