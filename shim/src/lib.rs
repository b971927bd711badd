//! The library that is injected into a tracked process.
//!
//! Loaded by `LD_PRELOAD`, its constructor runs before any other (`process::startup`): it takes memtrack's variables
//! out of the environment, fetches the shared memory from the collector, finds the interpreter, redirects the program's
//! calls of allocation functions to the hooks (`interposition`) and switches recording on. After that it runs inside
//! those calls only: no thread and no descriptor; at exit it waits until the collector has read which pages are resident.
//!
//! The modules form six layers; each uses only its own and lower layers (`tests/modules.rs`): `platform`, `events`,
//! `stacks`, `recording`, `interposition`, `process`.
//!
//! Invariant: whatever goes wrong, the program runs as it would without memtrack.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    // The lists are in clippy.toml.
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros
)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_types,
        clippy::disallowed_methods,
        clippy::disallowed_macros,
        reason = "tests run outside of hooks"
    )
)]

mod events;
mod interposition;
mod platform;
mod process;
mod recording;
mod stacks;

/// What the shim allocates at start-up and in a dlopen comes from mappings of its own, not from the measured heap.
#[cfg(not(miri))]
#[global_allocator]
static ALLOCATOR: platform::arena::CountingArena = platform::arena::CountingArena;

/// Read in the library's file by the program that is to load it, which refuses a shim of another version.
#[unsafe(no_mangle)]
#[used]
static memtrack_shim_identity: [u8; memtrack_transport::identity::IDENTITY_LEN] =
    memtrack_transport::identity::IDENTITY;
