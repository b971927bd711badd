//! What resident memory was at one moment, of which [`resident`](super::resident) makes a report.
//!
//! It stands apart, since a capture has one, too. Invariant: the breakdown is that of the account of this moment.

use memtrack_format::resident::AccountCause;
use memtrack_reader::resident::ResidentBreakdown;

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
