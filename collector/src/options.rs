//! How to record.
//!
//! Invariant: plain values, the same for every process of one recording.

use std::time::Duration;

/// How to record.
#[derive(Clone, Copy, Debug)]
pub struct RecordingOptions {
    /// Every event carries its time.
    pub timestamps: bool,
    /// Blocks of Python's own allocators are recorded, and not what those take from the system.
    pub python_allocators: bool,
    /// Of which processes native call stacks are recorded.
    pub native: NativeStacks,
    /// Frames of the interpreter may be marked, so that deep Python stacks need not be compared whole.
    pub frame_marks: bool,
    /// Between memory snapshots; 1 ms at the least.
    pub snapshot_interval: Duration,
    /// How often unfinished segments are saved, so that a capture can be read while it is written.
    pub checkpoint: Duration,
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
        }
    }
}

/// Of which processes native call stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeStacks {
    /// Of none.
    Never,
    /// Of those that run another program than Python, whose allocations have no other stacks.
    WithoutPython,
    /// Of all.
    Always,
}
