//! Decides which of many repeated operations is timed.
//!
//! What a full stack comparison costs differs tenfold between programs, so no constant measured elsewhere fits.
//! Invariant: which one is timed does not depend on how long it takes, so the sum of the timed ones, times
//! [`SAMPLED_ONE_IN`], estimates that of all.

/// Sampling interval: a prime, so that it does not keep step with the program's loops.
pub(crate) const SAMPLED_ONE_IN: u32 = 61;
/// Counts up to the next one that is timed. Zero is its beginning.
#[derive(Debug)]
pub(crate) struct SampledTimer {
    passed: u32,
}

impl SampledTimer {
    pub(crate) const fn new() -> Self {
        Self { passed: 0 }
    }

    /// Whether this one is timed.
    #[inline(always)]
    pub(crate) const fn is_due(&mut self) -> bool {
        self.passed = self.passed.wrapping_add(1);
        self.passed >= SAMPLED_ONE_IN
    }

    /// What [`SampledTimer::is_due`] said last.
    #[inline(always)]
    pub(crate) const fn was_due(&self) -> bool {
        self.passed >= SAMPLED_ONE_IN
    }

    /// The next ones are not.
    pub(crate) const fn begin(&mut self) {
        self.passed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{SAMPLED_ONE_IN, SampledTimer};

    #[test]
    fn one_of_so_many_is_timed() {
        let mut timer = SampledTimer::new();
        let mut timed = || {
            let is_due = timer.is_due();
            if is_due {
                timer.begin();
            }
            is_due
        };
        assert_eq!((0..5 * SAMPLED_ONE_IN).filter(|_| timed()).count(), 5);
    }
}
