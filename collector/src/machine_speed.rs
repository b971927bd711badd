//! Measures the speed of this machine: the time of a step of a fixed loop.
//!
//! The cost of hooks was measured on one machine; with this number, which is kept in the capture, reports scale it to
//! another. Invariant: the loop never changes, for the numbers of all captures are compared with one that was measured
//! with it.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// Steps that are timed at once: about ten microseconds.
const STEPS: u32 = 4096;
/// How often they are timed. The shortest time counts: nobody interrupted it.
const TIMES: u32 = 64;
/// Words of memory that the loop works on: what a first-level cache holds.
const WORDS: usize = 1024;

/// Picoseconds of a step; measured once, in half a millisecond: best at a time when nobody waits.
pub(crate) fn step_ps() -> u64 {
    static STEP: OnceLock<u64> = OnceLock::new();
    *STEP.get_or_init(measure)
}

fn measure() -> u64 {
    let mut words = [0_u64; WORDS];
    let mut time = || {
        let begun = Instant::now();
        black_box(run(black_box(&mut words)));
        begun.elapsed()
    };
    let shortest = (0..TIMES).map(|_| time()).min().unwrap_or_default();
    u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000) / u64::from(STEPS)
}

/// Reads, mixes and writes, each step dependent on the one before, as hooks do.
fn run(words: &mut [u64; WORDS]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..STEPS {
        if let Some(word) = words.get_mut((state >> 40) as usize % WORDS) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(*word | 1);
            *word = state;
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::step_ps;

    #[test]
    fn a_step_takes_longer_than_a_cycle_and_not_forever() {
        let step = step_ps();
        assert!((100..10_000_000).contains(&step), "{step}");
        assert_eq!(step, step_ps());
    }
}
