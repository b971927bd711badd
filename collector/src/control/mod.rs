//! The control socket of a recording: other programs of the same user ask what is recorded, set marks, take snapshots,
//! and watch.
//!
//! [`directory`] says where the sockets are, [`protocol`] what is said, [`ControlServer`] answers in the recording process,
//! [`ControlClient`] asks. What a command does is decided by the [`CommandHandler`] of the recording process.
//!
//! Invariant: no client can delay the draining threads. It gets one answer at a time, from a thread of its own kind, with
//! bounded memory and processor time; one that floods, talks nonsense or does not read is dropped.

mod budget;
mod client;
mod connection;
pub mod directory;
mod handler;
pub mod protocol;
mod server;
mod subscriber;
mod wake;
mod worker;

#[cfg(test)]
mod tests;

pub use client::{ControlClient, ControlError};
pub use directory::ControlSocket;
pub use handler::CommandHandler;
pub use server::ControlServer;
pub use subscriber::Subscriber;
