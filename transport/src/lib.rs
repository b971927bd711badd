//! The shared memory and the handshake between a tracked process and its collector.
//!
//! The recorded process writes records into *segments* of shared memory and the collector reads them there. Nothing is
//! copied, sent or flushed, so nothing is lost when the process is killed. [`layout`] defines the memory, [`area`] maps it,
//! [`segment_chain`] is the protocol that both sides follow on its words, [`futex`] waits on them, [`barrier`] orders the
//! accesses of both sides, [`handshake`] passes the memory from the collector to the process, [`identity`] says which shim
//! and program belong together, [`attach`] says what starting a recording in a running process came to, and [`clock`] is the clock of both. The content of segments is defined by `memtrack-format`.
//!
//! Invariant: each word has one writing side, named at its definition; words that both sides write are changed by atomic
//! read-modify-write only.

pub mod area;
mod area_file;
mod atomics;
pub mod attach;
pub mod barrier;
pub mod clock;
pub mod futex;
pub mod handshake;
pub mod identity;
pub mod layout;
pub mod segment_chain;
mod segment_mappings;

pub use area::Area;
pub use segment_mappings::{NotMapped, could_map};
