//! The recorded processes: those that connect are admitted, and each has a recording of its own.
//!
//! Invariant: a process is answered within the time that it waits, or told that it is not recorded.

pub(crate) mod admission;
pub(crate) mod asked_snapshots;
pub(crate) mod memory_offer;
pub(crate) mod process_recording;
pub(crate) mod recorded_children;
pub(crate) mod recording_access;
pub(crate) mod recording_handle;
pub(crate) mod refusal;
pub(crate) mod server;
