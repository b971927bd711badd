//! Errors of reading a capture.
//!
//! Invariant: an error about a file's contents has the file, the offset, what was expected and what was found; if the
//! user can do something about it, it says what.

use std::io;
use std::path::PathBuf;

/// A capture, or a part of it, that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", file.display())]
    Io {
        /// The capture.
        file: PathBuf,
        /// The reason given.
        source: io::Error,
    },
    /// What was read cannot be written to where it is copied; the error says where that is.
    #[error(transparent)]
    Copy(io::Error),
    /// The path names no readable capture.
    #[error("{}: expected {expected}, found {found}; {remedy}", file.display())]
    Unusable {
        /// The path that was given.
        file: PathBuf,
        /// What should be there.
        expected: &'static str,
        /// What is.
        found: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A table has more entries than its numbers can tell apart.
    #[error("more than {limit} {what}: the capture is corrupt or too large for this version")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The most there may be.
        limit: u64,
    },
}
