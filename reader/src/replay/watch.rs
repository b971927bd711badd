//! What is looked at after each event of a process, where a report asks for more than sums: live bytes over time, and of
//! several processes the high-water mark of all together.
//!
//! It stands apart because most reports of one process need none of it. Several processes share one watch, which is
//! handed to whose turn it is. Invariant: `elsewhere` does not change while a process has its turn.

use crate::analysis::Curve;

/// Live bytes of one process or of several.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// What the others hold, while one of several processes has its turn; `None`: there is only one.
    pub(crate) elsewhere: Option<u64>,
    /// What has to be added to the time of an event.
    pub(crate) shift_ns: u64,
    /// The largest sum of all processes so far.
    pub(crate) most: u64,
    /// It was reached in this turn.
    pub(crate) raised: bool,
    /// The sum over time.
    pub(crate) curve: Curve,
}

impl Watch {
    /// So many bytes of the process are live from this time on, and so many more than it seemed were at the largest sum;
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
