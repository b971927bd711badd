//! Layer 4: per-thread recording state, and encoding of events.
//!
//! Invariant: depends on `stacks` and lower layers only; knows no hook and no loaded object.

pub(crate) mod account_wait;
pub(crate) mod deferred_block;
pub(crate) mod finalize_barrier;
pub(crate) mod inherited_memory;
pub(crate) mod parted_memory;
pub(crate) mod sampled_addresses;
pub(crate) mod sampling;
pub(crate) mod thread;
