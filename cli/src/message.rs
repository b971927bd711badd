//! Messages to the person at the terminal.
//!
//! Invariant: they go to standard error, and a standard error that cannot be written to is no reason to fail.

use std::fmt::Display;
use std::io::{self, Write};

/// A line as it is.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Something that is missing, or that one should know.
pub(crate) fn warning(text: impl Display) {
    line(format_args!("warning: {text}"));
}

/// Something that went wrong.
pub(crate) fn error(text: impl Display) {
    line(format_args!("error: {text}"));
}
