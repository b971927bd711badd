//! A window that has come from a recording, of one process or the sum of several.
//!
//! Invariant: its groups are numbered by the tables of the subscription that it came from.

use memtrack_format::meta::Process;
use memtrack_reader::Thread;

use crate::live_windows::message::{WindowMessage, WindowSums};

/// What comes next.
pub(crate) enum NextWindow {
    /// A window, and the groups in it.
    Window(Box<ReceivedWindow>),
    /// Nothing within the time.
    Nothing,
    /// The recording sends no more, though it may have recorded more.
    Lost,
}

/// A window that has come.
pub(crate) struct ReceivedWindow {
    pub(crate) skipped: u64,
    pub(crate) message: WindowMessage,
    pub(crate) sums: WindowSums,
    pub(super) threads: Vec<Thread>,
    pub(super) process: Process,
}
