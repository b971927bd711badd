//! How to record.
//!
//! Invariant: plain values, the same for every process of one recording.

use std::time::Duration;

use crate::pictures::PictureOptions;

/// How to record.
#[derive(Clone, Debug)]
pub struct RecordingOptions {
    /// Every event carries its time.
    pub timestamps: bool,
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
    /// When pictures of the process's objects are taken.
    pub pictures: Option<PictureOptions>,
}

impl Default for RecordingOptions {
    fn default() -> Self {
        Self {
            timestamps: false,
            python_allocators: false,
            native: NativeStacks::Never,
            frame_marks: true,
            snapshot_interval: Duration::from_millis(10),
            checkpoint: Duration::from_millis(500),
            pictures: None,
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
