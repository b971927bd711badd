//! Of simulated programs and their rows, so many intervals hold the truth. Invariant: the numbers of a run depend on its seed only.

use std::num::NonZeroU64;

use super::{difference_range, if_shown};
use crate::analysis::estimate::{mixed, uniform};
use crate::analysis::{SampleWeights, Tally, Variance};

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

/// A sum of blocks that were sampled with random numbers that begin here, with its interval: bytes, then number.
fn estimated(sizes: &[u64], seed: u64, weights: SampleWeights) -> [(u64, (u64, u64)); 2] {
    let (mut bytes, mut count, mut variance) = (0, 0, Variance::EXACT);
    for (at, &size) in (0..).zip(sizes) {
        let order = mixed(seed) ^ at;
        let uniform = (mixed(order.rotate_left(32)) >> 11) as f64 / (1_u64 << 53) as f64;
        if uniform < weights.probability(size) {
            let weight = weights.of(size, order);
            (bytes, count) = (bytes + weight.0, count + weight.1);
            variance += weights.variance(size);
        }
    }
    [(bytes, variance.bytes_range(bytes)), (count, variance.count_range(count))]
}

#[test]
fn of_a_thousand_runs_about_950_intervals_hold_the_truth() {
    const RUNS: u64 = if cfg!(miri) { 2 } else { 1000 };
    let weights = SampleWeights::new(NonZeroU64::new(64 << 10).unwrap());
    let mixture: Vec<u64> = (0..20_000).map(|at| 16 + mixed(at) % 8000).chain([1 << 17, 1 << 20, 1 << 24]).collect();
    // Sites with about 300, 30 and 8 samples, and everything.
    let small = |number: usize| -> Vec<u64> { (0..number as u64).map(|at| 16 + mixed(at) % 2000).collect() };
    for (sizes, bias) in [(mixture, 0.005), (small(19_000), 0.01), (small(1900), 0.03), (small(500), 0.06)] {
        let truth = [sizes.iter().sum::<u64>(), sizes.len() as u64];
        let grown: Vec<u64> = sizes.iter().chain(&sizes[..sizes.len() / 3]).copied().collect();
        let growth = [grown.iter().sum::<u64>() - truth[0], grown.len() as u64 - truth[1]].map(i128::from);
        let (mut sums, mut covered, mut covered_growth) = ([0.0; 2], [0; 2], [0; 2]);
        for seed in 0..RUNS {
            let base = estimated(&sizes, seed, weights);
            let new = estimated(&grown, !seed, weights);
            for at in 0..2 {
                let (figure, (low, high)) = base[at];
                sums[at] += figure as f64;
                covered[at] += u64::from((low..=high).contains(&truth[at]));
                let (low, high) = difference_range(base[at], new[at]);
                covered_growth[at] += u64::from((low..=high).contains(&growth[at]));
            }
        }
        if cfg!(miri) {
            continue;
        }
        for at in 0..2 {
            let mean = sums[at] / RUNS as f64 / truth[at] as f64;
            let least = if at == 0 { 930 } else { 925 };
            assert!((least..=980).contains(&covered[at]), "{covered:?} of {}", sizes.len());
            assert!((least..=985).contains(&covered_growth[at]), "{covered_growth:?} of {}", sizes.len());
            assert!((mean - 1.0).abs() < bias, "{mean} of {}", sizes.len());
        }
    }
}

/// Most blocks of such a site are small, and few of them are sampled, if any.
#[test]
fn numbers_of_blocks_of_very_different_sizes_hold_the_truth() {
    const RUNS: u64 = if cfg!(miri) { 1 } else { 500 };
    const BLOCKS: u64 = 5000;
    let weights = SampleWeights::new(NonZeroU64::new(512 << 10).unwrap());
    let (mut rows, mut covered, mut of_samples) = (0, 0, 0);
    for seed in 0..RUNS {
        let pareto = |at: u64| (24.0 * uniform(mixed(mixed(!seed) ^ at)).max(1e-9).powf(-1.0 / 1.1)).min(3e6) as u64;
        let sizes: Vec<u64> = (0..BLOCKS).map(pareto).collect();
        let (mut tally, mut samples) = (Tally::default(), 0);
        for (at, &size) in (0..).zip(&sizes) {
            let order = mixed(seed) ^ at;
            if uniform(mixed(order.rotate_left(32))) < weights.probability(size) {
                let (bytes, count) = weights.of(size, order);
                tally += Tally { bytes, count, variance: weights.variance(size) };
                samples += 1;
            }
        }
        let holds = |(low, high): (u64, u64)| u64::from((low..=high).contains(&BLOCKS));
        if samples > 0 {
            rows += 1;
            covered += holds(tally.count_range());
            of_samples += holds(tally.variance.without_unseen_count().count_range(tally.count));
        }
    }
    if !cfg!(miri) {
        assert!(covered * 100 >= rows * 93 && of_samples * 100 < rows * 90, "{covered} {of_samples} of {rows}");
    }
    // Those of many samples of one size are hardly wider.
    let mut same = Tally::default();
    (0..30).for_each(|at| {
        let (bytes, count) = weights.of(2000, at);
        same += Tally { bytes, count, variance: weights.variance(2000) };
    });
    let width = |(low, high): (u64, u64)| (high - low) as f64;
    assert!(width(same.count_range()) < 1.1 * width(same.variance.without_unseen_count().count_range(same.count)));
}

/// The blocks of vectors that grow: of each power of two there are about as many.
#[test]
fn numbers_of_blocks_that_double_hold_the_truth() {
    const RUNS: u64 = if cfg!(miri) { 1 } else { 500 };
    let weights = SampleWeights::new(NonZeroU64::new(64 << 10).unwrap());
    let (mut rows, mut covered) = (0, 0);
    for seed in 0..RUNS {
        let vectors = |at: u64| 12.0 + 5.0 * uniform(mixed(mixed(!seed) ^ at));
        let sizes: Vec<u64> = (0..200).flat_map(|at| (2..vectors(at) as u32).map(|power| 1 << power)).collect();
        let mut tally = Tally::default();
        for (at, &size) in (0..).zip(&sizes) {
            let order = mixed(seed) ^ at;
            if uniform(mixed(order.rotate_left(32))) < weights.probability(size) {
                let (bytes, count) = weights.of(size, order);
                tally += Tally { bytes, count, variance: weights.variance(size) };
            }
        }
        let (low, high) = tally.count_range();
        rows += 1;
        covered += u64::from((low..=high).contains(&(sizes.len() as u64)));
    }
    assert!(cfg!(miri) || covered * 100 >= rows * 93, "{covered} of {rows}");
}
