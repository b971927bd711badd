//! Python stacks, read in place.
//!
//! It exists so that an allocation can be given its Python stack without a hook in the interpreter, without the GIL and
//! without allocating. Invariant: only the calling thread's own frames are read, and only of an interpreter whose
//! structures are known; else there are no Python frames and [`reason`] says why.

mod chain;
mod check;
mod code;
mod death;
mod find;
mod frame;
mod layout;
mod memory;
mod region;
mod text;

pub(crate) use chain::{Chain, MAX_DEPTH};
pub(crate) use find::{after_dlopen, finalizing, reason, start, version_hex};
