//! The commands, one file each: from options to what is done.

pub(crate) mod diff;
pub(crate) mod parse;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod stats;
pub(crate) mod transform;
pub(crate) mod views;
