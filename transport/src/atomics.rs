//! The atomics of the protocol between writer and reader.
//!
//! Re-exported so that `tests/chain_model.rs` can compile `segment_chain.rs` with those of a model checker. Invariant:
//! contains re-exports only.

pub(super) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub(super) use std::sync::atomic::compiler_fence;
