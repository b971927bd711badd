//! The root directory of a process in a container, or a copy of it, in which the files of a capture's modules are looked for.
//!
//! Invariant: it is read by [`RootDirectory`] alone, which nothing leads out of.

use std::fs::File;
use std::io;
use std::path::Path;

use memtrack_collector::RootDirectory;
use memtrack_reader::symbols::FileRoot;

/// The directory.
#[derive(Debug)]
pub(crate) struct SymbolRoot(pub(crate) RootDirectory);

impl FileRoot for SymbolRoot {
    fn open(&self, path: &Path) -> io::Result<File> {
        self.0.open(path)
    }
}
