//! How long the tests wait for what is to happen: a deadline in the time of a machine that does nothing else.
//!
//! Invariant: what hangs is found. On a busy machine a second counts for the part of it that one of those who want a processor
//! could have had, so that no test fails because others were served first.

use std::time::{Duration, Instant};

use super::figures;

/// A wait that has begun.
#[derive(Debug)]
pub(crate) struct Patience {
    looked: Instant,
    spent: Duration,
}

impl Patience {
    /// Begins to wait.
    pub(crate) fn new() -> Self {
        Self { looked: Instant::now(), spent: Duration::ZERO }
    }

    /// Whether the deadline has passed. Asked again and again: each time is weighed with what wants to run at that moment.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        self.spent += (now - self.looked).div_f64(crowd());
        self.looked = now;
        self.spent > figures().deadline
    }
}

/// How many threads want each processor, at least one.
fn crowd() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = text.split(' ').nth(3).and_then(|field| field.split('/').next()?.parse().ok());
    (running.unwrap_or(1.0) / processors as f64).max(1.0)
}

#[test]
fn a_crowd_is_at_least_one_and_what_passes_is_counted() {
    assert!(crowd() >= 1.0);
    let mut patience = Patience::new();
    assert!(!patience.is_over());
    patience.looked -= figures().deadline.mul_f64(10_000.0);
    assert!(patience.is_over());
}
