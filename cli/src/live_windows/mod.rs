//! Windows of time that a recording makes for its viewers: [`engine`] makes them in the recording process, once for all, and
//! [`message`] is how they are sent.
//!
//! Invariant: making them changes neither the recording nor the recorded program.

pub(crate) mod engine;
pub(crate) mod message;
