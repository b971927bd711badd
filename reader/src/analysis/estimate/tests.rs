//! What a sample stands for on the average. Invariant: the numbers of a run depend on its seed only.

use std::num::NonZeroU64;

use super::SampleWeights;

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
