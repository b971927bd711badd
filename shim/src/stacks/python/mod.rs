//! Python stacks, read in place.
//!
//! It exists so that an allocation can be given its Python stack without a hook in the interpreter, without the GIL and
//! without allocating. Invariant: only the calling thread's own frames are read, and only of an interpreter whose
//! structures are known; else there are no Python frames and [`discovery::reason`] says why.

mod announce;
mod chain;
mod code;
mod current_state;
mod discovery;
mod frame;
mod frame_position;
mod frame_sentinels;
mod freed_code_objects;
mod interpreter;
mod layout;
mod layout_check;
mod raw_memory;
mod strings;
mod symbols;
mod thread_local_bytecode;
mod thread_name;
mod thread_specific;
mod thread_state_proof;
mod unsupported;
#[cfg(feature = "verify-marks")]
mod verify_sentinels;

pub(crate) use announce::{store_text, tell_collector};
pub(crate) use chain::{Chain, EvaluationEntry, FastComparison, NameLookup, StandingSentinel};
pub(crate) use discovery::{after_dlopen, start, stop, version_hex};
pub(crate) use frame_sentinels::allow as allow_sentinels;
pub(crate) use interpreter::{build, evaluates_by_tail_calls, evaluation_loop, finalizes_here, finalizing};
pub(crate) use layout::{ForVersion, Version};
pub(crate) use thread_name::{LONGEST as LONGEST_NAME, News, ThreadObject, object_of};
pub(crate) use thread_specific::forget as forget_specific;
#[cfg(feature = "verify-marks")]
pub(crate) use verify_sentinels::{note as note_shortcut, start as start_verifying};
