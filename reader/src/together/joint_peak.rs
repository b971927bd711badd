//! The common peak of several processes of which samples were recorded: by how much it is too high, and where it may have been.
//!
//! As that of one process ([`sampled_peak`](crate::analysis)), it is the largest of many estimates. The halves of the samples
//! are summed over the processes, and their maxima say by how much chance has raised it: that is taken from all rows, by their
//! variances. A process knows what it had at the maxima of the halves while it ran; where a half has a later one, it had
//! nothing there.
//!
//! Invariant: what a process has at the peak adds up to the sums of its rows; what is exact stays.

use super::JointCapture;
use crate::analysis::{Analysis, HALVES, Halves, View, excess};
use crate::replay::watch::JointHalves;

/// How often the peak, and those of the halves, were raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeakMarks {
    pub(super) peak: u64,
    pub(super) halves: Halves,
}

impl PeakMarks {
    /// The halves that have another mark.
    pub(super) fn other_halves(self, other: Self) -> impl Iterator<Item = usize> {
        (0..HALVES).filter(move |at| self.halves[*at] != other.halves[*at])
    }
}

/// Of a process that had ended when a half had its maximum: each row may have had nothing at the peak.
pub(super) fn widen(analysis: &mut Analysis) {
    let Some(variances) = &mut analysis.variances else { return };
    for (of, group) in variances.iter_mut().zip(analysis.groups.iter()) {
        let peak = of.of(View::HighWaterMark);
        *of = of.with(View::HighWaterMark, peak.ended_before(group.peak.bytes, group.peak.count));
    }
}

/// Takes from the peak what it is too high by, but not more than leaves `least`, which was live at another moment.
pub(super) fn correct(members: &mut [JointCapture], halves: &JointHalves, least: u64) {
    let peak = members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.analysis.totals.peak.bytes));
    let too_high = excess(|at| halves.most[at]).min(peak.saturating_sub(least));
    let all: f64 = members.iter().map(|member| variance(&member.analysis)).sum();
    if all > 0.0 {
        members.iter_mut().for_each(|member| lower(&mut member.analysis, too_high as f64 / all));
    }
}

/// That of the peak's bytes.
fn variance(analysis: &Analysis) -> f64 {
    analysis.variances.iter().flatten().map(|of| of.of(View::HighWaterMark).of_samples()).sum()
}

/// Lowers each row by so much for each unit of its variance.
fn lower(analysis: &mut Analysis, factor: f64) {
    let (groups, peak) = (&mut analysis.groups, &mut analysis.totals.peak);
    for (at, of) in analysis.variances.iter_mut().flatten().enumerate() {
        let variance = of.of(View::HighWaterMark);
        groups.change(at, |group| {
            let sum = &mut group.peak;
            let bytes = ((variance.of_samples() * factor) as u64).min(sum.bytes);
            *of = of.with(View::HighWaterMark, variance.after_lowering(bytes));
            let count = (sum.count as f64 * (bytes as f64 / sum.bytes.max(1) as f64)) as u64;
            (sum.bytes, sum.count) = (sum.bytes - bytes, sum.count - count);
            peak.bytes = peak.bytes.saturating_sub(bytes);
            peak.allocations = peak.allocations.saturating_sub(count);
        });
    }
}
