//! The shared memory and the handshake between a tracked process and its collector.
//!
//! The recorded process writes records into *segments* of shared memory and the collector reads them there. Nothing is
//! copied, sent or flushed, so nothing is lost when the process is killed. [`layout`] defines the memory, [`area`] maps it,
//! [`futex`] waits on its words, [`barrier`] orders the accesses of both sides, [`handshake`] passes it from the collector to
//! the process, and [`clock`] is the clock of both. The content of segments is defined by `memtrack-format`.
//!
//! Invariant: each word has one writing side, named at its definition; words that both sides write are changed by atomic
//! read-modify-write only.

pub mod area;
pub mod barrier;
pub mod clock;
pub mod futex;
pub mod handshake;
pub mod layout;
mod segment_mappings;

pub use area::Area;
