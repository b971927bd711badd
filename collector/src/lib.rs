//! The other end of a tracked process: it hands out the shared memory, drains it, watches resident memory, and passes
//! everything on to a [`Sink`].
//!
//! Three threads: [`server`] answers processes that connect, [`collect`] drains ([`session`], [`slot`], [`observer`],
//! [`threads`]), [`output`] feeds the sink. They are coupled by bounded channels only. The library prints nothing;
//! what a person should know is in the [`Summary`].
//!
//! Invariant: nothing that a target has published is dropped while the sink works. A sink that is slow makes targets
//! wait; one that fails makes them stop recording and run on.

mod bell;
mod collect;
mod collector;
mod describe;
mod file;
mod observer;
mod output;
mod proc;
mod quiet;
mod server;
mod session;
mod sink;
mod slot;
mod summary;
mod threads;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use collector::{Collector, Options};
pub use file::FileSink;
pub use sink::{Piece, Sink};
pub use summary::{Ended, Error, NothingRecorded, Summary};

// What a target's environment is to hold; for whoever starts it, who need not know the transport.
pub use memtrack_transport::handshake::{PRELOAD_VARIABLE, SOCKET_VARIABLE};
