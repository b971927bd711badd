//! Recordings that run: [`handler`] answers commands in the recording process, [`recordings`] finds recordings and asks
//! them.
//!
//! Invariant: a recording without a control socket is as good as one with it, but for those who want to reach it.

pub(crate) mod handler;
#[allow(dead_code, reason = "for the commands that follow")]
pub(crate) mod recordings;
