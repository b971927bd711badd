//! Which other allocator than the C library's a process has loaded, by the names of libraries and mappings.
//!
//! Invariant: names are those of reports.

use memtrack_format::resident::ResidentAccount;

/// Allocators by the names of their libraries and mappings.
const ALLOCATORS: [(&[u8], &str); 3] =
    [(b"jemalloc", "jemalloc"), (b"mimalloc", "mimalloc"), (b"tcmalloc", "tcmalloc")];

/// The allocator whose library the process has loaded.
pub(super) fn loaded_allocator(account: &ResidentAccount) -> Option<&'static str> {
    account.paths.iter().find_map(|path| of_library(path))
}

/// The path of that library.
#[must_use]
pub fn allocator_file(account: &ResidentAccount) -> Option<&[u8]> {
    account.paths.iter().find(|path| of_library(path).is_some()).map(|path| &path[..])
}

fn of_library(path: &[u8]) -> Option<&'static str> {
    named(path.rsplit(|byte| *byte == b'/').next()?.strip_prefix(b"lib")?)
}

/// The allocator whose name this begins with.
pub(super) fn named(text: &[u8]) -> Option<&'static str> {
    ALLOCATORS.into_iter().find(|(name, _)| text.starts_with(name)).map(|(_, name)| name)
}
