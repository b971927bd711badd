//! What groups have allocated and freed so far, of which the differences of two moments are taken: windows of time.
//!
//! A window of a long recording has a tiny part of what was allocated before it, and the difference of two sums of variances in
//! single precision would be what was rounded in them. So these are kept in double precision. An aggregated capture has its sums
//! in single precision; where a window is too small a part of those, its samples stand for as much each as all others.
//!
//! Invariant: what has no bytes and no allocations has no variance.

use super::sampled_variances::VarianceSum;
use super::{GroupFlow, Tally};

/// The least part of sums in single precision that is more than what was rounded in them.
const LEAST_PART: f64 = 1e-4;

/// What a group has allocated and freed since the recording began.
#[derive(Clone, Copy, Debug)]
pub struct RunningFlow {
    /// The sums.
    pub flow: GroupFlow,
    mark: FlowMark,
}

/// What a group had allocated and freed at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowMark {
    allocated: RunningTally,
    freed: RunningTally,
}

/// A sum that grows.
#[derive(Clone, Copy, Debug, Default)]
struct RunningTally {
    bytes: u64,
    count: u64,
    variances: VarianceSum,
    is_single: bool,
}

impl RunningTally {
    /// What came since it was that.
    fn since(self, before: Self) -> Tally {
        let (bytes, count) = (self.bytes.saturating_sub(before.bytes), self.count.saturating_sub(before.count));
        if (bytes, count) == (0, 0) {
            return Tally::default();
        }
        let part = bytes as f64 / self.bytes.max(1) as f64;
        let variances = if self.is_single && part < LEAST_PART {
            self.variances.scaled(part)
        } else {
            self.variances.less(before.variances)
        };
        Tally { bytes, count, variance: variances.into() }
    }
}

impl RunningFlow {
    /// Of sums with their variances in double precision.
    pub(super) fn new(flow: GroupFlow, [allocated, freed]: [VarianceSum; 2]) -> Self {
        let of = |Tally { bytes, count, .. }, variances| RunningTally { bytes, count, variances, is_single: false };
        Self { flow, mark: FlowMark { allocated: of(flow.allocated, allocated), freed: of(flow.freed, freed) } }
    }

    /// Of sums that were written in single precision.
    pub(crate) fn of_written(flow: GroupFlow) -> Self {
        let of = |sum: Tally| {
            let mut variances = VarianceSum::default();
            variances += sum.variance;
            RunningTally { bytes: sum.bytes, count: sum.count, variances, is_single: true }
        };
        Self { flow, mark: FlowMark { allocated: of(flow.allocated), freed: of(flow.freed) } }
    }

    /// What differences are taken from later.
    #[must_use]
    pub fn mark(&self) -> FlowMark {
        self.mark
    }

    /// What the group has done since then.
    #[must_use]
    pub fn since(&self, before: FlowMark) -> GroupFlow {
        let (allocated, freed) = (self.mark.allocated.since(before.allocated), self.mark.freed.since(before.freed));
        GroupFlow { allocated, freed, ..self.flow }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use memtrack_format::Allocator;

    use super::{FlowMark, RunningFlow, Tally, VarianceSum};
    use crate::analysis::{GroupFlow, SampleWeights, Variance};
    use crate::event::{StackId, ThreadId};

    const SIZE: u64 = 300;

    fn variance() -> Variance {
        SampleWeights::new(NonZeroU64::new(512 << 10).unwrap()).variance(SIZE)
    }

    /// So many samples of one size.
    fn flow(samples: u64) -> (GroupFlow, [VarianceSum; 2]) {
        let mut sum = VarianceSum::default();
        sum += variance();
        let sum = sum.scaled(samples as f64);
        let allocated = Tally { bytes: samples << 19, count: samples * 1700, variance: sum.into() };
        let (live, stack) = (Tally::default(), StackId(1));
        let (thread, allocator) = (ThreadId(0), Allocator::Malloc);
        (GroupFlow { stack, thread, allocator, allocated, freed: allocated, live, peak: None }, [sum; 2])
    }

    /// The window of the last 20 of so many samples, and its figures in parts of what they should be.
    fn last_of(samples: u64, running: impl Fn(GroupFlow, [VarianceSum; 2]) -> RunningFlow) -> [f32; 4] {
        let of = |samples| {
            let (flow, sums) = flow(samples);
            running(flow, sums)
        };
        let window = of(samples).since(of(samples - 20).mark());
        let first = of(20).since(FlowMark::default());
        assert_eq!((window.allocated.bytes, window.allocated.count), (first.allocated.bytes, first.allocated.count));
        let [found, wanted] = [window, first].map(|window| window.allocated.variance.numbers());
        std::array::from_fn(|at| found[at] / wanted[at])
    }

    #[test]
    fn a_window_late_in_a_long_recording_is_as_exact_as_the_first_one() {
        // 100 a second for a year.
        let parts = last_of(3_000_000_000, RunningFlow::new);
        assert!(parts.iter().all(|part| (part - 1.0).abs() < 1e-3), "{parts:?}");
    }

    #[test]
    fn of_sums_in_single_precision_too() {
        for samples in [21, 1000, 100_000, 3_000_000_000] {
            let parts = last_of(samples, |flow, _| RunningFlow::of_written(flow));
            assert!(parts.iter().all(|part| (part - 1.0).abs() < 1e-2), "{samples} {parts:?}");
        }
    }

    #[test]
    fn a_window_without_events_is_exact() {
        let (all, sums) = flow(1 << 30);
        let mut more = sums;
        // As rounding leaves it.
        more.iter_mut().for_each(|sum| *sum += SampleWeights::new(NonZeroU64::new(1 << 30).unwrap()).variance(1));
        let window = RunningFlow::new(all, more).since(RunningFlow::new(all, sums).mark());
        assert_eq!((window.allocated, window.freed), (Tally::default(), Tally::default()));
    }
}
