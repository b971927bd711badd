//! Reads captures: decodes events, replays the heap, and computes the sums that reports show.
//!
//! A report sees neither bytes of a capture nor events: it gets an [`Analysis`] (plain sums) and the [`Frames`] that
//! its stacks refer to. The same code runs offline, on a file, and online, on the drained records of an aggregated
//! recording, so both give the same results.
//!
//! Data flow: [`Event`]s go into a [`Replay`] in their total order; the result is an [`Analysis`], whose
//! [views](Analysis::view) answer one question each, and whose [`ordering`](analysis::ordering) sorts samples by time.
//!
//! Invariant: each event is processed once, none needs a second pass, and no input causes a panic.
// `prefetch` allows it for one line, which `forbid` would not let it do.
#![deny(unsafe_code)]

pub mod aggregate;
mod allocation_record;
pub mod analysis;
pub mod columns;
pub mod combine;
mod decode_threads;
pub mod decoded_run;
pub mod error;
pub mod event;
pub mod filter;
pub mod fold;
mod frame;
pub mod frames;
mod interner;
pub mod live;
mod live_extent;
pub mod modules;
pub mod native;
pub mod object_places;
pub mod origin;
pub mod paths;
pub mod plumbing;
mod prefetch;
pub mod program;
pub mod query;
pub mod replay;
pub mod resident;
pub mod rewrite;
pub mod source;
pub mod spans;
mod stacks;
mod started;
mod stdlib_names;
pub mod symbols;
mod text_frames;
mod timeline;
pub mod together;
mod window_groups;
pub mod windows;

/// Source positions of instructions of code objects, as the format decodes them.
pub use memtrack_format::lines;

pub use analysis::{Analysis, Options, View};
pub use error::Error;
pub use event::{Event, EventKind, Snapshot, StackId, Thread, ThreadId};
pub use filter::Filter;
pub use frames::{FrameId, Frames};

pub use replay::Replay;
