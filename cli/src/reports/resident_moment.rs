//! What resident memory was at one moment, of which [`resident`](super::resident) makes a report.
//!
//! It stands apart, since a capture has one, too. Invariant: the breakdown is that of the account of this moment.

use memtrack_format::resident::AccountCause;
use memtrack_reader::resident::ResidentBreakdown;

/// The most resident memory that a process had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidentPeak {
    /// Without memtrack's own.
    pub(crate) bytes: u64,
    /// When it was, in nanoseconds since the recording began; `None`: between two snapshots.
    pub(crate) time_ns: Option<u64>,
}

impl ResidentPeak {
    /// Of the largest snapshot and its time, and the peak that the system knows. `None`: neither is known.
    pub(crate) fn of(sampled: Option<(u64, u64)>, known: Option<u64>) -> Option<Self> {
        let (most, time_ns) = sampled.unwrap_or_default();
        let bytes = most.max(known.unwrap_or(0));
        // The system's is of pages to the byte, and snapshots are not.
        let is_sampled = sampled.is_some() && bytes - most <= bytes / NEAR_PART;
        (bytes > 0).then_some(Self { bytes, time_ns: is_sampled.then_some(time_ns) })
    }
}

/// Figures that differ by less than this part are about the same.
const NEAR_PART: u64 = 20;

/// Resident memory at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ResidentMoment {
    /// In nanoseconds since the recording began.
    pub(crate) time_ns: u64,
    pub(crate) cause: AccountCause,
    pub(crate) breakdown: ResidentBreakdown,
    /// Threads of the process.
    pub(crate) threads: usize,
    /// No block is older than the recording.
    pub(crate) knows_all: bool,
}
