//! The interface on processors where it is not supported: every call is refused.
//!
//! Invariant: nothing is touched.

use std::fs::File;
use std::io;
use std::time::Duration;

use crate::refusal::Refusal;
use crate::view::ProcessView;

/// The memory file that the target shares with memtrack.
#[derive(Debug)]
pub struct SharedFile {
    /// The file, open for both.
    pub file: File,
    /// How often the function was called before, and refused the memory.
    pub attempt: usize,
}

/// Refused.
///
/// # Errors
/// Always.
pub fn attach(
    _pid: i32,
    _image: &[u8],
    _retry: &(dyn Fn(i32) -> bool + Sync),
    _share: &mut (dyn FnMut(SharedFile) -> io::Result<Option<u32>> + Send),
) -> Result<i32, Refusal> {
    Err(Refusal::Architecture)
}

/// Refused.
///
/// # Errors
/// Always.
pub fn detach(_pid: i32) -> Result<i32, Refusal> {
    Err(Refusal::Architecture)
}

/// Refused.
///
/// # Errors
/// Always.
pub fn detach_abandoned(_pid: i32) -> Result<i32, Refusal> {
    Err(Refusal::Architecture)
}

/// Refused.
///
/// # Errors
/// Always.
pub fn find_library(_pid: i32) -> Result<bool, Refusal> {
    Err(Refusal::Architecture)
}

/// How a process was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreezeCost {
    /// How long its threads stood still.
    pub pause: Duration,
    /// Whether a copy is read, and the process runs on.
    pub is_copied: bool,
    /// Whether the moment was one that was accepted.
    pub was_ready: bool,
}

/// There is never a copy.
#[derive(Debug, Default)]
pub struct CopyInUse;

impl CopyInUse {
    /// There is none.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }

    /// Does nothing.
    pub fn end(&self) {}
}

/// Refused.
///
/// # Errors
/// Always.
pub fn freeze<T: Send>(
    _pid: i32,
    _hold: bool,
    _in_use: &CopyInUse,
    _ready: &(dyn Fn(&ProcessView) -> bool + Sync),
    _work: impl FnOnce(&ProcessView, FreezeCost) -> T + Send,
) -> Result<T, Refusal> {
    Err(Refusal::Architecture)
}
