//! From a capture to answers: ordered events, the replayed heap, and everything reports are made of.
//!
//! It exists so that no report ever sees a byte of a capture or an event: a report is handed one [`Analysis`] (plain
//! sums) and the [`Frames`] its stacks refer to. The same code runs offline, fed by the file reader, and online, fed by
//! the collector of an aggregated capture, so the two cannot disagree.
//!
//! The way through: [`Event`]s in the one total order go into a [`Replay`], one at a time; what comes out is an
//! [`Analysis`], whose [views](Analysis::view) give the groups of one question, and whose [`ordering`](analysis::ordering)
//! puts them in time.
//!
//! Invariant: events come one by one and once; nothing here needs a second pass, and nothing panics on any input.
#![forbid(unsafe_code)]

pub mod aggregate;
mod allocation_record;
pub mod analysis;
pub mod columns;
pub mod combine;
pub mod error;
pub mod event;
pub mod filter;
pub mod fold;
mod frame;
pub mod frames;
mod interner;
pub mod modules;
pub mod native;
pub mod origin;
pub mod paths;
pub mod plumbing;
pub mod program;
pub mod query;
pub mod replay;
pub mod rewrite;
pub mod source;
mod stacks;
pub mod symbols;
pub mod together;

/// From an instruction of a code object to its place in the source: what the format says of it.
pub use memtrack_format::lines;

pub use analysis::{Analysis, Options, View};
pub use error::Error;
pub use event::{Event, EventKind, Snapshot, StackId, Thread, ThreadId};
pub use filter::Filter;
pub use frames::{FrameId, Frames};

pub use replay::Replay;
