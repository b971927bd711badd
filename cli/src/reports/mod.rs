//! The reports: from plain sums to text and JSON.
//!
//! Invariant: a report sees neither events nor bytes of a capture, and prints only through the writer it is handed.

pub(crate) mod facts;
pub(crate) mod speedscope;
pub(crate) mod stats;
pub(crate) mod stats_json;
pub(crate) mod stats_text;
mod table;

#[cfg(test)]
mod fixture;

/// What stands for a stack without any frame.
pub(crate) const NO_STACK: &str = "<no stack>";
