//! The fourth floor: the state of a recording thread, and how its events become records.
//!
//! Invariant: uses `stacks` and below; knows no hook and no loaded object.

pub(crate) mod deferred_block;
pub(crate) mod finalize_barrier;
pub(crate) mod thread;
