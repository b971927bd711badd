//! The shared memory and the handshake between a tracked process and its collector.
//!
//! The tracked process writes records into *segments* of shared memory, the collector reads them there: nothing is
//! copied, sent or flushed, so nothing is lost when the process is killed. [`layout`] says what lies where, [`area`] maps
//! it, [`futex`] waits on it, [`barrier`] orders what both sides see of it,
//! [`handshake`] passes it from the collector to the process, [`clock`] is the time both sides
//! stamp. This crate knows nothing of what the bytes in a segment mean.
//!
//! Invariant: each word has one writing side, named at its definition, but for the ticket word and the slot masks, which
//! are changed by atomic read-modify-write only.

pub mod area;
pub mod barrier;
pub mod clock;
pub mod futex;
pub mod handshake;
pub mod layout;
mod segment_mappings;

pub use area::Area;
