//! How long it takes to look closer at a stack: every so often it is timed.
//!
//! It exists because what a closer look costs differs tenfold between programs, with the stacks and with what the processor's
//! caches still have, so that no cost that was measured elsewhere fits. Invariant: which one is timed does not depend on
//! how long it takes, so the sum of those that are, times [`EVERY`], is as near as a sample comes to that of all.

use memtrack_transport::layout::Slot;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::events::ring::Ring;
use crate::events::stack_model::StackWriter;

/// One of so many is timed: a prime, so that it does not keep step with the program's loops.
const EVERY: u32 = 17;
/// What takes longer was interrupted by other processes.
const LONGEST: u64 = 1 << 17;

/// Counts up to the next one that is timed. Zero is its beginning.
#[derive(Debug)]
pub(crate) struct Pace {
    passed: u32,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self { passed: 0 }
    }

    /// Whether this one is timed.
    #[inline(always)]
    pub(crate) const fn is_due(&mut self) -> bool {
        self.passed = self.passed.wrapping_add(1);
        self.passed >= EVERY
    }

    /// The next ones are not.
    pub(crate) const fn begin(&mut self) {
        self.passed = 0;
    }
}

/// Notes what was timed from `begun` until now.
#[cold]
#[inline(never)]
pub(crate) fn note(ring: &Ring, begun: u64, of: fn(&Slot) -> &AtomicU64) {
    let ticks = ring.now().wrapping_sub(begun).min(LONGEST).wrapping_mul(u64::from(EVERY));
    let counter = of(ring.slot());
    // This thread alone counts here.
    counter.store(counter.load(Relaxed).wrapping_add(ticks), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{EVERY, Pace};

    #[test]
    fn one_of_so_many_is_timed() {
        let mut pace = Pace::new();
        let mut timed = || {
            let is_due = pace.is_due();
            if is_due {
                pace.begin();
            }
            is_due
        };
        assert_eq!((0..5 * EVERY).filter(|_| timed()).count(), 5);
    }
}
