//! What the system says of processes: their facts, their limits, how they end, and their control groups.
//!
//! Invariant: what is read of a process is of that process, or nothing.

pub mod control_groups;
pub(crate) mod descendants;
pub(crate) mod limits;
pub(crate) mod memory_limit;
pub(crate) mod pidfd_exit;
pub(crate) mod process_end;
pub(crate) mod process_handle;
pub(crate) mod process_stat;
pub(crate) mod procfs;
pub(crate) mod started_thread;
pub(crate) mod task_limits;
pub(crate) mod thread_ids;
pub(crate) mod worker_pool;
