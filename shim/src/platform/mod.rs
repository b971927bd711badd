//! Layer 1: interfaces to the processor, the C library and the kernel.
//!
//! Invariant: nothing here knows of events, stacks or hooks; it depends on no other layer.

pub(crate) mod allocator_statistics;
#[cfg(not(miri))]
pub(crate) mod arena;
pub(crate) mod barrier_registration;
pub(crate) mod collector_socket;
pub(crate) mod dladdr;
pub(crate) mod environment;
pub(crate) mod errno;
pub(crate) mod fallible_read;
pub(crate) mod file_system;
pub(crate) mod glibc_compat;
pub(crate) mod loaded_object;
pub(crate) mod mapped_vec;
pub(crate) mod object_lookup;
pub(crate) mod own_ids;
pub(crate) mod own_memory;
pub(crate) mod own_resources;
pub(crate) mod probes;
pub(crate) mod process_start;
pub(crate) mod readable;
pub(crate) mod recording_switch;
pub(crate) mod seccomp;
pub(crate) mod shared_area;
pub(crate) mod signal_mask;
pub(crate) mod symbol_tables;
pub(crate) mod thread_count;
pub(crate) mod thread_status;
pub(crate) mod tls;
