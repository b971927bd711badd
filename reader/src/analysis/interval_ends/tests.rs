//! Of rows of simulated programs, so many intervals hold the truth. Invariant: the numbers of a run depend on its seed only.

use std::num::NonZeroU64;

use super::if_shown;
use crate::analysis::estimate::{mixed, uniform};
use crate::analysis::{SampleWeights, Tally};

const DISTANCE: u64 = 64 << 10;

/// Of rows that are shown: how many there are, how many truths lie below and above their intervals, and how wide these are in parts of the
/// truth; of bytes, then of numbers.
#[derive(Debug, Default)]
struct ShownRows {
    rows: u64,
    below: [u64; 2],
    above: [u64; 2],
    width: [f64; 2],
}

impl ShownRows {
    /// The row of so many programs whose sizes this says, of a random number from 0 to 1.
    fn of(runs: u64, blocks: u64, size: impl Fn(f64) -> f64) -> Self {
        let weights = SampleWeights::new(NonZeroU64::new(DISTANCE).unwrap());
        let mut shown = Self::default();
        for seed in 0..if cfg!(miri) { 2 } else { runs } {
            let random = |at: u64, what: u64| uniform(mixed(mixed(mixed(seed) ^ what) ^ at));
            let sizes: Vec<u64> = (0..blocks).map(|at| size(random(at, 1 << 40)) as u64).collect();
            let mut tally = Tally::default();
            for (at, &size) in (0..).zip(&sizes) {
                let p = -(-(size as f64) / DISTANCE as f64).exp_m1();
                if random(at, 1 << 41) < p {
                    let (bytes, count) = weights.of(size, mixed(seed) ^ at);
                    tally += Tally { bytes, count, variance: weights.variance(size) };
                }
            }
            if tally.count > 0 {
                let truths = [sizes.iter().sum(), blocks];
                shown.add(truths, [tally.bytes_range(), tally.count_range()]);
            }
        }
        shown
    }

    fn add(&mut self, truths: [u64; 2], ranges: [(u64, u64); 2]) {
        self.rows += 1;
        for (at, (truth, (low, high))) in truths.into_iter().zip(ranges).enumerate() {
            self.below[at] += u64::from(truth < low);
            self.above[at] += u64::from(truth > high);
            self.width[at] += (high - low) as f64 / truth as f64;
        }
    }

    /// That this part of the bytes and of the numbers, in percent, lies in the intervals.
    fn hold(&self, what: &str, least: [u64; 2]) {
        for (at, least) in least.into_iter().enumerate().filter(|_| !cfg!(miri)) {
            let covered = self.rows - self.below[at] - self.above[at];
            assert!(covered * 100 >= self.rows * least, "{what} {at}: {self:?}");
        }
    }
}

fn equal(size: f64) -> impl Fn(f64) -> f64 {
    move |_| size
}

fn log_uniform(least: f64, most: f64) -> impl Fn(f64) -> f64 {
    move |random| least * (most / least).powf(random)
}

#[test]
fn rows_that_are_shown_for_one_sample_hold_the_truth() {
    // Most such rows have no sample, and are not shown.
    for (blocks, size) in [(1, 600.0), (1, 30_000.0), (3, 2000.0), (10, 600.0), (60, 600.0), (300, 600.0)] {
        let shown = ShownRows::of(4000, blocks, equal(size));
        assert!(cfg!(miri) || shown.rows > 20, "{shown:?}");
        shown.hold(&format!("{blocks} of {size}"), [94, 94]);
    }
}

#[test]
fn rows_of_mixed_sizes_hold_the_truth() {
    let pareto = |random: f64| (24.0 * (1.0 - random).powf(-1.0 / 1.1)).min(3e6);
    let doubled = |random: f64| f64::from(8 << (random * 13.0) as u32);
    let uniform = |least: f64, most: f64| move |random: f64| least + (most - least) * random;
    ShownRows::of(1000, 20, log_uniform(16.0, 8192.0)).hold("20, log-uniform", [94, 94]);
    ShownRows::of(1000, 500, log_uniform(16.0, 8192.0)).hold("500, log-uniform", [94, 95]);
    ShownRows::of(300, 3000, log_uniform(16.0, 8192.0)).hold("3000, log-uniform", [93, 95]);
    ShownRows::of(1000, 500, pareto).hold("500, pareto", [94, 94]);
    ShownRows::of(300, 4000, pareto).hold("4000, pareto", [93, 95]);
    ShownRows::of(1000, 100, doubled).hold("100, doubled", [93, 95]);
    ShownRows::of(500, 60, uniform(10_000.0, 400_000.0)).hold("60, large", [93, 95]);
}

#[test]
fn numbers_of_blocks_of_one_size_are_as_exact_as_their_bytes() {
    for blocks in [5000, 20_000] {
        let shown = ShownRows::of(200, blocks, equal(600.0));
        shown.hold("one size", [93, 93]);
        let [bytes, count] = shown.width;
        assert!(cfg!(miri) || count < bytes * 1.1, "{shown:?}");
    }
}

#[test]
fn a_sample_more_makes_no_lower_end_smaller() {
    let ends: Vec<f64> = (0..120).map(|tenth| if_shown(f64::from(tenth) / 10.0)).collect();
    assert!(ends.is_sorted() && ends[0] <= 0.0 && ends[10] <= 0.0 && ends[119] >= 1.0);
}
