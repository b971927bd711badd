//! The atomics of the protocol between writer and reader.
//!
//! `tests/chain_model.rs` compiles `segment_chain.rs` with those of a model checker instead. Invariant: nothing but names.

pub(super) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
pub(super) use std::sync::atomic::compiler_fence;
