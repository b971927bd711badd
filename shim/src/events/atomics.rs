//! The atomics that the order of events is made with.
//!
//! `tests/order_model.rs` compiles `order.rs` with those of a model checker instead. Invariant: nothing but names.

pub(super) use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
