//! Loads a library into a running process and calls functions of it, by ptrace, without a debugger and without a path in
//! the target's file system.
//!
//! [`refusal`] names every reason not to do it; [`target`] and [`process_facts`] look for them before the target is touched,
//! [`denial`] finds out why the kernel did not permit it, and [`address_space`] whether there is room.
//! [`safe_point`] decides by the stack ([`unwind`]) whether a stopped thread holds no lock of the loader or of an allocator.
//! [`waiting`] knows which threads a stop would disturb, [`candidates`] which is tried next, and [`late_threads`] which stop too late.
//! [`stop_any`] stops any thread for a system call, [`stop_all`] all of them at once. [`tracee`] is ptrace, [`remote_call`] runs system calls and functions in the stopped
//! thread and puts its [`saved_state`] back, [`library`] loads and calls what [`library_image`] prepares.
//! [`memory`], [`maps`] and [`object`] read the target's memory; [`view`] is that for other crates, [`holding_memory`] says where
//! C code may hold pointers, and [`mod@freeze`] a copy of a process at one moment, which [`process_copy`] ends.
//!
//! Invariant: a thread is used only where every frame of its stack is known to be harmless, and it goes on with the
//! registers, signals and system call that it had. In doubt the answer is a [`Refusal`].

#[cfg(target_arch = "x86_64")]
mod address_space;
#[cfg(target_arch = "x86_64")]
mod candidates;
mod copy_limits;
mod denial;
#[cfg(target_arch = "x86_64")]
mod filter;
#[cfg(target_arch = "x86_64")]
mod freeze;
mod holding_memory;
#[cfg(target_arch = "x86_64")]
mod late_threads;
#[cfg(target_arch = "x86_64")]
mod library;
#[cfg(target_arch = "x86_64")]
mod library_image;
mod maps;
mod memory;
mod object;
#[cfg(target_arch = "x86_64")]
mod process_copy;
mod process_facts;
mod refusal;
#[cfg(target_arch = "x86_64")]
mod remote_call;
#[cfg(target_arch = "x86_64")]
mod safe_point;
#[cfg(target_arch = "x86_64")]
mod saved_state;
#[cfg(target_arch = "x86_64")]
mod stop;
#[cfg(target_arch = "x86_64")]
mod stop_all;
#[cfg(target_arch = "x86_64")]
mod stop_any;
#[cfg(target_arch = "x86_64")]
mod stopped_thread;
mod target;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[cfg(not(target_arch = "x86_64"))]
mod unsupported;
#[cfg(target_arch = "x86_64")]
mod unwind;
mod view;
#[cfg(target_arch = "x86_64")]
mod waiting;

#[cfg(target_arch = "x86_64")]
pub use freeze::{FreezeCost, freeze};
pub use holding_memory::{LoadedData, ThreadStack};
#[cfg(target_arch = "x86_64")]
pub use library::{SharedFile, attach, detach, detach_abandoned, find_library};
#[cfg(target_arch = "x86_64")]
pub use process_copy::{CopyEnded, CopyInUse};
pub use refusal::{Busy, Refusal};
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::{CopyInUse, FreezeCost, SharedFile, attach, detach, detach_abandoned, find_library, freeze};
pub use view::ProcessView;
