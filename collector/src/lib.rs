//! The other end of a tracked process: it hands out the shared memory, drains it, watches resident memory, and passes
//! everything on to a [`Sink`].
//!
//! One thread answers processes that connect ([`server`], [`desk`]), and each of these has a [`recording`] of two threads:
//! [`collect`] drains ([`session`], [`slot`], [`observer`], [`threads`]), [`output`] feeds the sink; under `--native` a third
//! reads what the process has mapped ([`maps`]). They are coupled by
//! bounded channels and the counters of the [`tree`] only. The library prints nothing; what a person should know is in
//! the [`Summary`].
//!
//! Invariant: nothing that a target has published is dropped while the sink works. A sink that is slow makes targets
//! wait; one that fails makes them stop recording and run on.

mod bell;
mod collect;
mod collector;
mod describe;
mod desk;
mod directories;
mod event;
mod file;
mod group;
mod limits;
pub mod maps;
mod observer;
mod options;
mod output;
mod pack;
mod packages;
mod places;
mod proc;
mod quiet;
mod recording;
mod server;
mod session;
mod sink;
mod slot;
mod speed;
mod summary;
mod threads;
mod tree;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use file::FileSink;
pub use limits::{explained, remedy};
pub use options::{NativeStacks, RecordingOptions};
pub use pack::{Compression, Packer};
pub use packages::Packages;
pub use proc::{ProcessorTimes, processor_ns, resident_peak};
pub use sink::{NewChild, OpenSink, RecordPiece, Sink};
pub use summary::{ChildSummary, Error, NothingRecorded, ProcessExit, RecordingEnd, RecordingSummary};

// What a target's environment is to hold; for whoever starts it, who need not know the transport.
pub use memtrack_transport::handshake::{PRELOAD_VARIABLE, SOCKET_VARIABLE};
