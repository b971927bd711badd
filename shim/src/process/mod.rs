//! Layer 6: beginning and end of recording, fork, exec and spawn.
//!
//! Invariant: no lower layer depends on it; values that lower layers need are passed as arguments.

mod attach;
pub(crate) mod child_environment;
mod exclusive_call;
pub(crate) mod exec;
mod exit;
pub(crate) mod fork;
mod hook_table;
mod inherited;
mod own_signal;
pub(crate) mod preinit;
pub(crate) mod preload_check;
mod recorded_process;
mod recorder_start;
mod recording_span;
mod rest;
pub(crate) mod spawn;
pub(crate) mod startup;
