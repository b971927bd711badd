//! How to record.
//!
//! Invariant: plain values, the same for every process of one recording.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use crate::pictures::PictureOptions;
use crate::system::process_end::ProcessEnd;

/// How to record.
#[derive(Clone, Debug)]
pub struct RecordingOptions {
    /// Every event carries its time.
    pub timestamps: bool,
    /// Only samples of allocations are recorded, this many bytes apart on the average; every event carries its time, then.
    pub sample_bytes: Option<NonZeroU64>,
    /// The distance is changed, so that there are so many samples a second at most.
    pub sample_rate: Option<NonZeroU32>,
    /// Blocks of Python's allocators are recorded, in place of the memory that those take from the system.
    pub python_allocators: bool,
    /// The processes whose native call stacks are recorded.
    pub native: NativeStacks,
    /// The shim may write sentinels into frames of the interpreter, so that deep stacks need not be compared as a whole.
    pub frame_marks: bool,
    /// Interval of memory snapshots; at least 1 ms.
    pub snapshot_interval: Duration,
    /// Interval of checkpoints, at which unfinished segments are written, so that a growing capture is readable.
    pub checkpoint: Duration,
    /// Accounts of resident memory are taken.
    pub accounts: bool,
    /// When pictures of the process's objects are taken.
    pub pictures: Option<PictureOptions>,
    /// Path of the library in the file system of a process that has loaded it without one: by it the programs are recorded that this
    /// starts, or becomes.
    pub library: Option<PathBuf>,
    /// Puts in words what ended a process, if a signal did.
    pub end_reason: fn(&ProcessEnd) -> Option<String>,
    /// Is told why the capture of a process could not be written any more, on a thread that must not wait.
    pub cut_off: fn(&str),
}

impl RecordingOptions {
    /// Whether every event carries its time.
    pub(crate) fn has_times(&self) -> bool {
        self.timestamps || self.sample_bytes.is_some()
    }
}

impl Default for RecordingOptions {
    fn default() -> Self {
        Self {
            timestamps: false,
            sample_bytes: None,
            sample_rate: None,
            python_allocators: false,
            native: NativeStacks::Never,
            frame_marks: true,
            snapshot_interval: Duration::from_millis(10),
            checkpoint: Duration::from_millis(500),
            accounts: true,
            pictures: None,
            library: None,
            end_reason: |_| None,
            cut_off: |_| (),
        }
    }
}

/// The processes whose native call stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeStacks {
    /// None.
    Never,
    /// Those that do not run Python, whose allocations have no other stacks.
    WithoutPython,
    /// All.
    Always,
}
