//! The fifth floor: the program's calls are made to come to the shim, and what is then done.
//!
//! Invariant: uses `recording` and below.

pub(crate) mod got;
pub(crate) mod hooks;
pub(crate) mod python_allocators;
