//! Recordings that run: [`handler`] answers commands in the recording process, [`recordings`] finds recordings and asks
//! them, [`snapshot`] copies what they have recorded.
//!
//! Invariant: a recording without a control socket is as good as one with it, but for those who want to reach it.

pub(crate) mod handler;
pub(crate) mod recordings;
pub(crate) mod snapshot;
mod span_children;
pub(crate) mod spans;
