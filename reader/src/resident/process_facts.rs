//! What of a recorded process decides how its pages are divided.
//!
//! Invariant: it says no more than the metadata of the recording.

use memtrack_format::meta::Process;
use memtrack_format::pymalloc::pool_bytes;

/// Facts about a recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// No block is older than the recording.
    pub knows_all: bool,
    /// Bytes of a pool of Python's allocator.
    pub(super) pool_bytes: u64,
    /// Small objects lie in pools, without what its debug hooks add.
    pub(super) has_pools: bool,
}

impl ProcessFacts {
    /// Of a process.
    #[must_use]
    pub fn of(process: &Process) -> Self {
        Self {
            knows_all: !process.began_late && process.fork_ticket.is_none(),
            has_pools: process.python_allocator.as_deref() == Some(b"pymalloc"),
            pool_bytes: pool_bytes(process.python_version.map_or(u8::MAX, |version| version.hex.to_be_bytes()[1])),
        }
    }
}
