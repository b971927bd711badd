//! Layer 2: orders events and writes them to the shared-memory ring.
//!
//! Invariant: depends on `platform` only.

mod atomics;
pub(crate) mod event_time;
pub(crate) mod order;
#[cfg(test)]
mod order_tests;
pub(crate) mod ring;
pub(crate) mod sampled_timer;
pub(crate) mod stack_model;
