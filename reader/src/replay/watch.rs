//! Observes live bytes after each event: for live bytes over time, and for the common high-water mark of several
//! processes.
//!
//! It is separate because most reports of one process do not need it. Several processes share one
//! [`LiveBytesObserver`], which is moved to the process that is replayed. Invariant: `elsewhere` does not change while
//! a process is replayed.

use crate::analysis::Curve;

/// Live bytes of one process or of several.
#[derive(Debug, Default)]
pub(crate) struct LiveBytesObserver {
    /// Live bytes of the other processes; `None` if there is only one.
    pub(crate) elsewhere: Option<u64>,
    /// Offset from the process's times to the common ones.
    pub(crate) shift_ns: u64,
    /// The largest sum so far.
    pub(crate) most: u64,
    /// It was reached since the watch was moved last.
    pub(crate) raised: bool,
    /// The sum over time.
    pub(crate) curve: Curve,
}

impl LiveBytesObserver {
    /// Sets the process's live bytes from this time on; `restored_bytes` were live at the largest sum, too. Returns
    /// whether this is the largest sum.
    #[inline]
    pub(crate) fn look(&mut self, time_ns: u64, live_bytes: u64, restored_bytes: u64) -> bool {
        let sum = live_bytes.saturating_add(self.elsewhere.unwrap_or(0));
        self.curve.add(time_ns.saturating_add(self.shift_ns), sum);
        self.most = self.most.saturating_add(restored_bytes);
        let raises = self.elsewhere.is_some() && sum > self.most;
        if raises {
            (self.most, self.raised) = (sum, true);
        }
        raises
    }
}
