//! Captures that are watched while they are written: [`source`] finds them, [`subscription`] receives the windows that the
//! recording makes, where it can be reached, [`summed`] adds up those of all its processes, and [`picture`] is the state at one moment.
//!
//! Invariant: watching changes neither the recording nor the recorded program.

pub(crate) mod picture;
pub(crate) mod received_window;
pub(crate) mod source;
pub(crate) mod subscription;
mod summed;
