//! Captures that are watched while they are written: [`source`] finds them, [`picture`] is their state at one moment.
//!
//! Invariant: watching changes neither the recording nor the recorded program.

#[allow(dead_code, reason = "for the view that follows")]
pub(crate) mod picture;
#[allow(dead_code, reason = "for the view that follows")]
pub(crate) mod source;
