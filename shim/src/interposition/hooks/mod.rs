//! The functions that run in place of the program's.
//!
//! Invariant: a hook does what its original does, result, errno and exceptions included, and it allocates nothing.

pub(crate) mod cxx;
mod dlopen_search;
pub(crate) mod forks;
pub(crate) mod heap;
mod hook_macros;
pub(crate) mod jumps;
pub(crate) mod loader;
pub(crate) mod mapping;
pub(crate) mod other_allocators;
pub(crate) mod prctl;
pub(crate) mod threads;
pub(crate) mod trampoline;
