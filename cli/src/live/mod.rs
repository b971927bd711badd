//! Captures that are watched while they are written: [`source`] finds them, [`picture`] is their state at one moment.
//!
//! Invariant: watching changes neither the recording nor the recorded program.

pub(crate) mod picture;
pub(crate) mod source;
