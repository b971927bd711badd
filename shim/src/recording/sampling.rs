//! Which allocations are recorded where only samples of them are.
//!
//! Every byte that a thread allocates is hit with the same small probability, independently of all others; an allocation
//! with a byte that is hit is sampled. So the bytes from one hit to the next are distributed exponentially, and an allocation
//! of s bytes is sampled with the probability 1 - exp(-s / mean). An allocation of 0 bytes counts as 1.
//!
//! The mean may be changed while the program runs. The distances have no memory, so that a thread may draw the rest of one anew
//! after any allocation: it does so after [`LOOK_BYTES`] without a hit, with the mean of then. What decides about an allocation
//! was drawn before it, with one mean.
//!
//! Invariant: what decides about an allocation depends on nothing but its size, the thread's own random numbers, and what was
//! recorded before.

use std::cell::Cell;
use std::hint::cold_path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU64};

use memtrack_transport::clock::monotonic_ns;

use super::sampled_addresses;
use crate::platform::{probes, recording_switch};

/// Where the mean changes, the bytes after which a thread without a hit takes the new one. A look takes as long as a few
/// allocations.
const LOOK_BYTES: u64 = 1 << 20;
/// The mean number of bytes from one hit to the next; 0: every allocation is recorded.
static MEAN: AtomicU64 = AtomicU64::new(0);
/// Where the mean of the next distances stands, if it changes; null: it does not.
static CHANGING: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Threads that have begun to sample.
static SAMPLERS: AtomicU64 = AtomicU64::new(0);

/// Records samples from now on, with so many bytes between two on the average, or with 0 everything. `varies`: others change
/// that number. Recording is off.
pub(crate) fn begin(control: &'static AtomicU64, varies: bool) {
    let mean = control.load(Relaxed);
    let changing = if varies { std::ptr::from_ref(control).cast_mut() } else { std::ptr::null_mut() };
    CHANGING.store(changing, Relaxed);
    MEAN.store(mean, Relaxed);
    // Without memory for their addresses, the frees of all blocks are recorded.
    recording_switch::set_sampling(mean != 0 && sampled_addresses::begin());
}

/// The real free calls no hook. After [`begin`], before recording is on.
pub(crate) fn frees_call_no_hook() {
    recording_switch::set_unguarded(sampled_addresses::counters());
}

/// Whether only samples are recorded.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    MEAN.load(Relaxed) != 0
}

/// The mean of the next distance.
fn next_mean() -> u64 {
    let changing = CHANGING.load(Relaxed);
    // SAFETY: null, or a word of the shared memory, whose addresses stay mapped.
    let changed = unsafe { changing.as_ref() }.map_or(0, |mean| mean.load(Relaxed));
    // Shared memory that was left is empty.
    if changed == 0 { MEAN.load(Relaxed) } else { changed }
}

/// Where a thread's next hit or look is, among the bytes of its allocations. Apart from the [`Sampler`], for each allocation
/// looks at it.
#[derive(Debug)]
pub(super) struct NextHit(Cell<u64>);

impl NextHit {
    /// Of a thread that has not begun.
    pub(super) const fn new() -> Self {
        Self(Cell::new(0))
    }

    /// The distance was drawn when so many bytes were allocated.
    pub(super) fn set(&self, distance: u64, allocated: u64) {
        self.0.set(allocated.wrapping_add(distance));
    }

    /// Whether an allocation of this size may be sampled, with whose bytes so many are allocated.
    #[inline(always)]
    pub(super) fn takes(&self, size: usize, allocated: u64) -> bool {
        if size == 0 {
            cold_path();
            self.0.set(self.0.get().wrapping_sub(1));
        }
        allocated >= self.0.get()
    }

    /// How many bytes of an allocation that is taken lie beyond it.
    pub(super) fn passed(&self, allocated: u64) -> u64 {
        allocated.wrapping_sub(self.0.get())
    }
}

/// What a thread needs to sample. Zeroes are one that has not begun.
#[derive(Debug)]
pub(super) struct Sampler {
    /// The mean that the present distance was drawn with.
    mean: u64,
    /// Bytes from the next look to the next hit; 0: they are one.
    beyond: u64,
    random: u64,
    /// The block whose free was recorded last; 0: it was not recorded.
    last_freed: usize,
}

impl Sampler {
    /// One that has not begun.
    pub(super) const fn new() -> Self {
        Self { mean: 0, beyond: 0, random: 0, last_freed: 0 }
    }

    /// Begins with random numbers of its own; the number of this beginning.
    pub(super) fn begin(&mut self, tid: i32) -> u64 {
        let number = SAMPLERS.fetch_add(1, Relaxed);
        let here = std::ptr::from_ref(self).addr() as u64;
        self.random =
            mixed(monotonic_ns() ^ here.rotate_left(24) ^ u64::from(tid.cast_unsigned()) << 40 ^ number << 20);
        self.last_freed = 0;
        mixed(self.random ^ number)
    }

    /// Whether an allocation with the next look is sampled, of whose bytes so many lie beyond that.
    pub(super) fn is_hit(&self, passed: u64) -> bool {
        passed >= self.beyond
    }

    /// The allocation at this address is sampled: notes it; the distance to the next look.
    pub(super) fn note(&mut self, address: usize, size: usize) -> u64 {
        sampled_addresses::add(address);
        probes::alloc(address, size, || weight(size, self.mean));
        // The distances have no memory: what lies beyond the hit in this allocation needs no look.
        self.draw()
    }

    /// By which mean the present distance was drawn, where it changes.
    pub(super) fn changing_mean(&self) -> Option<u64> {
        (!CHANGING.load(Relaxed).is_null()).then_some(self.mean)
    }

    /// Whether the free of this address is recorded.
    pub(super) fn frees(&mut self, address: usize) -> bool {
        let is_recorded = sampled_addresses::may_hold(address) && sampled_addresses::remove(address);
        self.last_freed = if is_recorded { address } else { 0 };
        if is_recorded {
            probes::free(address);
        }
        is_recorded
    }

    /// The last free did not happen; whether it was recorded.
    pub(super) fn undoes(&mut self) -> bool {
        let address = std::mem::take(&mut self.last_freed);
        if address != 0 {
            sampled_addresses::add(address);
        }
        address != 0
    }

    /// Draws the bytes up to the next hit, itself counted; those up to the next look.
    pub(super) fn draw(&mut self) -> u64 {
        let look_after = if CHANGING.load(Relaxed).is_null() { u64::MAX } else { LOOK_BYTES };
        self.draw_and_look(next_mean(), look_after)
    }

    fn draw_and_look(&mut self, mean: u64, look_after: u64) -> u64 {
        let distance = self.draw_with(mean);
        let look = distance.min(look_after);
        self.beyond = distance.wrapping_sub(look);
        look
    }

    fn draw_with(&mut self, mean: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // In (0, 1], of 53 bits.
        let uniform = ((mixed(self.random) >> 11).wrapping_add(1)) as f64 * (1.0 / (1_u64 << 53) as f64);
        self.mean = mean;
        let bytes = -logarithm(uniform) * self.mean as f64;
        // Rounded up: an allocation of s bytes has a hit exactly where the real number is at most s.
        (bytes as u64).saturating_add(1)
    }
}

/// A number that depends on all bits of another (the finalizer of SplitMix64).
const fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The bytes that a sampled allocation of this size stands for: its size, divided by the probability that it is sampled.
fn weight(size: usize, mean: u64) -> u64 {
    let (size, mean) = (size.max(1) as f64, mean.max(1) as f64);
    let ratio = size / mean;
    let bytes = if ratio > 40.0 {
        size
    } else if ratio < 1e-3 {
        mean * (1.0 + ratio / 2.0)
    } else {
        // exp(-ratio), from a part of it small enough for three terms.
        let part = ratio / 1024.0;
        let mut power = 1.0 - part * (1.0 - part / 2.0 * (1.0 - part / 3.0));
        (0..10).for_each(|_| power *= power);
        size / (1.0 - power)
    };
    (bytes + 0.5) as u64
}

/// The natural logarithm of a positive, normal number, to 13 digits. The C library's is in a library of its own, which the
/// program may not have loaded.
fn logarithm(number: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = number.to_bits();
    let mut exponent = (bits >> 52) as i64 as f64 - 1023.0;
    let mut mantissa = f64::from_bits(bits & MANTISSA | 1.0_f64.to_bits());
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    let part = (mantissa - 1.0) / (mantissa + 1.0);
    let square = part * part;
    // 2 artanh, by its series.
    let sum = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0]
        .into_iter()
        .fold(0.0, |sum, term| sum * square + term);
    exponent * std::f64::consts::LN_2 + 2.0 * part * sum
}

#[cfg(test)]
mod tests {
    use super::{NextHit, Sampler, logarithm, weight};

    #[test]
    fn logarithms_are_those_of_the_standard_library() {
        for number in [1.0_f64, 0.5, 0.999_999, 0.7, 0.71, 1e-16, 0.3, 3.7, 1.0 / 3.0] {
            assert!((logarithm(number) - number.ln()).abs() < 1e-11, "{number}");
        }
    }

    #[test]
    fn a_sample_stands_for_its_size_by_its_probability() {
        for (size, mean) in
            [(1, 512_u64 << 10), (100, 1000), (1000, 1000), (5000, 1000), (1 << 20, 1000), (600, 512 << 10)]
        {
            let expected = size as f64 / (1.0 - (-(size as f64) / mean as f64).exp());
            assert!((weight(size, mean) as f64 - expected).abs() <= 0.6 + expected * 1e-5, "{size} {mean}");
        }
        assert_eq!(weight(0, 1000), weight(1, 1000));
    }

    #[test]
    fn an_allocation_is_sampled_with_the_probability_of_its_size() {
        check_probabilities(u64::MAX);
    }

    #[test]
    fn looks_in_between_leave_the_probabilities_as_they_are() {
        for look_after in [1, 100, 1000, 5000] {
            check_probabilities(look_after);
        }
    }

    /// Of a thread that looks after so many bytes without a hit.
    fn check_probabilities(look_after: u64) {
        const MEAN_BYTES: u64 = 1000;
        // Not by the mean of the process: other tests record in it at the same time.
        let (mut sampler, next_hit, mut allocated) = (Sampler::new(), NextHit::new(), 7);
        sampler.begin(1);
        next_hit.set(sampler.draw_and_look(MEAN_BYTES, look_after), allocated);
        for size in [0_usize, 1, 10, 300, 1000, 2500] {
            let (mut taken, rounds) = (0_u32, if cfg!(miri) { 100 } else { 400_000 });
            for _ in 0..rounds {
                allocated += size as u64;
                if next_hit.takes(size, allocated) {
                    taken += u32::from(sampler.is_hit(next_hit.passed(allocated)));
                    next_hit.set(sampler.draw_and_look(MEAN_BYTES, look_after), allocated);
                }
            }
            let p = 1.0 - (-(size.max(1) as f64) / MEAN_BYTES as f64).exp();
            let (expected, deviation) = (p * f64::from(rounds), (p * (1.0 - p) * f64::from(rounds)).sqrt());
            assert!((f64::from(taken) - expected).abs() < 5.0 * deviation + 1.0, "{size}: {taken}, not {expected}");
        }
    }
}
