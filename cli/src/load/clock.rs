//! The clock of a report: times of several captures count from the earliest start, percentages are of the whole.
//!
//! Invariant: of one capture, and of captures without a common clock, times count from each one's own start.

use memtrack_format::meta::Process;

/// Maximum difference of [`CaptureStart::boot_ns`] between captures of one boot.
const SAME_BOOT_NS: u64 = 1_000_000_000;

/// When the recording of a capture began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CaptureStart {
    /// On the monotonic clock.
    pub(super) ns: Option<u64>,
    /// Wall clock minus monotonic clock: about equal for captures of one boot.
    boot_ns: Option<u64>,
    recording: Option<u64>,
}

impl CaptureStart {
    pub(super) fn of(process: &Process) -> Self {
        let ns = process.start.monotonic_ns;
        let boot_ns = process.start.realtime_ns.zip(ns).map(|(wall, start)| wall.wrapping_sub(start));
        Self { ns, boot_ns, recording: process.tree.recording }
    }

    fn is_with(&self, first: &Self) -> bool {
        let boots = self.boot_ns.zip(first.boot_ns);
        self.recording.is_some() && self.recording == first.recording
            || boots.is_some_and(|(own, first)| own.abs_diff(first) < SAME_BOOT_NS)
    }
}

/// Whether times of these captures can be compared.
pub(super) fn have_one_clock(starts: &[&CaptureStart]) -> bool {
    starts.iter().all(|start| start.ns.is_some() && starts.first().is_some_and(|first| start.is_with(first)))
}

/// Where a capture lies in the time of its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaptureTimes {
    /// When its recording began, after the earliest one of the report.
    pub(crate) start_ns: u64,
    /// From the earliest start to the latest end.
    pub(crate) whole_ns: u64,
}

impl CaptureTimes {
    /// A time of the report, since the recording of this capture began; nothing lies before that.
    pub(crate) fn own_ns(self, ns: u64) -> u64 {
        if ns == u64::MAX { ns } else { ns.saturating_sub(self.start_ns) }
    }
}
