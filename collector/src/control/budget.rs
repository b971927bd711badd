//! Processor time that the control thread may take.
//!
//! Invariant: over any longer time it is at most [`SHARE`] of one core, whatever clients do.

use std::time::{Duration, Instant};

use crate::procfs::clock_ns;

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
        Self { seen: Instant::now(), used_ns: thread_ns(), left_ns: BURST_NS }
    }

    /// How long the thread has to pause now, if it has used too much.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let (now, used) = (Instant::now(), thread_ns());
        let passed = i64::try_from(now.duration_since(self.seen).as_nanos()).unwrap_or(i64::MAX);
        let taken = i64::try_from(used.saturating_sub(self.used_ns)).unwrap_or(i64::MAX);
        (self.seen, self.used_ns) = (now, used);
        self.left_ns = self.left_ns.saturating_add(passed / SHARE).saturating_sub(taken).min(BURST_NS);
        let debt = u64::try_from(self.left_ns.saturating_neg().saturating_mul(SHARE)).unwrap_or(0);
        (debt > 0).then(|| Duration::from_nanos(debt).min(LONGEST))
    }
}

/// Processor time of the calling thread.
fn thread_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{BURST_NS, ProcessorBudget, SHARE};
    use std::time::{Duration, Instant};

    #[test]
    fn a_busy_thread_has_to_pause() {
        let mut budget = ProcessorBudget::new();
        assert_eq!(budget.pause(), None);
        let used = super::thread_ns();
        while super::thread_ns() < used + 2 * BURST_NS as u64 {}
        assert!(budget.pause().is_some());
        let begun = Instant::now();
        while let Some(pause) = budget.pause() {
            std::thread::sleep(pause);
        }
        let least = Duration::from_nanos((BURST_NS * SHARE / 2) as u64);
        assert!(begun.elapsed() > least, "{:?}", begun.elapsed());
    }
}
