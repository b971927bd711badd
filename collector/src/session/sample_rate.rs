//! Changes the distance between samples, so that there are no more than so many a second: `run --sample=auto`.
//!
//! Too many samples double the distance at once, as often as their rate asks for. Where few come for two seconds, it is divided by up
//! to four, and again each second in which few come, so that what follows a hot start is sampled soon; but not below a 64th of the
//! longest distance of late, for a program that is busy again has samples at the distance of the quiet time until that is seen. It stays
//! where it is while the rate is between a quarter of the most and the most.
//!
//! Invariant: the distance that the shared memory names is between [`LEAST_BYTES`] and [`MOST_BYTES`].

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use memtrack_transport::Area;

/// The shortest distance.
const LEAST_BYTES: u64 = 16 << 10;
/// The longest distance.
const MOST_BYTES: u64 = 1 << 40;
/// How often samples are counted, at most.
const LOOK_NS: u64 = 10_000_000;
/// How long samples are counted for a rate.
const WINDOW_NS: u64 = 1_000_000_000;
/// After so many windows with few samples the distance is divided, and after each that follows.
const QUIET_WINDOWS: u32 = 2;
/// By how much, at most.
const MOST_AT_ONCE: u64 = 4;
/// The distance does not fall below this part of the longest one of late: then a busy program, which has the most samples a second at that
/// one, has fewer than the most in the time of a look.
const LEAST_PART: u64 = 64;
/// After so many windows the longest distance of late counts half.
const LATE_WINDOWS: u32 = 10;

/// How often a process's allocations are sampled.
#[derive(Debug)]
pub(crate) struct SampleRate {
    /// Samples a second, at most; 0: the distance stays.
    most: u64,
    begun_ns: u64,
    looked_ns: u64,
    samples_before: u64,
    quiet: u32,
    /// The longest distance of late, and the windows since that was halved.
    longest: u64,
    late: u32,
}

impl SampleRate {
    pub(crate) fn new(most: Option<u32>, now: u64) -> Self {
        Self {
            most: most.map_or(0, u64::from),
            begun_ns: now,
            looked_ns: now,
            samples_before: 0,
            quiet: 0,
            longest: 0,
            late: 0,
        }
    }

    /// Looks at the samples of the first so many slots; the new distance, if there is one.
    pub(crate) fn look(&mut self, area: &Area, slots: u32, now: u64) -> Option<u64> {
        if self.most == 0 || now.saturating_sub(self.looked_ns) < LOOK_NS {
            return None;
        }
        self.looked_ns = now;
        let of_slot = |slot| area.slot(slot).map_or(0, |slot| slot.samples.load(Acquire));
        let samples = (0..slots).map(of_slot).sum();
        let distance = &area.control().sample_bytes;
        let before = distance.load(Relaxed);
        let after = self.next_distance(before, samples, now);
        distance.store(after, Relaxed);
        (after != before).then_some(after)
    }

    fn next_distance(&mut self, distance: u64, samples: u64, now: u64) -> u64 {
        let (taken, passed_ns) =
            (samples.saturating_sub(self.samples_before), now.saturating_sub(self.begun_ns).max(1));
        let rate = u128::from(taken) * u128::from(WINDOW_NS) / u128::from(passed_ns);
        let is_over = passed_ns >= WINDOW_NS;
        if taken <= self.most && !is_over {
            return distance;
        }
        (self.begun_ns, self.samples_before) = (now, samples);
        if taken > self.most && rate > u128::from(self.most) {
            self.quiet = 0;
            let factor = rate.div_ceil(u128::from(self.most)).next_power_of_two();
            let longer = u64::try_from(u128::from(distance).saturating_mul(factor)).unwrap_or(u64::MAX).min(MOST_BYTES);
            self.longest = self.longest.max(longer);
            return longer;
        }
        self.late = self.late.saturating_add(1);
        if self.late >= LATE_WINDOWS {
            (self.late, self.longest) = (0, self.longest / 2);
        }
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.quiet = if rate.saturating_mul(4) < self.most { self.quiet.saturating_add(1) } else { 0 };
        if self.quiet < QUIET_WINDOWS {
            return distance;
        }
        // As often as would lead to half of the most.
        let factor = (self.most / 2 / rate.max(1)).clamp(2, MOST_AT_ONCE);
        // One that the user has asked for may be shorter than the shortest.
        let least = LEAST_BYTES.max(self.longest / LEAST_PART);
        distance.min(least.max(distance / factor))
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST_BYTES, SampleRate, WINDOW_NS};

    /// A program that allocates so many bytes a second in small blocks, for so many seconds; samples of the last one.
    fn run(rate: &mut SampleRate, state: &mut (u64, f64, u64), bytes: f64, seconds: u64) -> f64 {
        let (now, samples, distance) = state;
        let mut last = 0.0;
        for step in 0..seconds * 100 {
            if step % 100 == 0 {
                last = *samples;
            }
            *now += WINDOW_NS / 100;
            *samples += bytes / 100.0 / *distance as f64;
            *distance = rate.next_distance(*distance, *samples as u64, *now);
        }
        *samples - last
    }

    #[test]
    fn samples_stay_below_the_most_and_come_back_when_it_is_quiet() {
        let (mut rate, mut state) = (SampleRate::new(Some(100), 0), (0, 0.0, 512 << 10));
        let loud = run(&mut rate, &mut state, 5e9, 30);
        assert!((24.0..=101.0).contains(&loud), "{loud}");
        let first = state.1;
        let least = state.2;
        let quiet = run(&mut rate, &mut state, 5e7, 600);
        assert!((24.0..=101.0).contains(&quiet) && state.2 < least / 32, "{quiet} {}", state.2);
        assert!(first < 4000.0, "{first}");
        run(&mut rate, &mut state, 0.0, 3600);
        assert_eq!(state.2, LEAST_BYTES);
        assert_eq!(SampleRate::new(None, 0).most, 0);
    }

    #[test]
    fn after_a_hot_start_the_distance_is_short_again_within_seconds() {
        let (mut rate, mut state) = (SampleRate::new(Some(100), 0), (0, 0.0, 512 << 10));
        run(&mut rate, &mut state, 2e10, 3);
        let hot = state.2;
        assert!(hot > 100 << 20, "{hot}");
        run(&mut rate, &mut state, 4.5e6, 6);
        assert!(state.2 <= hot / 64, "{}", state.2);
        run(&mut rate, &mut state, 4.5e6, 60);
        assert!(state.2 <= 256 << 10, "{}", state.2);
    }

    #[test]
    fn a_program_that_is_loud_now_and_then_has_few_samples_too_many() {
        for bytes in [5e8, 5e9, 2e10] {
            for quiet in [1, 2, 5, 9, 15, 29, 120] {
                let (mut rate, mut state) = (SampleRate::new(Some(100), 0), (0, 0.0, 512 << 10));
                run(&mut rate, &mut state, bytes, 10);
                let before = state.1;
                for _ in 0..10 {
                    let first = run(&mut rate, &mut state, bytes, 1);
                    let most = if quiet < 20 { 500.0 } else { 15_000.0 };
                    assert!(first < most, "{first} after {quiet} s at {bytes}");
                    let second = run(&mut rate, &mut state, bytes, 1);
                    assert!(second < 101.0, "{second} after {quiet} s at {bytes}");
                    run(&mut rate, &mut state, 0.0, quiet);
                }
                let a_second = (state.1 - before) / (10 * (2 + quiet)) as f64;
                assert!(a_second < 120.0, "{a_second} with {quiet} s at {bytes}");
            }
        }
    }
}
