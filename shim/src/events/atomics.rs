//! The atomics that the order of events is made with.
//!
//! Re-exported so that `tests/order_model.rs` can compile `order.rs` with those of a model checker. Invariant: contains
//! re-exports only.

pub(super) use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
