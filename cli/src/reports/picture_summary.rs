//! What a capture says of the Python objects of one moment.
//!
//! Invariant: the figures are of all objects, whatever filters leave of them.

use memtrack_reader::analysis::Tally;

/// What a capture says of the objects of one moment.
#[derive(Clone, Debug)]
pub(crate) struct PictureSummary {
    /// The moment in words.
    pub(crate) when: String,
    /// All objects.
    pub(crate) all: Tally,
    /// Those with the stack that allocated them.
    pub(crate) with_stack: Tally,
}
