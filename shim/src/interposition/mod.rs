//! Layer 5: redirects the program's calls to the hooks, and implements the hooks.
//!
//! Invariant: depends on `recording` and lower layers only.

pub(crate) mod got;
pub(crate) mod hooks;
pub(crate) mod python_allocators;

#[cfg(test)]
mod hook_model;
