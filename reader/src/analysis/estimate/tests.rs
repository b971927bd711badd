//! What estimates and their intervals hold. Invariant: the numbers of a run depend on its seed only.

use super::{SampleWeights, Variance, mixed, uniform};
use crate::analysis::{Tally, difference_range};
use std::num::NonZeroU64;

#[test]
fn weights_are_right_on_the_average() {
    let weights = SampleWeights::new(NonZeroU64::new(1000).unwrap());
    for size in [1_u64, 16, 700, 1000, 4000, 1 << 30] {
        let p = 1.0 - (-(size as f64) / 1000.0).exp();
        let rounds = 20_000;
        let sum: f64 = (0..rounds).map(|order| weights.of(size, order).1 as f64).sum();
        assert!((sum * p / rounds as f64 - 1.0).abs() < 0.01, "{size}");
        assert!((weights.of(size, 7).0 as f64 * p - size as f64).abs() <= 1.0);
    }
    assert_eq!(weights.of(1 << 30, 0), (1 << 30, 1));
    assert_eq!(weights.variance(1 << 30).bytes_range(1 << 30), (1 << 30, 1 << 30));
    assert_eq!(weights.of(0, 3).0, 0);
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
