//! What is live, by address: the replay makes these, and resident memory is divided by them.
//!
//! Invariant: of blocks, no two have one start.

use memtrack_format::MapClass;

/// A range of addresses that is live: a block, or a part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveExtent {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// When it was allocated, in nanoseconds since recording began.
    pub(crate) time_ns: u64,
    /// Its group in the analysis; of mappings that are not heap, a number that no group has.
    pub(crate) group: u32,
    /// The class of a mapping; `None` for blocks.
    pub(crate) mapped: Option<MapClass>,
}
