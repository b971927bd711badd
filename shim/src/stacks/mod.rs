//! The third floor: call stacks, read in place: Python frames and native frames.
//!
//! Invariant: uses `events` and below; `native` uses `python`, never the reverse.

pub(crate) mod native;
pub(crate) mod python;
