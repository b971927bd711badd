//! Another root of a file system: that of a process in a container, or a copy of it.
//!
//! Invariant: what lies in it may be hostile; it is opened by its [`FileRoot`] alone, never by a path of this machine.

use std::fs::File;
use std::io;
use std::path::Path;

/// A directory that stands for the root.
pub trait FileRoot: std::fmt::Debug + Send + Sync {
    /// Opens the regular file at this path. Links are followed as if the directory were the root, so that nothing outside of it
    /// is reached, and nothing that blocks or has an effect is opened.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    fn open(&self, path: &Path) -> io::Result<File>;
}
