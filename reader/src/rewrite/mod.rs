//! New captures from old ones: without short-lived allocations, without names, several in one file.
//!
//! A capture is not edited but written anew, from the events that a reader gives: so whatever the old file holds that
//! nobody reads is gone, damage included, and a file of an older version becomes one of this version. What was left out,
//! and what was lost before, stands in the new capture, for every report to repeat.
//!
//! Invariant: apart from what was to be left out or renamed, a report on the new capture says what one on the old says.

mod anonymize;
mod attach;
mod blocks;
mod codes;
mod strip;
mod writer;

pub use anonymize::{Anonymizer, anonymized_aggregate};
pub use attach::attach;
pub use blocks::{CaptureBlocks, write_aggregate};
pub use strip::{Plan, StripRule};
pub use writer::Rewriter;

#[cfg(test)]
mod tests;
