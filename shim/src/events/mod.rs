//! The second floor: events in their order, on their way into the shared-memory ring.
//!
//! Invariant: uses `platform` only; who produces stacks and events is unknown here.

mod atomics;
pub(crate) mod event_time;
pub(crate) mod order;
#[cfg(test)]
mod order_tests;
pub(crate) mod ring;
pub(crate) mod sampled_timer;
pub(crate) mod stack_model;
