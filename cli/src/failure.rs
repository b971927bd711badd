//! Errors with an exit status of their own; `main` prints them.
//!
//! Invariant: the text says what, where and what to do; no backtrace ever reaches the user.

use std::fmt;

/// Exit status of errors without a status of their own.
pub(crate) const ERROR: u8 = 1;
/// Exit status of wrong usage.
const USAGE: u8 = 2;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// An explained error with an exit status of its own; every other error exits with 1.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    text: String,
}

impl Failure {
    /// Wrong usage: status 2.
    pub(crate) fn usage(text: &str) -> Self {
        Self { status: USAGE, text: text.into() }
    }

    /// A program that was not found: status 127, as in a shell.
    pub(crate) fn not_found(text: &str) -> Self {
        Self { status: NOT_FOUND, text: text.into() }
    }

    /// A program that cannot be executed: status 126, as in a shell.
    pub(crate) fn not_executable(text: &str) -> Self {
        Self { status: NOT_EXECUTABLE, text: text.into() }
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// Whether the program was found but cannot be executed.
    pub(crate) fn is_not_executable(&self) -> bool {
        self.status == NOT_EXECUTABLE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}
