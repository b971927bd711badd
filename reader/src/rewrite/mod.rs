//! Rewrites captures: without short-lived allocations (`strip`), without names (`anonymize`), with names (`symbolize`).
//!
//! A new capture is written from the events that a reader returns. So parts of the old file that no reader uses are
//! gone, damage included, and the new file has the current format version. What was left out, and what had been lost,
//! is noted in the new capture, so that every report repeats it.
//!
//! Invariant: except for what was left out or renamed, reports on the new capture are equal to those on the old one.

mod anonymize;
mod attach;
mod blocks;
mod codes;
mod strip;
mod writer;

pub use anonymize::{Anonymizer, anonymized_aggregate};
pub use attach::attach;
pub use blocks::{CaptureBlocks, write_aggregate};
pub use strip::{StripPlan, StripRule};
pub use writer::Rewriter;

#[cfg(test)]
mod tests;
