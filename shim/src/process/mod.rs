//! The highest floor: the life of the process: start-up, fork, exec and new programs.
//!
//! Invariant: nothing below uses it; what lower floors need of it is handed down.

pub(crate) mod child_environment;
pub(crate) mod exec;
pub(crate) mod fork;
mod hook_table;
pub(crate) mod preinit;
pub(crate) mod preload_check;
mod recorded_process;
pub(crate) mod spawn;
pub(crate) mod startup;
