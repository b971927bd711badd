//! The moments of a recording that queries refer to.
//!
//! Invariant: they are those of one capture, as a whole reading has found them.

use crate::analysis::Totals;

/// The moments that allocations are compared with, from an earlier pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyMoments {
    /// The order of the event that made the high-water mark.
    pub peak: Option<u64>,
    /// The order of the event with which Python began to finalize.
    pub finalizing: Option<u64>,
    /// The end of recording, in nanoseconds since it began.
    pub end_ns: u64,
    /// How many further allocations of its thread a temporary allocation may outlive.
    pub temporary_threshold: u32,
}

impl KeyMoments {
    /// Those of an analysis.
    #[must_use]
    pub fn of(totals: &Totals, temporary_threshold: u32) -> Self {
        Self {
            peak: totals.peak.at.map(|at| at.order),
            finalizing: totals.finalizing.map(|at| at.order),
            end_ns: totals.end_time_ns,
            temporary_threshold,
        }
    }
}
