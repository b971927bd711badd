//! What is known of a recording: its options, its place in the tree of processes, how far it is, and its summary.
//!
//! Invariant: nothing here drains or writes.

pub(crate) mod describe;
pub(crate) mod options;
pub(crate) mod process_tree;
pub(crate) mod recording_progress;
pub(crate) mod summary;
