//! Processor time that the control thread may take.
//!
//! Invariant: over any longer time it is at most [`SHARE`] of one core, whatever clients do.

use std::time::{Duration, Instant};

use crate::system::procfs::thread_processor_ns;

/// One n-th of a core.
const SHARE: i64 = 10;
/// What may be saved up, in nanoseconds.
const BURST_NS: i64 = 20_000_000;
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(100);

/// The processor time that is left to the calling thread.
#[derive(Debug)]
pub(super) struct ProcessorBudget {
    seen: Instant,
    used_ns: u64,
    left_ns: i64,
}

impl ProcessorBudget {
    pub(super) fn new() -> Self {
        Self { seen: Instant::now(), used_ns: thread_processor_ns(), left_ns: BURST_NS }
    }

    /// How long the thread has to pause now, if it has used too much.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let (now, used) = (Instant::now(), thread_processor_ns());
        let passed = i64::try_from(now.duration_since(self.seen).as_nanos()).unwrap_or(i64::MAX);
        let taken = i64::try_from(used.saturating_sub(self.used_ns)).unwrap_or(i64::MAX);
        (self.seen, self.used_ns) = (now, used);
        self.charge(passed, taken)
    }

    /// So many nanoseconds have passed, in which the thread has used so many.
    fn charge(&mut self, passed: i64, taken: i64) -> Option<Duration> {
        self.left_ns = self.left_ns.saturating_add(passed / SHARE).saturating_sub(taken).min(BURST_NS);
        let debt = u64::try_from(self.left_ns.saturating_neg().saturating_mul(SHARE)).unwrap_or(0);
        (debt > 0).then(|| Duration::from_nanos(debt).min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::{BURST_NS, LONGEST, ProcessorBudget, SHARE, thread_processor_ns};

    #[test]
    fn a_busy_thread_has_to_pause_until_its_share_is_kept() {
        let mut budget = ProcessorBudget::new();
        assert_eq!(budget.charge(0, BURST_NS), None);
        let owed = 3_000_000;
        assert_eq!(budget.charge(0, owed).unwrap().as_nanos(), (owed * SHARE) as u128);
        assert_eq!(budget.charge(owed * SHARE - SHARE, 0).unwrap().as_nanos(), SHARE as u128);
        assert_eq!(budget.charge(SHARE, 0), None);
        assert_eq!(budget.charge(0, 10 * BURST_NS), Some(LONGEST));
        // However long it rests, it saves up no more than a burst.
        assert_eq!(budget.charge(i64::MAX, 0), None);
        assert!(budget.charge(0, BURST_NS + 1).is_some());
    }

    #[test]
    fn its_own_time_is_counted() {
        let before = thread_processor_ns();
        while thread_processor_ns() == before {}
        assert_eq!(ProcessorBudget::new().pause(), None);
    }
}
